//! From a device to a group of GPUs: how every multi-GPU program starts.

pub mod buffers;
pub mod devices;
pub mod environment;
pub mod errors;
pub mod id_exchange;
pub mod init_all;
pub mod kernel;
pub mod lifetime;
pub mod rendezvous;
