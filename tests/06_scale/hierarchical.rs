//! Checks for `scale/hierarchical`: a sum in steps is the sum over all ranks, bit for bit.
//!
//! The nodes are groups of GPUs on one machine: whose link is slow changes only the time. All values are integers, whose
//! sums are exact in any order.

use std::sync::Arc;

use anyhow::{Context, bail};
use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id, ReduceOp};
use multi_gpu::hybrid::{Mesh, on_mesh};

use collectives::bandwidth::{Operation, measure};
use lab::{
    Budget, Check, Expected, Guarded, Readable, each_call_fails, ensure, irregular, returns_at_once,
    without_panic,
};

use super::in_flight::to_its_end;
use crate::scale::hierarchical::{Groups, sum, sum_part};

/// Machines with four ranks or fewer.
static OF_FOUR: [Machine; 4] =
    [Machine::new(2, 2), Machine::new(1, 2), Machine::new(2, 1), Machine::new(1, 1)];
/// The machines with six ranks, where the number of nodes differs from the number of GPUs in a node.
static OF_SIX: [Machine; 2] = [Machine::new(2, 3), Machine::new(3, 2)];

pub(crate) fn checks() -> Vec<Check> {
    type Calls = &'static [&'static str];
    let on =
        |machines: &'static [Machine], name: &str, check: fn(Machine) -> anyhow::Result<()>, calls: Calls| {
            Check::new(name, move || machines.iter().copied().try_for_each(check)).calls(calls)
        };
    let on_four = |name, check, calls| on(&OF_FOUR, name, check, calls).min_ranks(4);
    let on_six = |name, check, calls| on(&OF_SIX, name, check, calls).min_ranks(6);
    vec![
        on_four("hierarchical::each_gpu_gets_its_part_of_the_sum", each_gpu_gets_its_part, &["sum_part"]),
        on_six(
            "hierarchical::each_gpu_of_six_gets_its_part_of_the_sum",
            each_gpu_gets_its_part,
            &["sum_part"],
        ),
        Check::new("hierarchical::a_send_buffer_of_another_length_is_an_error", another_length_is_an_error)
            .calls(&["sum_part"])
            .min_ranks(2),
        on_four("hierarchical::every_rank_gets_the_sum", every_rank_gets_the_sum, &["sum"]),
        on_six("hierarchical::every_rank_of_six_gets_the_sum", every_rank_gets_the_sum, &["sum"]),
        on_six("hierarchical::only_parts_cross_the_network", only_parts_cross_the_network, &[]),
        Check::new("hierarchical::both_return_at_once", both_return_at_once)
            .calls(&["sum_part", "sum"])
            .min_ranks(2),
        on_six("hierarchical::a_sum_takes_as_long_as_its_steps", a_sum_takes_as_long_as_its_steps, &["sum"])
            .measures_time(),
        Check::new("hierarchical::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["sum_part", "sum"]),
    ]
}

/// A number of nodes, and the number of GPUs in each.
#[derive(Clone, Copy)]
struct Machine {
    nodes: usize,
    per_node: usize,
}

/// A rank's position.
#[derive(Clone, Copy)]
struct Place {
    node: usize,
    gpu: usize,
}

impl Machine {
    const fn new(nodes: usize, per_node: usize) -> Self {
        Self { nodes, per_node }
    }

    fn ranks(self) -> usize {
        self.nodes * self.per_node
    }

    fn place(self, rank: usize) -> Place {
        Place { node: rank / self.per_node, gpu: rank % self.per_node }
    }

    /// Runs `work` on each rank. Returns the results in rank order.
    fn run<T: Send>(
        self,
        work: impl Fn(&Groups, usize, &Arc<CudaStream>) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let streams = lab::streams(self.ranks())?;
        on_mesh(&streams, Mesh { data: self.nodes, tensor: self.per_node }, |mesh| {
            let stream = mesh.tensor.stream();
            let rank = mesh.data.rank() * self.per_node + mesh.tensor.rank();
            work(&Groups { node: mesh.tensor, across: mesh.data }, rank, &stream)
        })
    }

    /// Returns the sum of the values of all ranks that `is_included` accepts.
    fn sum_of(self, len: usize, is_included: impl Fn(Place) -> bool) -> Vec<f32> {
        let mut total = vec![0.0; len];
        for rank in (0..self.ranks()).filter(|&rank| is_included(self.place(rank))) {
            for (total, value) in total.iter_mut().zip(values(rank, len)) {
                *total += value;
            }
        }
        total
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let Self { nodes, per_node } = *self;
        write!(f, "{nodes} node{} with {per_node} GPU{}", plural(nodes), plural(per_node))
    }
}

