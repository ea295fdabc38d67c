//! The checks for module 01, with one file per exercise.
//! `cargo course` compiles only the checks for one exercise: see `lab::checks!`.

#![allow(unexpected_cfgs)]

#[cfg(any(not(one_exercise), buffers))]
mod buffers;
#[cfg(any(not(one_exercise), devices))]
mod devices;
#[cfg(any(not(one_exercise), environment))]
mod environment;
#[cfg(any(not(one_exercise), errors))]
mod errors;
#[cfg(any(not(one_exercise), id_exchange))]
mod id_exchange;
#[cfg(any(not(one_exercise), init_all))]
mod init_all;
#[cfg(any(not(one_exercise), kernel))]
mod kernel;
mod launch;
#[cfg(any(not(one_exercise), lifetime))]
mod lifetime;
#[cfg(any(not(one_exercise), rendezvous))]
mod rendezvous;

// Links the program faster.
extern crate prelinked as _;

use lab::Check;

/// Returns every check in the module, in exercise order.
pub(crate) fn checks() -> Vec<Check> {
    lab::checks![devices, buffers, kernel, init_all, rendezvous, environment, id_exchange, lifetime, errors]
}
