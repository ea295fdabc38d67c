//! Runs handwritten PTX and PTX from NVRTC on the machine, and compares the results with the manual or with the host's
//! arithmetic.

mod bad_input;
mod bulk_copies;
mod copies;
mod differential;
mod exact;
mod faults;
mod forms;
mod fp8;
mod gpu;
mod kernels;
mod manual;
mod matrix;
mod mbarrier;
mod mutations;
mod opcodes;
mod print;
mod reader;
mod recursion;
mod resident;
mod shared_races;
mod training;
mod twin;
mod vector_atomics;
mod waiting;
mod wmma;
