// mistake: all rows have one id, as if a row were the same communicator as the next one
// fails: hybrid::each_rank_meets_its_row_and_its_column
// says: each communicator an id of its own

use std::sync::Arc;

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use collectives::broadcast::broadcast;
use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::digits::Batch;
use lab::{Perceptron, Readable, each_rank};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    pub data: usize,
    pub tensor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    pub data_rank: usize,
    pub tensor_rank: usize,
}

pub struct Groups {
    pub tensor: Comm,
    pub data: Comm,
}

pub fn coordinates(rank: usize, mesh: Mesh) -> Coordinates {
    Coordinates { data_rank: rank / mesh.tensor, tensor_rank: rank % mesh.tensor }
}

pub fn on_mesh<T: Send>(
    streams: &[Arc<CudaStream>],
    mesh: Mesh,
    work: impl Fn(Groups) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let (places, given) = (mesh.data * mesh.tensor, streams.len());
    ensure!(places == given, "{} × {} places, but {given} streams", mesh.data, mesh.tensor);
    let ids = |count: usize| (0..count).map(|_| Id::new().readable()).collect::<anyhow::Result<Vec<Id>>>();
    let (row, columns) = (ids(1)?[0], ids(mesh.tensor)?);
    each_rank(streams.len(), |rank| {
        let (stream, Coordinates { data_rank, tensor_rank }) = (&streams[rank], coordinates(rank, mesh));
        stream.context().bind_to_thread()?;
        let tensor = Comm::from_rank(stream.clone(), tensor_rank, mesh.tensor, row).readable()?;
        let data = Comm::from_rank(stream.clone(), data_rank, mesh.data, columns[tensor_rank]).readable()?;
        work(Groups { tensor, data })
    })
}

pub fn start_equal(groups: &Groups, model: &mut Perceptron) -> anyhow::Result<()> {
    broadcast(&groups.data, &mut model.parameters_mut(), 0)
}

pub fn step(
    groups: &Groups,
    model: &mut Perceptron,
    own: &Batch<'_>,
    weight: f32,
    learning_rate: f32,
) -> anyhow::Result<f32> {
    model.forward_units(own)?;
    groups.tensor.all_reduce_in_place(&mut model.scores_mut(), &ReduceOp::Sum).readable()?;
    model.finish_scores()?;
    model.backward(own, weight)?;
    average_in_place(&groups.data, &mut model.gradient_and_loss_mut())?;
    model.descend(learning_rate)?;
    model.loss()
}
