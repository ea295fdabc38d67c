//! Gives the library the SONAME that cudarc uses to find the driver.
//!
//! `dlopen("libcuda.so")` makes glibc return any library that is already loaded with that SONAME. The real driver's
//! SONAME is `libcuda.so.1`, so the two never collide.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
