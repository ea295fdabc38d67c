//! Checks of `grouping/fusion`.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{Check, Expected, Guarded, NcclLog, irregular};

use crate::grouping::fusion::{average_each, average_fused, average_grouped, in_order};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("fusion::the_order_is_that_of_the_names", the_order_is_that_of_the_names),
        Check::new("fusion::a_group_averages_each_tensor", || averages("average_grouped", average_grouped)),
        Check::new("fusion::a_flat_buffer_averages_each_tensor", || averages("average_fused", average_fused)),
        Check::new("fusion::ranks_agree_on_the_order", ranks_agree_on_the_order).min_ranks(2),
        Check::new("fusion::a_group_makes_the_same_calls", || {
            calls("average_grouped", average_grouped, false)
        })
        .min_ranks(2),
        Check::new("fusion::a_flat_buffer_makes_one_call", || calls("average_fused", average_fused, true))
            .min_ranks(2),
    ]
}

/// One of the ways to average.
type Average = fn(&Comm, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>;

/// Odd lengths, one element among them, not in the order of size.
const LENGTHS: [usize; 5] = [37, 1, 1031, 300, 5];

/// What a rank has in a tensor.
fn input(rank: usize, tensor: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * rank + tensor, len)
}

/// Compares a tensor with the average over all ranks.
fn compare(rank: usize, world_size: usize, tensor: usize, name: &str, got: &[f32]) -> anyhow::Result<()> {
    let len = got.len();
    let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, tensor, len)).collect();
    let total: Vec<f32> = (0..len).map(|index| inputs.iter().map(|input| input[index]).sum()).collect();
    let average: Vec<f32> = total.iter().map(|value| value / world_size as f32).collect();
    let twice: Vec<f32> = average.iter().map(|value| value / world_size as f32).collect();
    // As in `group`: 1/n and each product round by 2⁻²⁴, relative to at most 1000/n, n times over; then n − 1 sums of at
    // most 1000, and the expected value's own rounding.
    let bound = 1000.0 * (2.0 + world_size as f64) * f64::powi(2.0, -24);
    Expected::new(rank, name, &average)
        .if_instead(
            &inputs[rank],
            "these are the rank's own values: nothing was averaged, or the averages never came back from the flat buffer",
        )
        .if_instead(&total, "this is the sum of all ranks, not divided by their number")
        .if_instead(&twice, "this was divided by the number of ranks twice")
        .within(bound, got)
}

fn the_order_is_that_of_the_names() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    for count in [0, 1, 12] {
        // The i-th name has i + 1 elements. Two digits: as text and as numbers, they come in one order.
        let mut tensors: HashMap<String, CudaSlice<f32>> = HashMap::new();
        for index in 0..count {
            tensors.insert(format!("layer_{index:02}"), stream.alloc_zeros(index + 1)?);
        }
        let found: Vec<usize> = in_order(&mut tensors).iter().map(|view| view.len()).collect();
        let expected: Vec<usize> = (1..=count).collect();
        ensure!(
            found == expected,
            "{count} tensors, of 1, 2, … elements in the order of their names, came with lengths {found:?}\n  likely cause: \
             this is the order of the map, which is another one on each rank"
        );
    }
    Ok(())
}

/// Averages on each rank of each world, each tensor in a guarded buffer.
fn averages(name: &str, average: Average) -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let buffers = LENGTHS.iter().enumerate();
            let mut buffers = buffers
                .map(|(tensor, &len)| Guarded::new(&stream, &input(rank, tensor, len)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            let mut views: Vec<_> = buffers.iter_mut().map(Guarded::view_mut).collect();
            average(&comm, &mut views)?;
            stream.synchronize()?;
            buffers.iter().enumerate().try_for_each(|(tensor, buffer)| {
                let text = format!("tensor {tensor} of {}, after {name}, {world_size} ranks,", LENGTHS.len());
                compare(rank, world_size, tensor, &text, &buffer.read()?)
            })
        })?;
    }
    Ok(())
}

/// Tensors of equal length: nothing but their names tells them apart.
fn named(stream: &Arc<CudaStream>, rank: usize) -> anyhow::Result<HashMap<String, CudaSlice<f32>>> {
    (0..12)
        .map(|tensor| Ok((format!("layer_{tensor:02}"), stream.clone_htod(&input(rank, tensor, 37))?)))
        .collect()
}

fn ranks_agree_on_the_order() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let mut tensors = named(&stream, rank)?;
            average_fused(&comm, &mut in_order(&mut tensors))?;
            stream.synchronize()?;
            (0..tensors.len()).try_for_each(|tensor| {
                let name = format!("layer_{tensor:02}");
                let got = stream.clone_dtoh(&tensors[&name])?;
                compare(rank, world_size, tensor, &format!("tensor `{name}` of {world_size} ranks"), &got)
            })
        })?;
    }
    Ok(())
}

/// Compares the calls that NCCL itself counts with those of `average_each`.
fn calls(name: &str, average: Average, in_one: bool) -> anyhow::Result<()> {
    // SAFETY: the check's other threads are not there yet.
    let log = unsafe { NcclLog::open() };
    let mut seen = 0;
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let mut made = |average: Average| -> anyhow::Result<Vec<usize>> {
            rendezvous(&lab::streams(world_size)?, |comm| {
                let stream = comm.stream();
                let tensors = LENGTHS.iter().map(|&len| Ok(stream.alloc_zeros::<f32>(len)?));
                let mut tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
                let mut views: Vec<_> = tensors.iter_mut().map(CudaSlice::as_view_mut).collect();
                average(&comm, &mut views)?;
                Ok(stream.synchronize()?)
            })?;
            let all = log.calls("AllReduce")?;
            let mut new = all[seen..].to_vec();
            seen = all.len();
            new.sort_unstable();
            Ok(new)
        };
        let each = made(average_each)?;
        ensure!(
            each.len() == world_size * LENGTHS.len(),
            "average_each made {} calls for {} tensors on {world_size} ranks: are they counted?",
            each.len(),
            LENGTHS.len()
        );
        let found = made(average)?;
        let elements: usize = LENGTHS.iter().sum();
        let expected = if in_one { vec![elements; world_size] } else { each };
        ensure!(
            found == expected,
            "{name} averaged {} tensors of {elements} elements in all, on {world_size} ranks, with {} calls of {found:?} \
             elements; expected {} calls of {expected:?}",
            LENGTHS.len(),
            found.len(),
            expected.len()
        );
    }
    Ok(())
}
