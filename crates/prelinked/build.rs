//! Asks the linker to resolve the library's calls to its own functions. The loader would look up each of twenty thousand
//! names otherwise, in every process, and a program could replace a function by one of the same name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,-Bsymbolic");
}
