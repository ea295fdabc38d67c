//! Sums a buffer in one call and in three steps, on two nodes.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun};
use lab::{Expected, Readable, Timeline, irregular};
use m06_scale::hierarchical::{Groups, sum_part};
use multi_gpu::hybrid::{Mesh, on_mesh};

/// The nodes, each with half of the GPUs.
const NODES: usize = 2;

/// Sums in both ways, and shows GPU 0.
pub(crate) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let (gpus, len) = (streams.len() / NODES, 32 * 1024 * streams.len() * scale);
    let size = len * size_of::<f32>() / 1024;
    let mut drawing =
        Drawing::of_runs(format!("The sum of {size} KiB on {NODES} nodes with {gpus} GPUs each: GPU 0"));
    drawing.add_run("one call", rendezvous(streams, |comm| in_one_call(&comm, len))?);
    drawing.add_run("three steps", in_three_steps(streams, gpus, len)?);
    Ok(drawing)
}

fn in_one_call(comm: &Comm, len: usize) -> anyhow::Result<RankRun> {
    let stream = comm.stream();
    let mut buffer = stream.alloc_zeros::<f32>(len)?;
    // The first collective sets up connections.
    comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
    stream.memcpy_htod(&values(comm.rank(), len), &mut buffer)?;
    let mut timeline = Timeline::start(&stream)?;
    timeline.record(&stream, Kind::Communication, "all-reduce", || {
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()
    })?;
    let spans = timeline.spans()?;
    Ok(RankRun::new(spans, compare(comm.rank(), comm.world_size(), &stream, &buffer)))
}

fn in_three_steps(streams: &[Arc<CudaStream>], gpus: usize, len: usize) -> anyhow::Result<Vec<RankRun>> {
    on_mesh(streams, Mesh { data: NODES, tensor: gpus }, |mesh| {
        let rank = mesh.data.rank() * gpus + mesh.tensor.rank();
        let groups = Groups { node: mesh.tensor, across: mesh.data };
        let (node, stream) = (&groups.node, groups.node.stream());
        let mut buffer = stream.alloc_zeros::<f32>(len)?;
        let mut part = stream.alloc_zeros::<f32>(len / gpus)?;
        let mut timeline = Timeline::start(&stream)?;
        for is_first in [true, false] {
            // The first collectives set up connections.
            stream.memcpy_htod(&values(rank, len), &mut buffer)?;
            if !is_first {
                timeline = Timeline::start(&stream)?;
            }
            timeline.record(&stream, Kind::Communication, "sum_part", || {
                sum_part(&groups, &buffer.as_view(), &mut part.as_view_mut())
            })?;
            timeline.record(&stream, Kind::Communication, "all-gather", || {
                node.all_gather(&part, &mut buffer).readable()
            })?;
        }
        let spans = timeline.spans()?;
        Ok(RankRun::new(spans, compare(rank, streams.len(), &stream, &buffer)))
    })
}

fn values(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(rank, len)
}

/// Compares a rank's result. The values are integers, and their sum is far below 2²⁴, so nothing rounds.
fn compare(
    rank: usize,
    world_size: usize,
    stream: &Arc<CudaStream>,
    buffer: &CudaSlice<f32>,
) -> anyhow::Result<()> {
    let mut expected = vec![0.0; buffer.len()];
    for rank in 0..world_size {
        expected.iter_mut().zip(values(rank, buffer.len())).for_each(|(sum, value)| *sum += value);
    }
    let got = stream.clone_dtoh(buffer)?;
    stream.synchronize()?;
    Expected::new(rank, "the sum", &expected).exactly(&got)
}
