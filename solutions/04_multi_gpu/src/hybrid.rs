//! Hybrid parallelism: a mesh of GPUs, in which each row shares one model, and the rows share the batch.
//!
//! ```text
//!                    tensor rank
//!                    0     1     2
//! data rank   0      0     1     2      each row is a tensor group: together they have the model
//!             1      3     4     5      each column is a data group: replicas of one part of it
//! ```
//! Ranks of a row talk several times in a layer, ranks of a column once in a step. So a row should be where the links are
//! fastest: its ranks are neighbours.

use std::sync::Arc;

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::digits::Batch;
use lab::{Perceptron, Readable, each_rank};

/// How many ranks a mesh has in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Rows: parts that a batch is cut into. So many ranks has a data group.
    pub data: usize,
    /// Columns: parts that the model is cut into. So many ranks has a tensor group.
    pub tensor: usize,
}

/// Where a rank stands in its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Its row, and its rank in its data group.
    pub data_rank: usize,
    /// Its column, and its rank in its tensor group.
    pub tensor_rank: usize,
}

/// The two communicators of a rank. They have one stream.
pub struct Groups {
    /// With the ranks of its row.
    pub tensor: Comm,
    /// With the ranks of its column.
    pub data: Comm,
}

/// Where `rank` stands, counted row by row as in the picture.
pub fn coordinates(rank: usize, mesh: Mesh) -> Coordinates {
    // ANCHOR: coordinates
    // Find the row and the column of `rank`.
    // Which of the mesh's two numbers says how long a row is?
    Coordinates { data_rank: rank / mesh.tensor, tensor_rank: rank % mesh.tensor }
    // ANCHOR_END: coordinates
}

/// Runs `work` for each stream in a thread of its own, as module 01's `rendezvous` does, but with two communicators: those
/// of the rank's coordinates in the mesh. Returns the results in the order of ranks.
///
/// # Errors
/// There are not as many streams as places, or those of every rank that failed, each with its rank.
pub fn on_mesh<T: Send>(
    streams: &[Arc<CudaStream>],
    mesh: Mesh,
    work: impl Fn(Groups) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let (places, given) = (mesh.data * mesh.tensor, streams.len());
    ensure!(places == given, "{} × {} places, but {given} streams", mesh.data, mesh.tensor);
    let ids = |count: usize| (0..count).map(|_| Id::new().readable()).collect::<anyhow::Result<Vec<Id>>>();
    // ANCHOR: on_mesh
    // Give every rank its two communicators, and run `work` with them.
    // `ids(count)` makes so many ids: one for each group, before the threads are. How many rows are there, how many columns?
    // In each thread, bind the context; then `Comm::from_rank(stream.clone(), rank in the group, ranks in the group, id)`,
    // twice. It waits for the whole group: in which order do the ranks make the two?
    let (rows, columns) = (ids(mesh.data)?, ids(mesh.tensor)?);
    each_rank(streams.len(), |rank| {
        let (stream, Coordinates { data_rank, tensor_rank }) = (&streams[rank], coordinates(rank, mesh));
        stream.context().bind_to_thread()?;
        let tensor = Comm::from_rank(stream.clone(), tensor_rank, mesh.tensor, rows[data_rank]).readable()?;
        let data = Comm::from_rank(stream.clone(), data_rank, mesh.data, columns[tensor_rank]).readable()?;
        work(Groups { tensor, data })
    })
    // ANCHOR_END: on_mesh
}

/// Gives all rows the parameters of row 0. `model` is this rank's part of the model; before, each row has one of its own.
///
/// # Errors
/// What NCCL answers.
pub fn start_equal(groups: &Groups, model: &mut Perceptron) -> anyhow::Result<()> {
    // ANCHOR: start_equal
    // Copy row 0's part of the model to the ranks that have the same part.
    // Module 02's `broadcast(comm, buffer, root)` takes the root's rank in the communicator.
    broadcast(&groups.data, &mut model.parameters_mut(), 0)
    // ANCHOR_END: start_equal
}

/// One step of gradient descent, all ranks together. `own` are the samples of this rank's row, the same on all ranks of the
/// row, and `weight` makes the average over the rows the mean over the batch. Returns the mean loss over the whole batch.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn step(
    groups: &Groups,
    model: &mut Perceptron,
    own: &Batch<'_>,
    weight: f32,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: step
    // Forward with the sum over the row, backward, the average over the column, and the step.
    // In `lab`'s terms: `model.forward_units(own)` leaves in `model.scores_mut()` what this rank's hidden units add to the
    // scores of the classes, and `model.finish_scores()` adds the classes' biases to their sum. From there on it is
    // data_parallel's step: `backward(own, weight)`, `gradient_and_loss_mut()`, `descend(learning_rate)`, `loss()`.
    model.forward_units(own)?;
    groups.tensor.all_reduce_in_place(&mut model.scores_mut(), &ReduceOp::Sum).readable()?;
    model.finish_scores()?;
    model.backward(own, weight)?;
    average_in_place(&groups.data, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
    // ANCHOR_END: step
}
