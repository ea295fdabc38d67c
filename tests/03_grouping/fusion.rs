//! Checks for `grouping/fusion`.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, NcclLog, each_call_fails, ensure, irregular, returns_at_once,
    without_panic, world_of_one,
};

use crate::exercise::foreign::beside_another_gpu;
use crate::exercise::open_group;
use crate::grouping::fusion::{average_each, average_fused, average_grouped, in_order};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("fusion::the_order_is_that_of_the_names", the_order_is_that_of_the_names)
            .calls(&["in_order"]),
        Check::new("fusion::a_group_averages_each_tensor", || averages("average_grouped", average_grouped))
            .calls(&["average_grouped"]),
        Check::new("fusion::a_flat_buffer_averages_each_tensor", || averages("average_fused", average_fused))
            .calls(&["average_fused"]),
        Check::new("fusion::ranks_agree_on_the_order", ranks_agree_on_the_order)
            .calls(&["in_order"])
            .min_ranks(2),
        Check::new(
            "fusion::a_group_is_launched_whole_or_not_at_all",
            a_group_is_launched_whole_or_not_at_all,
        )
        .calls(&["average_grouped"])
        .min_ranks(2),
        Check::new("fusion::a_group_makes_the_same_calls", || {
            calls("average_grouped", average_grouped, false)
        })
        .calls(&["average_grouped"])
        .min_ranks(2),
        Check::new("fusion::a_flat_buffer_makes_one_call", || calls("average_fused", average_fused, true))
            .calls(&["average_fused"])
            .min_ranks(2),
        Check::new("fusion::no_way_waits_on_the_host", no_way_waits_on_the_host)
            .calls(&["average_grouped", "average_fused"])
            .min_ranks(2),
        Check::new("fusion::names_may_differ_by_case_alone", names_may_differ_by_case_alone)
            .calls(&["in_order"]),
        Check::new("fusion::packing_takes_one_buffer", packing_takes_one_buffer)
            .calls(&["average_grouped", "average_fused"]),
        Check::new("fusion::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["average_grouped", "average_fused"]),
    ]
}

/// A function that averages tensors.
type Average = fn(&Comm, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>;

/// Odd lengths in no particular order, including a single element.
const LENGTHS: [usize; 5] = [37, 1, 1031, 300, 5];

/// Returns a rank's values for a tensor.
fn input(rank: usize, tensor: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * rank + tensor, len)
}

/// Returns the sum of a tensor's inputs over all ranks.
fn added(world_size: usize, tensor: usize, len: usize) -> Vec<f32> {
    let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, tensor, len)).collect();
    (0..len).map(|index| inputs.iter().map(|input| input[index]).sum()).collect()
}

/// Compares a tensor, whose length is one of these, with the average over all ranks.
fn compare(
    (rank, world_size): (usize, usize),
    (tensor, lengths): (usize, &[usize]),
    name: &str,
    got: &[f32],
) -> anyhow::Result<()> {
    let len = lengths[tensor];
    let divided =
        |values: &[f32]| -> Vec<f32> { values.iter().map(|value| value / world_size as f32).collect() };
    let total = added(world_size, tensor, len);
    let average = divided(&total);
    let twice = divided(&average);
    let flat = lengths.iter().enumerate().flat_map(|(tensor, &len)| divided(&added(world_size, tensor, len)));
    let front: Vec<f32> = flat.take(len).collect();
    // As in `group`: 1/n and each of the n products round by 2⁻²⁴, relative to at most 1000/n. Then n − 1 sums of at
    // most 1000 round, and so does the expected value.
    let bound = 1000.0 * (2.0 + world_size as f64) * f64::powi(2.0, -24);
    Expected::new(rank, name, &average)
        .if_instead(
            &input(rank, tensor, len),
            "these are the rank's own values: no average was written to this tensor",
        )
        .if_instead(
            &front,
            "these are the averages at the start of the flat buffer, but each tensor has its own offset",
        )
        .if_instead(&total, "this is the sum over all ranks, not divided by their number")
        .if_instead(&twice, "this was divided twice by the number of ranks")
        .within(bound, got)
}

fn the_order_is_that_of_the_names() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    for count in [0, 1, 12] {
        // Tensor i has i + 1 elements. Two-digit numbers sort in the same order as text.
        let mut tensors: HashMap<String, CudaSlice<f32>> = HashMap::new();
        for index in 0..count {
            tensors.insert(format!("layer_{index:02}"), stream.alloc_zeros(index + 1)?);
        }
        let of_the_map: Vec<usize> = tensors.values().map(CudaSlice::len).collect();
        let found: Vec<usize> = in_order(&mut tensors).iter().map(|view| view.len()).collect();
        let expected: Vec<usize> = (1..=count).collect();
        ensure!(
            found == expected,
            "in_order returned {count} tensors in the wrong order\n  expected lengths {expected:?}, sorted by name, \
             got {found:?}{}",
            match found == of_the_map {
                true => "\n  likely cause: this is the map's order, which differs from rank to rank",
                false => "",
            }
        );
    }
    Ok(())
}