/// Returns the values that a rank contributes.
fn values(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(rank, len)
}

/// Returns the initial values of a rank's receive buffer.
fn stale(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(1000 + rank, len)
}

fn each_gpu_gets_its_part(machine: Machine) -> anyhow::Result<()> {
    for part_len in [1, 37, 1031] {
        let len = part_len * machine.per_node;
        let ranks = machine.run(|groups, rank, stream| {
            let send = Guarded::new(stream, &values(rank, len))?;
            let mut part = Guarded::new(stream, &stale(rank, part_len))?;
            sum_part(groups, &send.view(), &mut part.view_mut())?;
            Ok((part.read()?, send.read()?))
        })?;
        for (rank, (got, send)) in ranks.iter().enumerate() {
            compare_part(machine, part_len, rank, got)?;
            Expected::new(rank, "the buffer that is sent", &values(rank, len)).exactly(send)?;
        }
    }
    Ok(())
}

fn compare_part(machine: Machine, part_len: usize, rank: usize, got: &[f32]) -> anyhow::Result<()> {
    let (len, Place { node, gpu }) = (part_len * machine.per_node, machine.place(rank));
    let part = |whole: Vec<f32>, of: usize| whole[of * part_len..(of + 1) * part_len].to_vec();
    let right = part(machine.sum_of(len, |_| true), gpu);
    let name = format!("on {machine}, the part of {len} elements on GPU {gpu} of node {node}");
    let mut expected = Expected::new(rank, &name, &right)
        .if_instead(&stale(rank, part_len), "it holds its old values: nothing was written")
        .if_instead(&part(values(rank, len), gpu), "these are the rank's own values: nothing was summed");
    for of in (0..machine.per_node).filter(|&of| of != gpu) {
        let swapped = if of == node { ": are the communicators swapped?" } else { "" };
        let cause = format!("this is part {of} of the sum, but GPU {gpu} of a node gets part {gpu}{swapped}");
        expected = expected.if_instead(&part(machine.sum_of(len, |_| true), of), cause);
    }
    if machine.nodes > 1 {
        expected = expected.if_instead(
            &part(machine.sum_of(len, |place| place.node == node), gpu),
            format!("this is the sum over node {node} alone: the nodes' sums were not summed"),
        );
    }
    if machine.per_node > 1 {
        expected = expected.if_instead(
            &part(machine.sum_of(len, |place| place.gpu == gpu), gpu),
            format!("this is the sum over GPU {gpu} of each node: the GPUs of a node were not summed"),
        );
    }
    for divisor in [machine.ranks(), machine.per_node, machine.nodes] {
        let average: Vec<f32> = right.iter().map(|value| value / divisor as f32).collect();
        expected = expected
            .if_instead(&average, format!("this is the sum divided by {divisor}: it must not be an average"));
    }
    expected.exactly(got)
}

