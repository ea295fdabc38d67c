//! Another name for an installed NCCL: a stub `libnccl.so` that depends on `libnccl.so.2`.
//!
//! NCCL's run-time packages contain only `libnccl.so.2`, and cudarc never looks for that name.
