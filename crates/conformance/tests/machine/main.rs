//! Runs handwritten PTX and PTX from NVRTC on the machine, and compares the results with the manual or with the host's
//! arithmetic.

mod bad_input;
mod bulk_copies;
mod clusters;
mod copies;
mod differential;
mod division;
mod double_matrices;
mod exact;
mod exchanges;
mod faults;
mod forms;
mod fp8;
mod gpu;
mod hopper;
mod integer_matrices;
mod kernels;
mod manual;
mod matrix;
mod mbarrier;
mod mutations;
mod opcodes;
mod print;
mod processor_time;
mod random_programs;
mod reader;
mod recursion;
mod resident;
mod same_values;
mod shared_races;
mod surfaces;
mod tensor_copies;
mod textures;
mod traffic;
mod training;
mod twin;
mod vector_atomics;
mod waiting;
mod wmma;

/// Returns the number in an environment variable, or `default` if it is not set.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}"))
    })
}
