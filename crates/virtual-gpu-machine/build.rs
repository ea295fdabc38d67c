//! Sets `only_avx2` if the program is built for this machine, and its processor has AVX2 and FMA. Then loops are compiled only for
//! such processors: it takes a quarter longer to compile them for all, and most programs run where they were built. With
//! `VIRTUAL_GPU_PORTABLE=1`, they are compiled for all.

use std::env;

#[cfg(target_arch = "x86_64")]
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
    if is_for_this_machine && !is_portable && has_avx2() {
        println!("cargo::rustc-cfg=only_avx2");
    }
}

fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return processor::has_avx2();
    #[cfg(not(target_arch = "x86_64"))]
    false
}
