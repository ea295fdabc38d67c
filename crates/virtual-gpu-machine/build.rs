//! Sets `only_avx2` if this processor has AVX2 and the like, so that only loops for such processors are compiled: to
//! compile all loops would take a quarter longer, and programs usually run where they are built. With
//! `VIRTUAL_GPU_PORTABLE=1`, programs run on any processor of the architecture.

use std::env;

#[path = "src/processor.rs"]
mod processor;

const PORTABLE: &str = "VIRTUAL_GPU_PORTABLE";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/processor.rs");
    println!("cargo::rerun-if-env-changed={PORTABLE}");
    println!("cargo::rustc-check-cfg=cfg(only_avx2)");
    let is_portable = env::var_os(PORTABLE).is_some_and(|value| value != "0");
    let is_for_this_machine = env::var_os("HOST") == env::var_os("TARGET");
    if is_for_this_machine && !is_portable && processor::has_avx2() {
        println!("cargo::rustc-cfg=only_avx2");
    }
}
