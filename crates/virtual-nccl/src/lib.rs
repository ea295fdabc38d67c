//! The stub library `libnccl.so`, which contains no code.
//!
//! `dlsym` also searches a library's dependencies, and this library's only dependency is `libcuda.so`, the virtual GPU.
//! So both names refer to the same engine, and nothing has to be forwarded.