/// Averages the tensors on each rank of each world. Each tensor's buffer has guards around it.
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
                let text =
                    format!("tensor {tensor} of {}, after {name} on {world_size} ranks,", LENGTHS.len());
                compare((rank, world_size), (tensor, &LENGTHS), &text, &buffer.read()?)
            })
        })?;
    }
    Ok(())
}

/// Tensors of equal length, so that only their names differ.
const EQUAL: [usize; 12] = [37; 12];

fn name(tensor: usize) -> String {
    format!("layer_{tensor:02}")
}

fn named(stream: &Arc<CudaStream>, rank: usize) -> anyhow::Result<HashMap<String, CudaSlice<f32>>> {
    (0..EQUAL.len())
        .map(|tensor| Ok((name(tensor), stream.clone_htod(&input(rank, tensor, EQUAL[tensor]))?)))
        .collect()
}

/// Returns the name of the rank's tensor that has these values.
fn found(rank: usize, values: &[f32]) -> String {
    let tensor = (0..EQUAL.len()).find(|&tensor| input(rank, tensor, EQUAL[tensor]) == values);
    tensor.map_or_else(|| "not one of this rank's tensors".to_owned(), |tensor| format!("`{}`", name(tensor)))
}

fn ranks_agree_on_the_order() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let ranks = rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let mut tensors = named(&stream, rank)?;
            let of_the_map: Vec<String> = tensors.keys().map(|name| format!("`{name}`")).collect();
            let mut views = in_order(&mut tensors);
            let order = views.iter().map(|view| Ok(found(rank, &stream.clone_dtoh(view)?)));
            let order = order.collect::<anyhow::Result<Vec<String>>>()?;
            // Only the order is under test here, so a function that is given averages the tensors.
            average_each(&comm, &mut views)?;
            stream.synchronize()?;
            let averages = (0..EQUAL.len()).map(|tensor| Ok(stream.clone_dtoh(&tensors[&name(tensor)])?));
            let by_the_map = order == of_the_map;
            Ok((order, averages.collect::<anyhow::Result<Vec<_>>>()?, by_the_map))
        })?;
        for (rank, (order, _, by_the_map)) in ranks.iter().enumerate() {
            for (place, (own, of_rank_0)) in order.iter().zip(&ranks[0].0).enumerate() {
                ensure!(
                    own == of_rank_0,
                    "rank {rank} of {world_size}: tensor {place} from in_order is {own}, but on rank 0 it is \
                     {of_rank_0}, so the two are averaged with each other{}",
                    match *by_the_map && ranks[0].2 {
                        true => {
                            "\n  likely cause: both are in their map's order, which differs from rank to rank. All \
                             tensors here have the same length, so only their names tell them apart"
                        }
                        false => "",
                    }
                );
            }
        }
        for (rank, (_, averages, _)) in ranks.iter().enumerate() {
            for (tensor, got) in averages.iter().enumerate() {
                let text = format!("tensor `{}`, on {world_size} ranks that share one order,", name(tensor));
                compare((rank, world_size), (tensor, &EQUAL), &text, got)?;
            }
        }
    }
    Ok(())
}

/// Checks a group in which each rank's last tensor is on another rank's GPU.
fn a_group_is_launched_whole_or_not_at_all() -> anyhow::Result<()> {
    let check = |comm: &Comm, other: &Arc<CudaStream>| {
        let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let values = input(rank, 0, LENGTHS[0]);
        let mut own = Guarded::new(&stream, &values)?;
        let mut foreign = Guarded::new(other, &values)?;
        stream.context().bind_to_thread()?;
        let result = without_panic("average_grouped with a tensor on another GPU", || {
            average_grouped(comm, &mut [own.view_mut(), foreign.view_mut()])
        })?;
        let left = |happened: &'static str| {
            move || open_group::after("an average_grouped that NCCL rejected", happened)
        };
        stream.synchronize().with_context(left("the rank's stream failed"))?;
        ensure!(
            result.is_err(),
            "rank {rank}: a tensor is on another GPU, but average_grouped returned Ok; expected an error from a call \
             or from the end of the group"
        );
        let got = own.read()?;
        let averaged = compare((rank, world_size), (0, &LENGTHS), "the tensor", &got).is_ok();
        let name = "a tensor in a group in which another tensor was rejected";
        Expected::new(rank, name, &values).exactly(&got).context(match averaged {
            true => {
                "a group in which a call fails launches none of its calls, but here the first call was launched: the \
                 calls are not in one group"
            }
            false => "a group in which a call fails launches none of its calls",
        })?;
        average_grouped(comm, &mut [own.view_mut()])?;
        let name = format!("a tensor that was rejected once and then averaged over {world_size} ranks,");
        compare((rank, world_size), (0, &LENGTHS), &name, &own.read()?)
            .with_context(left("the next average_grouped failed"))
    };
    // SAFETY: the check has not started any other threads yet.
    unsafe { beside_another_gpu(check) }
}

