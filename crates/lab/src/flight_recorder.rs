//! What is left of a training job that hung or failed: the dumps of PyTorch's flight recorder, and the job's log.
//!
//! A [`Dump`] has most of the fields that PyTorch writes as JSON (`dump_json` in
//! `torch/csrc/distributed/c10d/FlightRecorderDetail.hpp`), with the same names and meanings. Times and threads are
//! left out. Stack traces are only in the dumps that PyTorch writes as pickles.

mod call;
mod incident;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use call::Call;
pub use incident::Incident;

/// The version of the format.
pub const VERSION: &str = "2.10";

/// What one rank's flight recorder has written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// The version of the format.
    pub version: String,
    /// The process groups that the rank is in, by name.
    pub pg_config: BTreeMap<String, GroupConfig>,
    /// How far the rank has come in each of its process groups, by [`Entry::pg_id`].
    pub pg_status: BTreeMap<String, GroupStatus>,
    /// The rank's latest calls, in the order in which its program made them. Older calls have been overwritten.
    #[serde(default)]
    pub entries: Vec<Entry>,
}

/// A process group: ranks that communicate through one NCCL communicator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// The name, which is the same on all of its ranks.
    pub name: String,
    /// What the program calls it.
    pub desc: String,
    /// The ranks in it, such as `[0, 2, 4, 6]`, in ascending order.
    pub ranks: String,
}

/// How far a rank has come in a process group. Each field is the number of a collective, as text, or `-1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The last collective that the program has called.
    pub last_enqueued_collective: String,
    /// The last collective that the GPU has started.
    pub last_started_collective: String,
    /// The last collective that the GPU has completed.
    pub last_completed_collective: String,
}

/// One call, as the rank that made it has recorded it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The number of this entry among all entries of this rank, counted from 0.
    pub record_id: u64,
    /// The process group's number in this process.
    pub pg_id: u64,
    /// The process group's name and description.
    pub process_group: (String, String),
    /// The number of the last collective that the rank has called in this group, counted from 1.
    pub collective_seq_id: u64,
    /// The number of sends and receives that the rank has called in this group.
    pub p2p_seq_id: u64,
    /// The number of all calls of the rank in this group.
    pub op_id: u64,
    /// The operation, such as `nccl:all_reduce` or `nccl:send 3->4`, whose ranks are numbers within the group.
    pub profiling_name: String,
    /// The shapes of the buffers that are read.
    pub input_sizes: Vec<Vec<u64>>,
    /// The element types of the buffers that are read, such as `Float` or `Half`.
    pub input_dtypes: Vec<String>,
    /// The shapes of the buffers that are written.
    pub output_sizes: Vec<Vec<u64>>,
    /// The element types of the buffers that are written.
    pub output_dtypes: Vec<String>,
    /// How far the GPU has come.
    pub state: State,
    /// How long PyTorch waits before it gives up the job.
    pub timeout_ms: u64,
    /// Whether this is a send or a receive.
    pub is_p2p: bool,
}

/// How far a GPU has come with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The program has called it. The GPU's stream has not reached it.
    Scheduled,
    /// The GPU's stream has reached it. PyTorch records this only with `TORCH_NCCL_ENABLE_TIMING=1`.
    Started,
    /// It is done.
    Completed,
}

impl Entry {
    /// Returns the call of all ranks that this entry is part of.
    pub fn call(&self) -> Call {
        Call::of(self)
    }

    /// Returns the operation: `all_reduce`, for example, or `message` for both ends of a message.
    pub fn operation(&self) -> &str {
        match self.is_p2p {
            true => "message",
            false => self.profiling_name.trim_start_matches("nccl:"),
        }
    }

    /// Returns the numbers of elements that are read and written.
    pub fn elements(&self) -> (u64, u64) {
        let all = |sizes: &[Vec<u64>]| sizes.iter().map(|shape| shape.iter().product::<u64>()).sum();
        (all(&self.input_sizes), all(&self.output_sizes))
    }
}
