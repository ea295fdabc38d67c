//! The kernels in `tests/kernels`, compiled by two versions of NVRTC for two architectures, and compared with plain
//! Rust.
//!
//! `cargo xtask kernels --tests` compiles them again.

mod ampere;
mod atomics;
mod control;
mod halves;
mod integers;
mod math;
mod memory;
mod warps;

/// Includes the PTX of a source file from each compiler for each architecture.
macro_rules! builds {
    ($name:literal) => {
        [
            include_str!(concat!("../../kernels/12.0-compute_70/", $name, ".ptx")),
            include_str!(concat!("../../kernels/12.0-compute_90/", $name, ".ptx")),
            include_str!(concat!("../../kernels/12.9-compute_70/", $name, ".ptx")),
            include_str!(concat!("../../kernels/12.9-compute_90/", $name, ".ptx")),
        ]
    };
}
use builds;

/// Compares each thread's elements with `expected`. Each thread has `N` consecutive elements.
#[track_caller]
fn assert_each<T: PartialEq + std::fmt::Debug, const N: usize>(
    kernel: &str,
    got: &[T],
    expected: impl Fn(usize) -> [T; N],
) {
    for (thread, got) in got.chunks_exact(N).enumerate() {
        for (at, (got, expected)) in got.iter().zip(expected(thread)).enumerate() {
            assert!(*got == expected, "{kernel}, thread {thread}, o[{at}]: {got:?}, not {expected:?}");
        }
    }
}

/// Returns integers of all magnitudes, including the limits of their type.
fn words(seed: u64, count: usize) -> Vec<u32> {
    let edges = [0, 1, u32::MAX, 1 << 31, u32::MAX >> 1, 0x8000_8000, 0x7f80_7f80, 0x00ff_00ff, 31, 32];
    let mut numbers = crate::gpu::Numbers(seed);
    let mut word = |at: usize| match at % 4 {
        0 => edges[numbers.next() as usize % edges.len()],
        1 => (numbers.next() >> (32 + numbers.next() % 32)) as u32,
        _ => numbers.next() as u32,
    };
    (0..count).map(&mut word).collect()
}
