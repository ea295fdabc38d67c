//! From a device to a group of GPUs: how every program on several GPUs starts.

pub mod buffers;
pub mod devices;
pub mod environment;
pub mod errors;
pub mod id_exchange;
pub mod init_all;
pub mod kernel;
pub mod lifetime;
pub mod rendezvous;