fn another_length_is_an_error() -> anyhow::Result<()> {
    const PART: usize = 37;
    let machine = Machine::new(1, 2);
    machine.run(|groups, rank, stream| {
        // A machine of one node has the same lengths; only a sum over the wrong communicator would accept the first.
        for len in [PART, 2 * PART - 1, 2 * PART + 1] {
            let send = Guarded::new(stream, &values(rank, len))?;
            let mut part = Guarded::new(stream, &stale(rank, PART))?;
            let call = format!("`sum_part` of {len} elements, with a part of {PART} elements on {machine},");
            let mut refused =
                || without_panic(&call, || sum_part(groups, &send.view(), &mut part.view_mut()));
            let result = refused()?;
            let Err(error) = result else { bail!("rank {rank}: {call} returned Ok; expected an error") };
            let text = format!("{error:#}");
            for number in [len, 2 * PART] {
                ensure!(
                    text.contains(&number.to_string()),
                    "rank {rank}: the error from {call} must contain {number}; got: {text}"
                );
            }
            let budget = Budget::of("sum_part").case("with wrong lengths").any_collectives(0);
            budget.spend(|| Ok(refused()?.is_err()))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// The lengths of a buffer: for each number of GPUs in a node, some are multiples of it and some are not, and some are smaller.
const LENGTHS: [usize; 7] = [60, 61, 1031, 5, 2, 1, 0];

fn every_rank_gets_the_sum(machine: Machine) -> anyhow::Result<()> {
    for len in LENGTHS {
        let ranks = machine.run(|groups, rank, stream| {
            let mut buffer = Guarded::new(stream, &values(rank, len))?;
            sum(groups, &mut buffer.view_mut())
                .with_context(|| format!("on {machine}, with {len} elements"))?;
            buffer.read()
        })?;
        for (rank, got) in ranks.iter().enumerate() {
            compare_sum(machine, len, rank, got)?;
        }
    }
    Ok(())
}

fn compare_sum(machine: Machine, len: usize, rank: usize, got: &[f32]) -> anyhow::Result<()> {
    let Place { node, gpu } = machine.place(rank);
    let part_len = len / machine.per_node;
    let equal = part_len * machine.per_node;
    let own = values(rank, len);
    let of_node = machine.sum_of(len, |place| place.node == node);
    let of_column = machine.sum_of(len, |place| place.gpu == gpu);
    let right = machine.sum_of(len, |_| true);
    // Combines the sum of the equal parts with other values of the remainder.
    let with_rest = |rest: &[f32]| [&right[..equal], &rest[equal..]].concat();
    let only_part = |of: usize| {
        let mut values = own.clone();
        values[of * part_len..(of + 1) * part_len]
            .copy_from_slice(&right[of * part_len..(of + 1) * part_len]);
        values
    };
    let name = format!("on {machine}, the buffer of {len} elements on GPU {gpu} of node {node}");
    let mut expected = Expected::new(rank, &name, &right)
        .if_instead(&own, "these are the rank's own values: nothing was summed");
    if part_len > 0 {
        expected = expected.if_instead(
            &only_part(gpu),
            "only this GPU's own part is summed: the node's GPUs must exchange their parts at the end",
        );
        // On all nodes, this GPU has the same part.
        if machine.nodes >= machine.per_node {
            let own_part = &right[gpu * part_len..(gpu + 1) * part_len];
            expected = expected.if_instead(
                &[&own_part.repeat(machine.per_node), &right[equal..]].concat(),
                "each part is that of this GPU: the parts were gathered between the nodes, not inside the node",
            );
        }
    }
    let rest = len - equal;
    let are = if rest == 1 {
        "element, the remainder of the division, is"
    } else {
        "elements, the remainder of the division, are"
    };
    expected = expected.if_instead(&with_rest(&own), format!("the last {rest} {are} not summed"));
    if machine.nodes > 1 {
        expected = expected
            .if_instead(
                &of_node,
                format!("this is the sum over node {node} alone: the nodes' sums were not summed"),
            )
            .if_instead(&with_rest(&of_node), format!("the last {rest} {are} summed only inside the node"));
    }
    if machine.per_node > 1 {
        expected = expected
            .if_instead(
                &of_column,
                format!("this is the sum over GPU {gpu} of each node: the GPUs of a node were not summed"),
            )
            .if_instead(
                &with_rest(&of_column),
                format!("the last {rest} {are} summed only between the nodes"),
            );
    }
    expected.exactly(got)
}

/// Returns the budget of both functions.
fn budget(function: &str, stream: &Arc<CudaStream>) -> Budget {
    let budget =
        Budget::of(function).messages(0).communicators(0).kernels(0).bytes_to_device(0).bytes_to_host(0);
    budget.host_waits(0).streams(&[(stream, "the stream of both communicators")])
}

fn only_parts_cross_the_network(machine: Machine) -> anyhow::Result<()> {
    const PART: usize = 37;
    let (len, rest) = (PART * machine.per_node, machine.per_node - 1);
    machine.run(|groups, rank, stream| {
        let send = stream.clone_htod(&values(rank, len))?;
        let mut part = stream.alloc_zeros::<f32>(PART)?;
        budget("sum_part", stream)
            .collectives(&[("ReduceScatter", PART), ("AllReduce", PART)])
            .bytes_on_device(0)
            .spend(|| sum_part(groups, &send.as_view(), &mut part.as_view_mut()))?;
        let mut buffer = stream.clone_htod(&values(rank, len))?;
        let steps = [("ReduceScatter", PART), ("AllReduce", PART), ("AllGather", PART)];
        // Collectives of no elements do nothing.
        let with_empty = [&steps[..], &[("AllReduce", 0), ("AllReduce", 0)]].concat();
        budget("sum", stream)
            .collectives(&steps)
            .or_collectives(&with_empty)
            .bytes_on_device(0)
            .allocations(1)
            .spend(|| sum(groups, &mut buffer.as_view_mut()))?;
        let mut longer = stream.clone_htod(&values(rank, len + rest))?;
        // The remainder may take three steps too, in a copy with room for one element for each GPU.
        let bytes = 3 * (PART + machine.per_node) * size_of::<f32>();
        budget("sum", stream)
            .case("of a buffer with a remainder")
            .any_collectives(6)
            .bytes_to_nccl(bytes as u64)
            .bytes_on_device((2 * rest * size_of::<f32>()) as u64)
            .allocations(3)
            .spend(|| sum(groups, &mut longer.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn both_return_at_once() -> anyhow::Result<()> {
    const PART: usize = 37;
    Machine::new(1, 2).run(|groups, rank, stream| {
        let send = Guarded::new(stream, &values(rank, 2 * PART))?;
        let mut part = Guarded::new(stream, &stale(rank, PART))?;
        returns_at_once("sum_part", stream, || sum_part(groups, &send.view(), &mut part.view_mut()))?;
        let mut buffer = Guarded::new(stream, &values(rank, 2 * PART + 1))?;
        returns_at_once("sum", stream, || sum(groups, &mut buffer.view_mut()))
    })?;
    Ok(())
}

/// Compares the time of a sum with that of its steps, which are measured one by one, with or without a fill of the part.
/// Modeled times must match within 3%: the formula leaves out the microseconds that launches take. Other work can slow a
/// real GPU down.
fn a_sum_takes_as_long_as_its_steps(machine: Machine) -> anyhow::Result<()> {
    const PART: usize = 8192;
    const WITHIN: f64 = 0.03;
    let times = machine.run(|groups, rank, stream| {
        let Groups { node, across } = groups;
        let mut whole = stream.clone_htod(&values(rank, PART * machine.per_node))?;
        let mut part = stream.alloc_zeros::<f32>(PART)?;
        let time = |launch: &mut dyn FnMut() -> anyhow::Result<()>| {
            // The row's bandwidths are not used.
            anyhow::Ok(measure(stream, Operation::AllReduce, 1, 1, launch)?.microseconds)
        };
        let steps = [
            time(&mut || node.reduce_scatter(&whole, &mut part, &ReduceOp::Sum).readable().map(drop))?,
            time(&mut || across.all_reduce_in_place(&mut part, &ReduceOp::Sum).readable().map(drop))?,
            time(&mut || node.all_gather(&part, &mut whole).readable().map(drop))?,
        ];
        let fill = time(&mut || Ok(stream.memset_zeros(&mut part)?))?;
        let together = time(&mut || sum(groups, &mut whole.as_view_mut()))?;
        Ok((steps, fill, together))
    })?;
    if !lab::tier::times_are_modeled() {
        return Ok(());
    }
    for (rank, (steps, fill, together)) in times.iter().enumerate() {
        let formula: f64 = steps.iter().sum();
        let [scatter, across, gather] = steps;
        let possible = (1.0 - WITHIN) * formula..(1.0 + WITHIN) * (formula + fill);
        ensure!(
            possible.contains(together),
            "rank {rank}: on {machine}, `sum` took {together:.1} µs; expected {formula:.1} µs: {scatter:.1} for the \
             reduce-scatter inside the node, {across:.1} for the all-reduce of a part between the nodes, and {gather:.1} \
             for the all-gather; {fill:.1} for a fill of a part are also accepted"
        );
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const LEN: usize = 37;
    let stream = lab::streams(1)?.remove(0);
    let alone = || {
        stream.context().bind_to_thread()?;
        Comm::from_rank(stream.clone(), 0, 1, Id::new().readable()?).readable()
    };
    let groups = || anyhow::Ok(Groups { node: alone()?, across: alone()? });
    each_call_fails("sum_part", || {
        let (groups, send) = (groups()?, stream.alloc_zeros::<f32>(LEN)?);
        let mut part = stream.alloc_zeros::<f32>(LEN)?;
        Ok(move || to_its_end(&groups.node, || sum_part(&groups, &send.as_view(), &mut part.as_view_mut())))
    })?;
    each_call_fails("sum", || {
        let (groups, mut buffer) = (groups()?, stream.alloc_zeros::<f32>(LEN)?);
        Ok(move || to_its_end(&groups.node, || sum(&groups, &mut buffer.as_view_mut())))
    })
}
