//! The stub library `libnccl.so`: no code, only the name.
//!
//! `dlsym` searches a library's dependencies, and this one's only dependency is `libcuda.so`, the virtual GPU. So
//! there is one engine behind both names, and nothing to forward.
