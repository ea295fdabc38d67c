//! Loads, stores, atomics, and copies: what they access, and what is recorded about it.

mod access;
pub(crate) mod address;
mod atomic;
mod bulk;
pub(crate) mod bytes;
mod contiguous;
pub(crate) mod copies;
mod copy_async;
mod load;
mod observed;
mod store;
mod surface;
mod tensor;
mod texture;
pub(crate) mod touched;
pub(crate) mod view;
pub(crate) mod watch;
mod watched;
