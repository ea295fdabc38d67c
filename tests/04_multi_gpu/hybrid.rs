//! Checks for `multi_gpu/hybrid`: a mesh of ranks trains like one GPU.

mod training;

use std::cell::RefCell;
use std::sync::Arc;

use anyhow::bail;
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::digits::{CLASSES, Digits};
use lab::faults::each_call_of_all_threads_fails;
use lab::perceptron::Layout;
use lab::{Budget, Check, Expected, Perceptron, Readable, each_call_fails, ensure};

use super::tensor::part;
use super::whole_batch::{LEARNING_RATE, alone_on, to_its_end};
use crate::multi_gpu::hybrid::{Coordinates, Groups, Mesh, coordinates, on_mesh, start_equal, step};
use training::{HIDDEN, Serial, Training, seed};

/// The mesh with four ranks.
static OF_FOUR: [Mesh; 1] = [Mesh { data: 2, tensor: 2 }];
/// The meshes with six ranks, whose rows and columns differ in length.
static OF_SIX: [Mesh; 2] = [Mesh { data: 2, tensor: 3 }, Mesh { data: 3, tensor: 2 }];

pub(crate) fn checks() -> Vec<Check> {
    type Calls = &'static [&'static str];
    let of = |meshes: &'static [Mesh], name: &str, check: fn(Mesh) -> anyhow::Result<()>, calls: Calls| {
        let all = move || {
            // With wrong coordinates, ranks would wait for ranks that will never join.
            coordinates_are_counted_row_by_row()?;
            meshes.iter().copied().try_for_each(check)
        };
        Check::new(format!("hybrid::{name}"), all).calls(calls)
    };
    let of_four = |name, check, calls| of(&OF_FOUR, name, check, calls).min_ranks(4);
    let of_six = |name, check, calls| of(&OF_SIX, name, check, calls).min_ranks(6);
    vec![
        Check::new("hybrid::coordinates_are_counted_row_by_row", coordinates_are_counted_row_by_row)
            .calls(&["coordinates"]),
        of_four("each_rank_meets_its_row_and_its_column", meets_its_groups, &["on_mesh"]),
        of_six("rows_and_columns_may_differ_in_length", meets_its_groups, &["on_mesh"]),
        of_four("all_rows_start_as_row_0", rows_start_equal, &["start_equal"]),
        of_six("all_rows_of_six_start_as_row_0", rows_start_equal, &["start_equal"]),
        of_four("each_step_is_that_of_one_gpu", each_step_is_that_of_one_gpu, &["step"]),
        of_six("each_step_of_six_is_that_of_one_gpu", each_step_is_that_of_one_gpu, &["step"]),
        of_four("a_step_is_two_all_reduces", a_step_is_two_all_reduces, &[]),
        Check::new("hybrid::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// Returns the coordinates, by counting the ranks in the lesson's figure row by row.
fn true_coordinates(rank: usize, mesh: Mesh) -> Coordinates {
    let mut counted = (0..mesh.data).flat_map(|data_rank| {
        (0..mesh.tensor).map(move |tensor_rank| Coordinates { data_rank, tensor_rank })
    });
    counted.nth(rank).expect("the mesh has this rank")
}

fn coordinates_are_counted_row_by_row() -> anyhow::Result<()> {
    for (data, tensor) in [(2, 3), (3, 2), (2, 2), (1, 4), (4, 1), (3, 5)] {
        let mesh = Mesh { data, tensor };
        let transposed = Mesh { data: tensor, tensor: data };
        for rank in 0..data * tensor {
            let (got, expected) = (coordinates(rank, mesh), true_coordinates(rank, mesh));
            let swapped =
                |at: Coordinates| Coordinates { data_rank: at.tensor_rank, tensor_rank: at.data_rank };
            // Returns whether all ranks have the coordinates that a mistake leads to.
            let are = |mistake: &dyn Fn(usize) -> Coordinates| {
                (0..data * tensor).all(|rank| coordinates(rank, mesh) == mistake(rank))
            };
            let cause = if are(&|rank| swapped(true_coordinates(rank, mesh))) {
                "\n  likely cause: row and column are swapped"
            } else if are(&|rank| swapped(true_coordinates(rank, transposed))) {
                "\n  likely cause: the mesh is transposed: the ranks are numbered column by column"
            } else if are(&|rank| true_coordinates(rank, transposed)) {
                "\n  likely cause: a row has as many ranks as there are tensor ranks, not as many as there are data \
                 ranks"
            } else {
                ""
            };
            ensure!(
                got == expected,
                "coordinates({rank}, …) on a mesh of {data} × {tensor} is wrong\n  got data rank {} and tensor rank {}, expected {} and {}{cause}",
                got.data_rank,
                got.tensor_rank,
                expected.data_rank,
                expected.tensor_rank
            );
        }
    }
    Ok(())
}

/// Returns the rank whose stream the communicators use. The check itself assigned the streams.
fn true_rank(streams: &[Arc<CudaStream>], groups: &Groups) -> anyhow::Result<usize> {
    let of = |comm: &Comm| streams.iter().position(|stream| Arc::ptr_eq(stream, &comm.stream()));
    match (of(&groups.tensor), of(&groups.data)) {
        (Some(rank), Some(other)) if rank == other => Ok(rank),
        (rank, other) => {
            bail!(
                "the two communicators use the streams of ranks {rank:?} and {other:?}, expected the same stream"
            )
        }
    }
}

/// Returns the members of a communicator. Each member sends its mesh rank through NCCL.
fn members(comm: &Comm, rank: usize) -> anyhow::Result<Vec<usize>> {
    let stream = comm.stream();
    let own = stream.clone_htod(&[rank as u32])?;
    let mut all = stream.alloc_zeros::<u32>(comm.world_size())?;
    comm.all_gather(&own, &mut all).readable()?;
    let all = stream.clone_dtoh(&all)?;
    stream.synchronize()?;
    Ok(all.into_iter().map(|rank| rank as usize).collect())
}

fn meets_its_groups(mesh: Mesh) -> anyhow::Result<()> {
    let streams = lab::streams(mesh.data * mesh.tensor)?;
    let met = on_mesh(&streams, mesh, |groups| {
        let rank = true_rank(&streams, &groups)?;
        Ok((rank, members(&groups.tensor, rank)?, members(&groups.data, rank)?))
    })?;
    for (rank, (of_stream, row, column)) in met.into_iter().enumerate() {
        let told = format!("rank {rank} of {} × {}", mesh.data, mesh.tensor);
        ensure!(of_stream == rank, "{told}: its communicators use the stream of rank {of_stream}");
        let Coordinates { data_rank, tensor_rank } = true_coordinates(rank, mesh);
        let of_row: Vec<usize> = (0..mesh.tensor).map(|at| data_rank * mesh.tensor + at).collect();
        let of_column: Vec<usize> = (0..mesh.data).map(|at| at * mesh.tensor + tensor_rank).collect();
        let cause = match (row == of_column, column == of_row) {
            (true, true) => {
                "\n  likely cause: the groups are transposed: `tensor` is for the row, `data` for the column"
            }
            _ => "",
        };
        for (name, got, expected) in [("tensor", row, of_row), ("data", column, of_column)] {
            ensure!(
                got == expected,
                "{told}: its {name} group has ranks {got:?}, expected {expected:?}{cause}"
            );
        }
    }
    Ok(())
}

fn rows_start_equal(mesh: Mesh) -> anyhow::Result<()> {
    let (layout, streams) = (Layout { hidden: HIDDEN }, lab::streams(mesh.data * mesh.tensor)?);
    let starts = on_mesh(&streams, mesh, |groups| {
        let Coordinates { data_rank, tensor_rank } = true_coordinates(true_rank(&streams, &groups)?, mesh);
        let stream = groups.data.stream();
        let units = part(HIDDEN, tensor_rank, mesh.tensor);
        let mut model = Perceptron::of_units(&stream, HIDDEN, units, 1, seed(data_rank))?;
        start_equal(&groups, &mut model)?;
        let parameters = stream.clone_dtoh(&model.parameters())?;
        stream.synchronize()?;
        Ok(parameters)
    })?;
    for (rank, start) in starts.iter().enumerate() {
        let Coordinates { data_rank, tensor_rank } = true_coordinates(rank, mesh);
        let initial = |row: usize, column: usize| {
            layout.of_units(&layout.initial(seed(row)), part(HIDDEN, column, mesh.tensor))
        };
        let right = initial(0, tensor_rank);
        let mut expected = Expected::new(rank, "the model's part", &right);
        for row in 1..mesh.data {
            let cause = match row == data_rank {
                true => "these are the rank's own parameters: it received no broadcast".to_owned(),
                false => format!(
                    "these are row {row}'s parameters, but the root is row 0, which is rank 0 in each data group"
                ),
            };
            expected = expected.if_instead(&initial(row, tensor_rank), cause);
        }
        for column in (0..mesh.tensor).filter(|&column| column != tensor_rank) {
            for row in 0..mesh.data {
                let cause = format!(
                    "this is the part of the model that belongs to rank {}, in another column",
                    row * mesh.tensor + column
                );
                expected = expected.if_instead(&initial(row, column), cause);
            }
        }
        expected.exactly(start)?;
    }
    Ok(())
}

fn each_step_is_that_of_one_gpu(mesh: Mesh) -> anyhow::Result<()> {
    let training = Training::run(mesh)?;
    let serial = Serial::of(&training);
    training.compare(&serial)
}

fn a_step_is_two_all_reduces(mesh: Mesh) -> anyhow::Result<()> {
    const SAMPLES: usize = 5;
    let streams = lab::streams(mesh.data * mesh.tensor)?;
    let samples = Digits::load()?.train;
    on_mesh(&streams, mesh, |groups| {
        let Coordinates { data_rank, tensor_rank } = true_coordinates(true_rank(&streams, &groups)?, mesh);
        let stream = groups.data.stream();
        let samples = samples.to_device(&stream)?;
        let units = part(HIDDEN, tensor_rank, mesh.tensor);
        let mut model = Perceptron::of_units(&stream, HIDDEN, units, SAMPLES, seed(data_rank))?;
        let len = model.parameters().len();
        let budget = |function: &str| {
            let budget = Budget::of(function).messages(0).communicators(0).bytes_to_device(0);
            budget.streams(&[(&stream, "the stream of both communicators")])
        };
        budget("start_equal")
            .collectives(&[("Broadcast", len)])
            .kernels(0)
            .bytes_to_host(0)
            .host_waits(0)
            .spend(|| start_equal(&groups, &mut model))?;
        let own = samples.batch(data_rank * SAMPLES..(data_rank + 1) * SAMPLES)?;
        // A forward pass, a backward pass, and the step take 16 kernels.
        budget("step")
            .collectives(&[("AllReduce", SAMPLES * CLASSES), ("AllReduce", len + 1)])
            .kernels(20)
            .bytes_to_host(size_of::<f32>() as u64)
            .spend(|| step(&groups, &mut model, &own, 1.0, LEARNING_RATE))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const SAMPLES: usize = 5;
    let samples = Digits::load()?.train;
    let stream = lab::streams(1)?.remove(0);
    let samples = samples.to_device(&stream)?;
    let model = RefCell::new(Perceptron::new(&stream, HIDDEN, SAMPLES, seed(0))?);
    let alone = || anyhow::Ok(Groups { tensor: alone_on(&stream)?, data: alone_on(&stream)? });
    each_call_of_all_threads_fails("on_mesh", || {
        let streams = lab::streams(1)?;
        Ok(move || on_mesh(&streams, Mesh { data: 1, tensor: 1 }, |_| Ok(())).map(drop))
    })?;
    // A single rank may have nothing to broadcast, so one run covers both functions.
    each_call_fails("start_equal` or `step", || {
        let (groups, model, samples) = (alone()?, &model, &samples);
        Ok(move || {
            let (own, model) = (samples.batch(0..SAMPLES)?, &mut *model.borrow_mut());
            to_its_end(&groups.data, || {
                start_equal(&groups, model)?;
                step(&groups, model, &own, 1.0, LEARNING_RATE)
            })
        })
    })
}
