//! NCCL on the virtual GPU: communicators, groups, collectives, and point-to-point messages on the engine's streams.
//!
//! [`Nccl`] implements the functions of `nccl.h`. It has its own lock, which is taken only while the engine is locked
//! (`state.rs`). The engine calls back through its `Communication` trait (`communication.rs`).

mod bootstrap;
mod bootstrap_failure;
mod bootstrap_remote;
mod buffer;
mod call;
mod capture;
mod collective;
mod communication;
mod communicator;
mod config;
mod connection;
mod deadlock;
mod departure;
mod event;
mod group;
mod grow;
mod id;
mod internal;
mod launch;
pub mod log;
mod management;
mod membership;
mod one_sided;
mod operation;
pub mod parameter;
mod pieces;
mod point_to_point;
mod publish;
mod ranks;
mod registration;
mod remote;
mod run;
mod scale;
mod session;
mod state;
mod strict;
mod transfer;
mod wire;

pub use call::Request;
pub use config::CommConfig;
pub use connection::Interface;
pub use id::{UniqueId, random};
pub use management::{Deliver, NO_COLOR};
pub use one_sided::{OneSided, Put};
pub use operation::{Buffers, Collective, Operation};
pub use scale::Scale;
pub use state::Nccl;
pub use transfer::{Direction, Transfer};
pub use virtual_gpu_machine::reduction::{DataType, Operator};

use state::{Guard, Locked, State};

/// The NCCL version that the virtual GPU reports, encoded as in `ncclGetVersion`: 2.30.7.
pub const VERSION: i32 = 23_007;
