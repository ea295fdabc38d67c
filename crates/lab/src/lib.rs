//! The library behind all exercises: it runs their checks, and provides kernels, models, and measurements.
//!
//! | to … | start with |
//! |---|---|
//! | load the driver and NCCL, real or virtual | [`attach`], [`Tier`] |
//! | get a stream on each of several GPUs | [`streams`], [`world_sizes`] |
//! | run one thread per rank | [`each_rank`], [`named_ranks`] |
//! | launch a kernel of the course | [`Kernels`] |
//! | let a kernel access another GPU's memory | [`PeerMemory`], [`enable_peer_access`] |
//! | store a shard of a buffer, or replay crashes | [`disk`] |
//! | train a model | [`Mlp`], [`Network`], [`Attention`], [`Gpt`], [`Momentum`] |
//! | read what is left of a job that hung | [`flight_recorder`] |
//! | measure | [`Stopwatch`], [`Timeline`], [`Score`] |
//! | write a check | [`Check`], [`Expected`], [`Guarded`], [`Budget`], [`each_call_fails`] |
//!
//! `cargo docs` opens this page.

pub mod all_succeed;
pub mod at_once;
pub mod attention;
pub mod budget;
mod calls;
pub mod check;
pub mod compare;
pub mod digits;
pub mod disk;
pub mod elastic_comm;
pub mod exit;
pub mod explain;
pub mod faults;
pub mod flight_recorder;
pub mod gpt;
pub mod guarded;
pub mod host_group;
pub mod in_place;
pub mod kernels;
pub mod launcher;
mod library;
pub mod linear;
pub mod memory_pool;
pub mod momentum;
pub mod nccl_log;
pub mod network;
pub mod nvtx;
pub mod one_sided_comm;
mod panics;
pub mod peer_memory;
pub mod perceptron;
pub mod ranks;
pub mod raw_comm;
pub mod refusal;
pub mod roles;
pub mod roll_call;
pub mod score;
pub mod stopwatch;
pub mod tier;
pub mod timeline;
pub mod yields;

pub use all_succeed::all_succeed;
pub use at_once::{Block, returns_at_once, returns_at_once_on_each, while_blocked, with_host_waits};
pub use attention::Attention;
pub use budget::Budget;
pub use check::{Check, processes};
pub use compare::Expected;
pub use elastic_comm::ElasticComm;
pub use exit::exit_code;
pub use explain::Readable;
pub use faults::{each_call_fails, world_of_one};
pub use gpt::{Gpt, GptShape};
pub use guarded::Guarded;
pub use host_group::HostGroup;
pub use in_place::part_and_whole;
pub use kernels::Kernels;
pub use linear::{Linear, Mlp, Weights};
pub use memory_pool::MemoryPool;
pub use momentum::Momentum;
pub use nccl_log::NcclLog;
pub use network::{Network, NetworkShape, Trainable};
pub use one_sided_comm::{OneSidedComm, Window};
pub use peer_memory::{PeerMemory, enable_peer_access};
pub use perceptron::Perceptron;
pub use ranks::{each_rank, named_ranks};
pub use refusal::{caught, without_panic};
pub use roles::{name_stream, untracked_compute_stream};
pub use score::{Score, with_bytes_sent};
pub use stopwatch::Stopwatch;
pub use test_data::{irregular, random};
pub use tier::{Tier, attach, streams, world_sizes};
pub use timeline::Timeline;
