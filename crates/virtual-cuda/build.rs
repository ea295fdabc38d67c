//! Gives the library the SONAME under which cudarc looks for the driver.
//!
//! For `dlopen("libcuda.so")`, glibc returns a library that is already loaded under that SONAME. The real driver's
//! SONAME is `libcuda.so.1`, so the two never collide.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
