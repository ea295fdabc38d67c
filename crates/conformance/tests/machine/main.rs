//! PTX from NVRTC and by hand, run on the machine and compared with what the manual or the host's arithmetic says.

mod bad_input;
mod copies;
mod differential;
mod exact;
mod faults;
mod forms;
mod gpu;
mod kernels;
mod manual;
mod matrix;
mod mutations;
mod opcodes;
mod print;
mod reader;
mod recursion;
mod resident;
mod shared_races;
mod training;
mod waiting;
