//! The stub library `libnccl.so`, which contains no code of its own.
//!
//! `dlsym` also searches a library's dependencies, and this library's only dependency is `libcuda.so`, the virtual GPU.
//! So both library names lead to the same engine, and no calls have to be forwarded.
