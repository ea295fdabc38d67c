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

// For `cargo test`, this crate is a program that contains its checks.
#[cfg(test)]
use crate as init;

#[cfg(test)]
#[path = "../../../tests/01_init/mod.rs"]
mod exercise;

#[cfg(test)]
fn main() -> std::process::ExitCode {
    lab::check::run(exercise::checks())
}
