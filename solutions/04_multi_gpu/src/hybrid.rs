//! Hybrid parallelism: a mesh of GPUs. The ranks in a row share one model, and the rows share the batch.
//!
//! ```text
//!                    tensor rank
//!                    0     1     2
//! data rank   0      0     1     2      a row is a tensor group: together, its ranks have the model
//!             1      3     4     5      a column is a data group: replicas of one part of the model
//! ```

use std::sync::Arc;

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::digits::Batch;
use lab::{Perceptron, Readable, each_rank};

/// The number of ranks in each direction of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The number of rows. Each row processes one part of the batch. A data group has this many ranks.
    pub data: usize,
    /// The number of columns. Each column has one part of the model. A tensor group has this many ranks.
    pub tensor: usize,
}

/// The position of a rank in its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// The row, which is the rank's number in its data group.
    pub data_rank: usize,
    /// The column, which is the rank's number in its tensor group.
    pub tensor_rank: usize,
}

/// A rank's two communicators. They share one stream.
pub struct Groups {
    /// Connects the ranks in its row.
    pub tensor: Comm,
    /// Connects the ranks in its column.
    pub data: Comm,
}

/// Returns the position of `rank` in the mesh. Ranks are numbered row by row, as in the figure.
pub fn coordinates(rank: usize, mesh: Mesh) -> Coordinates {
    // ANCHOR: coordinates
    // Find the row and the column of `rank`:
    // 1. ranks are numbered along one row, and then along the next;
    // 2. it is also correct for meshes that are not square.
    Coordinates { data_rank: rank / mesh.tensor, tensor_rank: rank % mesh.tensor }
    // ANCHOR_END: coordinates
}

/// Runs `work` for each stream in its own thread, with the two communicators for its position in the mesh. Returns the
/// results in rank order.
///
/// # Errors
/// Fails if the number of streams differs from the number of ranks in the mesh. Otherwise, returns the errors from all
/// ranks that failed, each with its rank.
pub fn on_mesh<T: Send>(
    streams: &[Arc<CudaStream>],
    mesh: Mesh,
    work: impl Fn(Groups) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let (places, given) = (mesh.data * mesh.tensor, streams.len());
    ensure!(places == given, "a mesh of {} × {} ranks, but {given} streams", mesh.data, mesh.tensor);
    let ids = |count: usize| (0..count).map(|_| Id::new().readable()).collect::<anyhow::Result<Vec<Id>>>();
    // ANCHOR: on_mesh
    // Give every rank its two communicators, and run `work` with them:
    // 1. `tensor` connects the ranks in a row, and `data` connects the ranks in a column;
    // 2. a rank's numbers within its groups are its coordinates;
    // 3. no two groups share an id;
    // 4. on any mesh, ranks never wait for each other in a cycle.
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

/// Gives row 0's parameters to all rows. `model` is this rank's part of the model. Every rank must call it. Returns
/// without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL.
pub fn start_equal(groups: &Groups, model: &mut Perceptron) -> anyhow::Result<()> {
    // ANCHOR: start_equal
    // Copy row 0's parts of the model to all rows:
    // 1. each rank gets the part with its own hidden units;
    // 2. it is also correct for meshes that are not square;
    // 3. one collective is enough.
    broadcast(&groups.data, &mut model.parameters_mut(), 0)
    // ANCHOR_END: start_equal
}

/// Makes one step of gradient descent, jointly with all other ranks. `own` contains the samples for this rank's row,
/// which are the same on all ranks in the row. The caller chooses `weight` for the backward pass so that the average over the rows
/// equals the mean over the batch; it already takes the number of rows into account. Returns the mean loss over the entire batch in nats.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn step(
    groups: &Groups,
    model: &mut Perceptron,
    own: &Batch<'_>,
    weight: f32,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    // ANCHOR: step
    // Make the step that one GPU would make with the whole batch:
    // 1. forward: a row computes the same scores as the entire model would, with the classes' biases added once;
    // 2. backward as in `data_parallel`, for this rank's part of the model;
    // 3. the average is taken over the ranks that have the same part of the model;
    // 4. two collectives: one for the scores, and one for the gradient and the loss.
    model.forward_units(own)?;
    groups.tensor.all_reduce_in_place(&mut model.scores_mut(), &ReduceOp::Sum).readable()?;
    model.finish_scores()?;
    model.backward(own, weight)?;
    average_in_place(&groups.data, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
    // ANCHOR_END: step
}