/// Compares the calls in NCCL's own log with those made by `average_each`.
fn calls(name: &str, average: Average, in_one: bool) -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
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
            "average_each made {} calls for {} tensors on {world_size} ranks; expected {}, one per tensor and rank",
            each.len(),
            LENGTHS.len(),
            world_size * LENGTHS.len()
        );
        let found = made(average)?;
        let elements: usize = LENGTHS.iter().sum();
        let expected = if in_one { vec![elements; world_size] } else { each };
        ensure!(
            found == expected,
            "{name} averaged {} tensors, with {elements} elements in all, on {world_size} ranks with {} calls on \
             {found:?} elements; expected {} calls on {expected:?}",
            LENGTHS.len(),
            found.len(),
            expected.len()
        );
    }
    Ok(())
}

fn no_way_waits_on_the_host() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let tensors = LENGTHS.iter().map(|&len| Ok(stream.alloc_zeros::<f32>(len)?));
        let mut tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
        let mut views: Vec<_> = tensors.iter_mut().map(CudaSlice::as_view_mut).collect();
        let mut at_once =
            |name: &str, average: Average| returns_at_once(name, &stream, || average(&comm, &mut views));
        let grouped = at_once("average_grouped", average_grouped);
        grouped.and(at_once("average_fused", average_fused))
    })?;
    Ok(())
}

/// Each map has a different order, like the maps on two ranks.
fn names_may_differ_by_case_alone() -> anyhow::Result<()> {
    const NAMES: [&str; 8] = ["w", "W", "wA", "Wa", "wa", "WA", "b", "B"];
    let stream = lab::streams(1)?.remove(0);
    let mut expected = NAMES;
    expected.sort_unstable();
    for _ in 0..4 {
        // The tensor with name i has i + 1 elements.
        let tensors = NAMES.iter().enumerate();
        let tensors = tensors.map(|(index, name)| Ok(((*name).to_owned(), stream.alloc_zeros(index + 1)?)));
        let mut tensors = tensors.collect::<anyhow::Result<HashMap<String, CudaSlice<f32>>>>()?;
        let found: Vec<&str> = in_order(&mut tensors).iter().map(|view| NAMES[view.len() - 1]).collect();
        ensure!(
            found == expected,
            "in_order returned tensors whose names differ only by case in the order {found:?}, expected {expected:?}: \
             sort by nothing but the names, and compare them without any changes. If two names compare as equal, \
             their order is the map's, which differs from rank to rank"
        );
    }
    Ok(())
}

fn packing_takes_one_buffer() -> anyhow::Result<()> {
    let elements: usize = LENGTHS.iter().sum();
    let tensors = LENGTHS.len() as u64;
    rendezvous(&lab::streams(1)?, |comm| {
        let stream = comm.stream();
        let slices = LENGTHS.iter().map(|&len| Ok(stream.alloc_zeros::<f32>(len)?));
        let mut slices = slices.collect::<anyhow::Result<Vec<_>>>()?;
        let mut views: Vec<_> = slices.iter_mut().map(CudaSlice::as_view_mut).collect();
        let budget = |function: &str| {
            let budget = Budget::of(function).messages(0).kernels(0).new_streams(0).host_waits(0).polls(0);
            budget.communicators(0).stream_of(&comm)
        };
        let each: Vec<_> = LENGTHS.iter().map(|&len| ("AllReduce", len)).collect();
        let grouped = budget("average_grouped").collectives(&each).copies(0).fills(0).allocations(0);
        grouped.spend(|| average_grouped(&comm, &mut views))?;
        // A second flat buffer may receive the averages.
        let fused = budget("average_fused").collectives(&[("AllReduce", elements)]).copies(2 * tensors + 1);
        let fused = fused.fills(2).allocations(2).bytes_to_host(0);
        fused.spend(|| average_fused(&comm, &mut views))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    for (function, average) in
        [("average_grouped", average_grouped as Average), ("average_fused", average_fused)]
    {
        each_call_fails(function, || {
            let comm = world_of_one()?;
            let stream = comm.stream();
            let (mut one, mut other) = (stream.alloc_zeros::<f32>(37)?, stream.alloc_zeros::<f32>(5)?);
            Ok(move || {
                average(&comm, &mut [one.as_view_mut(), other.as_view_mut()])?;
                Ok(comm.stream().synchronize()?)
            })
        })?;
    }
    Ok(())
}
