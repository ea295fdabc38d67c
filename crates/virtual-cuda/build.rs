//! Gives the library the SONAME under which cudarc asks for the driver.
//!
//! glibc answers `dlopen("libcuda.so")` with a library that is already loaded under that SONAME. The real driver's
//! is `libcuda.so.1`, so the two never stand in each other's way.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
