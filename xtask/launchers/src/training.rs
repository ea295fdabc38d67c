//! Training with data parallelism, as `multi_gpu/data_parallel` does it, with a thread or a process for each rank.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use cudarc::nccl::Comm;
use init::environment::{assignment, own_stream};
use init::id_exchange::exchange;
use init::rendezvous::rendezvous;
use lab::digits::Digits;
use lab::launcher::ranks_on_this_machine;
use lab::{Perceptron, Readable};
use multi_gpu::data_parallel::{start_equal, step};

use crate::place::own_host;

const HIDDEN: usize = 12;
const LEARNING_RATE: f32 = 0.07;
/// The lengths of the batches. Eight ranks divide most of them unevenly, and some ranks have no sample in some batches.
const BATCHES: [usize; 8] = [13, 8, 30, 3, 21, 17, 2, 11];
/// The ranks find each other in less than a second; this is for a busy machine.
const TIME_TO_MEET: Duration = Duration::from_secs(30);

/// Trains as the rank that a launcher assigned to this process. Returns the rank's line, and one about where it was.
pub(crate) fn as_process(meet: SocketAddr) -> anyhow::Result<[String; 2]> {
    let assignment = assignment()?;
    lab::attach(ranks_on_this_machine(assignment.world_size)?)?;
    let stream = own_stream(&assignment)?;
    let id = exchange(assignment.rank, assignment.world_size, meet, TIME_TO_MEET)?;
    stream.context().bind_to_thread()?;
    let comm = Comm::from_rank(stream, assignment.rank, assignment.world_size, id).readable()?;
    Ok([train(&comm)?, location(assignment.rank, assignment.local_rank, &own_host()?)])
}

/// Returns the line about where a rank was.
pub(crate) fn location(rank: usize, local_rank: usize, host: &str) -> String {
    format!("rank {rank} has local rank {local_rank} on {host}")
}

/// Trains with a thread for each rank. Returns the lines of all ranks.
pub(crate) fn as_threads(ranks: usize) -> anyhow::Result<Vec<String>> {
    rendezvous(&lab::streams(ranks)?, |comm| train(&comm))
}

/// Trains, and returns a line with the losses and a hash of the parameters. Two lines are equal only if all bits are.
fn train(comm: &Comm) -> anyhow::Result<String> {
    let stream = comm.stream();
    let samples = Digits::load()?.train.to_device(&stream)?;
    let longest = BATCHES.into_iter().max().unwrap_or(1).div_ceil(comm.world_size());
    // The seeds differ, so the ranks agree only if they share rank 0's parameters.
    let mut model = Perceptron::new(&stream, HIDDEN, longest, 100 + comm.rank() as u64)?;
    start_equal(comm, &mut model)?;
    let mut losses = Vec::new();
    let mut parameters = DefaultHasher::new();
    let mut start = 0;
    for length in BATCHES {
        losses.push(step(comm, &mut model, &samples, start..start + length, LEARNING_RATE)?);
        stream
            .clone_dtoh(&model.parameters())?
            .iter()
            .for_each(|value| value.to_bits().hash(&mut parameters));
        start += length;
    }
    // `Debug` prints as many digits as it takes to tell an `f32` from its neighbors.
    Ok(format!(
        "rank {} of {}: losses {losses:?}, parameters {:016x}",
        comm.rank(),
        comm.world_size(),
        parameters.finish()
    ))
}
