//! Sets how programs find the library, and how it finds its own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs look for it next to themselves. By its name alone, a program that runs under the Cargo of another
    // checkout would load that checkout's library.
    println!("cargo::rustc-link-arg=-Wl,-soname,$ORIGIN/../deps/libprelinked.so");
    // The loader would look up each of twenty thousand names otherwise, in every process, and a program could replace a
    // function by one of the same name.
    println!("cargo::rustc-link-arg=-Wl,-Bsymbolic");
}
