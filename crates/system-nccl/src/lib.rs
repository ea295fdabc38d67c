//! Another name for an installed NCCL: a `libnccl.so` without code that needs `libnccl.so.2`.
//!
//! NCCL's run-time packages bring only `libnccl.so.2`, and cudarc never asks for that name.
