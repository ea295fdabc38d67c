//! The build step for a stub library, which contains no code but is named `libnccl.so` and depends on a library that
//! exports the symbols.

use std::path::PathBuf;
use std::process::Command;

/// Links the library so that `dlopen("libnccl.so")` finds it and `dlsym` on it finds the symbols that `dependency`
/// exports.
pub(crate) fn link_to(dependency: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // For linking, any library with that SONAME is enough; at run time, the loaded library takes its place.
    let stub = out.join(dependency);
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let status = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null"])
        .arg(format!("-Wl,-soname,{dependency}"))
        .arg("-o")
        .arg(&stub)
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("`{}` could not link {}: {other:?}", linker.display(), stub.display()),
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--no-as-needed,{},--as-needed", stub.display());
}
