//! Determines, over NCCL, which GPU each rank really has.
//!
//! `Comm::rank()` only repeats the number that the communicator was created with. In a broadcast, NCCL itself selects
//! the sender. So each rank takes its turn as the root and broadcasts its GPU.

use anyhow::{Context, ensure};
use cudarc::driver::CudaSlice;
use cudarc::nccl::{Comm, group_end, group_start};

use crate::explain::Readable;

/// A rank's own identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The rank that its communicator was created with.
    pub rank: usize,
    /// The number of ranks that its communicator was created with.
    pub world_size: usize,
    /// The ordinal of the GPU that its communicator's stream is on.
    pub gpu: usize,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {} on GPU {}", self.rank, self.world_size, self.gpu)
    }
}

impl Answer {
    fn of(comm: &Comm) -> [f32; 3] {
        [comm.rank() as f32, comm.world_size() as f32, comm.stream().context().ordinal() as f32]
    }

    /// Parses received numbers. Integers below 2²⁴ pass through an `f32` unchanged.
    fn read(values: &[f32]) -> anyhow::Result<Self> {
        let whole = |value: f32| {
            ensure!(
                (0.0..16_777_216.0).contains(&value),
                "{value} is neither a rank nor a GPU: nothing was received"
            );
            Ok(value as usize)
        };
        let [rank, world_size, gpu] = values else {
            anyhow::bail!("the answer has {} numbers", values.len())
        };
        Ok(Self { rank: whole(*rank)?, world_size: whole(*world_size)?, gpu: whole(*gpu)? })
    }
}

/// Returns the answers from ranks 0, 1, … of the communicator, as this rank receives them. Every rank must call it.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn roll_call(comm: &Comm) -> anyhow::Result<Vec<Answer>> {
    let stream = comm.stream();
    let mut answers = Vec::new();
    for root in 0..comm.world_size() {
        let mut message = stream.clone_htod(&Answer::of(comm))?;
        comm.broadcast_in_place(&mut message, i32::try_from(root)?).readable()?;
        let heard = stream.clone_dtoh(&message)?;
        stream.synchronize()?;
        answers.push(Answer::read(&heard).with_context(|| format!("in rank {root}'s roll call"))?);
    }
    Ok(answers)
}

/// Like [`roll_call`], for communicators that are driven by one thread. Element `i` contains what `comms[i]` received
/// from ranks 0, 1, …
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn roll_call_on_one_thread(comms: &[Comm]) -> anyhow::Result<Vec<Vec<Answer>>> {
    let mut heard = vec![Vec::new(); comms.len()];
    for root in 0..comms.len() {
        let mut messages: Vec<CudaSlice<f32>> = Vec::new();
        for comm in comms {
            messages.push(comm.stream().clone_htod(&Answer::of(comm))?);
        }
        group_start().readable()?;
        let root = i32::try_from(root)?;
        let results: Vec<_> = comms
            .iter()
            .zip(&mut messages)
            .map(|(comm, message)| comm.broadcast_in_place(message, root).readable())
            .collect();
        // A group must be ended even if a call in it fails.
        let ended = group_end().readable();
        results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        ended?;
        for ((comm, message), heard) in comms.iter().zip(&messages).zip(&mut heard) {
            let stream = comm.stream();
            let values = stream.clone_dtoh(message)?;
            stream.synchronize()?;
            heard.push(Answer::read(&values).with_context(|| format!("in rank {root}'s roll call"))?);
        }
    }
    Ok(heard)
}
