//! Checks for `scale/experts`: each token gets what its expert makes of it, as if one GPU had all experts.
//!
//! Tokens are integers, and an expert multiplies them by an integer and adds another one to each column. So all numbers are
//! exact, and every token, column, and expert leads to different ones.

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::compare::Element;
use lab::kernels::Matrix;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular, random::SplitMix64,
    returns_at_once, world_of_one,
};

use super::in_flight::to_its_end;
use crate::scale::experts::{Route, arriving, exchange, forward, route};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("experts::parts_of_any_length_arrive", parts_of_any_length_arrive)
            .calls(&["exchange"])
            .min_ranks(2),
        Check::new("experts::each_rank_knows_what_arrives", each_rank_knows_what_arrives)
            .calls(&["arriving"])
            .min_ranks(2),
        Check::new("experts::each_token_goes_through_its_expert", each_token_goes_through_its_expert)
            .calls(&["forward"])
            .min_ranks(2),
        Check::new("experts::one_rank_is_a_world_too", one_rank_is_a_world_too).calls(&["forward"]),
        Check::new("experts::an_exchange_returns_at_once", an_exchange_returns_at_once)
            .calls(&["exchange"])
            .min_ranks(2),
        Check::new("experts::tokens_are_exchanged_twice_and_counts_once", tokens_are_exchanged_twice)
            .min_ranks(3),
        Check::new("experts::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["exchange", "arriving", "forward"]),
    ]
}

/// The numbers of elements in a token: one, a few, and more than a warp has threads.
const WIDTHS: [usize; 3] = [1, 5, 37];

/// A way to choose experts, by the number of tokens on a rank and their choices.
struct Routing {
    name: &'static str,
    /// Takes a rank and the number of ranks.
    choices: fn(usize, usize) -> Vec<usize>,
}

/// Returns choices without a pattern, for a number of tokens that differs from rank to rank.
fn irregular_choices(rank: usize, world_size: usize) -> Vec<usize> {
    let mut random = SplitMix64::new(17 + rank as u64);
    (0..11 + 6 * rank).map(|_| random.below(world_size)).collect()
}

/// Some routings leave ranks without tokens to send, or without tokens that arrive.
const ROUTINGS: [Routing; 6] = [
    Routing { name: "tokens choose any expert", choices: irregular_choices },
    Routing { name: "all tokens choose rank 0's expert", choices: |rank, _| vec![0; 5 + rank] },
    Routing { name: "all tokens choose the last rank's expert", choices: |rank, n| vec![n - 1; 7 - rank] },
    Routing {
        name: "only rank 1 has tokens",
        choices: |rank, n| {
            if rank == 1 { (0..2 * n + 1).map(|token| (token * 3 + 1) % n).collect() } else { Vec::new() }
        },
    },
    Routing {
        name: "all tokens choose the next rank's expert",
        choices: |rank, n| vec![(rank + 1) % n; 1 + 2 * rank],
    },
    Routing { name: "no rank has tokens", choices: |_, _| Vec::new() },
];

impl Routing {
    /// Returns the number of tokens that `from` has for each rank.
    fn counts(&self, from: usize, world_size: usize) -> Vec<usize> {
        let choices = (self.choices)(from, world_size);
        (0..world_size).map(|to| choices.iter().filter(|&&choice| choice == to).count()).collect()
    }
}

/// Formats a number of ranks.
fn ranks_of(world_size: usize) -> String {
    format!("{world_size} rank{}", if world_size == 1 { "" } else { "s" })
}

fn worlds() -> impl Iterator<Item = usize> {
    lab::world_sizes().into_iter().filter(|&size| size >= 2)
}

/// Returns the part of `from` for `to`, in which all elements of all parts differ.
fn part<T>(from: usize, to: usize, len: usize, element: fn(f32) -> T) -> Vec<T> {
    irregular::integers(10 * from + to, len).into_iter().map(element).collect()
}

fn parts_of_any_length_arrive() -> anyhow::Result<()> {
    for world_size in worlds() {
        for routing in &ROUTINGS {
            for width in WIDTHS {
                parts_arrive(world_size, routing, width, |value| value)?;
            }
        }
        parts_arrive(world_size, &ROUTINGS[0], 3, |value| (value + 2000.0) as u64)?;
    }
    Ok(())
}

fn parts_arrive<T>(
    world_size: usize,
    routing: &Routing,
    width: usize,
    element: fn(f32) -> T,
) -> anyhow::Result<()>
where
    T: Element + cudarc::driver::DeviceRepr + cudarc::nccl::NcclType + Send,
{
    let sent = |from: usize| routing.counts(from, world_size);
    let parts = |pairs: &mut dyn Iterator<Item = (usize, usize)>| -> Vec<T> {
        pairs.flat_map(|(from, to)| part(from, to, sent(from)[to] * width, element)).collect()
    };
    let to_all = |rank: usize| parts(&mut (0..world_size).map(|to| (rank, to)));
    let from_all = |rank: usize| parts(&mut (0..world_size).map(|from| (from, rank)));
    let stale = |rank: usize, len: usize| part(100 + rank, 0, len, element);
    let ranks = rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let received: Vec<usize> = (0..world_size).map(|from| sent(from)[rank]).collect();
        let outgoing = Guarded::new(&stream, &to_all(rank))?;
        let mut incoming = Guarded::new(&stream, &stale(rank, from_all(rank).len()))?;
        exchange(&comm, &outgoing.view(), &sent(rank), &mut incoming.view_mut(), &received, width)?;
        Ok((incoming.read()?, outgoing.read()?))
    })?;
    for (rank, (got, outgoing)) in ranks.iter().enumerate() {
        let right = from_all(rank);
        let name = format!("{} on {}: what arrived, in rows of {width},", routing.name, ranks_of(world_size));
        let starts = |counts: &dyn Fn(usize) -> usize, of: usize| (0..of).map(counts).sum::<usize>();
        let without_own: Vec<T> = {
            let start = width * starts(&|from| sent(from)[rank], rank);
            let mut values = right.clone();
            let own = start..start + width * sent(rank)[rank];
            values[own.clone()].copy_from_slice(&stale(rank, right.len())[own]);
            values
        };
        let elements: Vec<T> = {
            let mut values = stale(rank, right.len());
            for from in 0..world_size {
                let (start, len) = (starts(&|to| sent(from)[to], rank), sent(from)[rank]);
                let at = starts(&|from| sent(from)[rank], from);
                values[at..at + len].copy_from_slice(&to_all(from)[start..start + len]);
            }
            values
        };
        Expected::new(rank, &name, &right)
            .if_instead(&stale(rank, right.len()), "it holds its old values: nothing was received")
            .if_instead(&without_own, "the rank's own part is missing: a rank also has a part for itself")
            .if_instead(&elements, format!("the counts are those of rows, and each row has {width} elements"))
            .exactly(got)?;
        Expected::new(rank, "the buffer that is sent", &to_all(rank)).exactly(outgoing)?;
    }
    Ok(())
}

fn each_rank_knows_what_arrives() -> anyhow::Result<()> {
    for world_size in worlds() {
        for routing in &ROUTINGS {
            let ranks = rendezvous(&lab::streams(world_size)?, |comm| {
                arriving(&comm, &routing.counts(comm.rank(), world_size))
            })?;
            for (rank, got) in ranks.into_iter().enumerate() {
                let right: Vec<usize> =
                    (0..world_size).map(|from| routing.counts(from, world_size)[rank]).collect();
                let cause = match got == routing.counts(rank, world_size) {
                    true => {
                        "\n  these are the numbers of tokens that this rank sends, not of those that arrive"
                    }
                    false => "",
                };
                ensure!(
                    got == right,
                    "rank {rank} of {world_size}: {}: `arriving` returned {got:?}; expected {right:?}{cause}",
                    routing.name
                );
            }
        }
    }
    Ok(())
}

/// Returns a rank's tokens.
fn tokens(rank: usize, count: usize, width: usize) -> Vec<f32> {
    irregular::integers(rank, count * width)
}

/// Returns what an expert adds to a column.
fn bias(expert: usize, column: usize) -> f32 {
    (1000 * (expert + 1) + 7 * column) as f32
}

/// Returns what an expert makes of a token.
fn on_host(expert: usize, token: &[f32]) -> Vec<f32> {
    token
        .iter()
        .enumerate()
        .map(|(column, value)| value * (expert + 2) as f32 + bias(expert, column))
        .collect()
}

/// Replaces tokens on a GPU with what an expert makes of them.
fn on_gpu(
    expert: usize,
    comm: &Comm,
    kernels: &Kernels,
    width: usize,
    tokens: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let stream = comm.stream();
    let biases: Vec<f32> = (0..width).map(|column| bias(expert, column)).collect();
    let (biases, rows) = (stream.clone_htod(&biases)?, tokens.len() / width);
    kernels.scale(&stream, tokens, (expert + 2) as f32)?;
    kernels.add_bias(&stream, tokens, &biases, Matrix { rows, columns: width })
}

fn each_token_goes_through_its_expert() -> anyhow::Result<()> {
    for world_size in worlds() {
        for routing in &ROUTINGS {
            for width in WIDTHS {
                outputs_are_right(world_size, routing, width)?;
            }
        }
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    for routing in [&ROUTINGS[0], &ROUTINGS[5]] {
        outputs_are_right(1, routing, 5)?;
    }
    Ok(())
}

fn outputs_are_right(world_size: usize, routing: &Routing, width: usize) -> anyhow::Result<()> {
    let stale = |rank: usize, len: usize| irregular::integers(1000 + rank, len);
    let ranks = rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(stream.context())?;
        let choices = (routing.choices)(rank, world_size);
        let own = Guarded::new(&stream, &tokens(rank, choices.len(), width))?;
        let mut output = Guarded::new(&stream, &stale(rank, choices.len() * width))?;
        let (mut calls, mut rows) = (0, 0);
        let expert = |tokens: &mut CudaViewMut<f32>| {
            (calls, rows) = (calls + 1, tokens.len() / width);
            on_gpu(rank, &comm, &kernels, width, tokens)
        };
        forward(&comm, &kernels, &own.view(), &choices, width, expert, &mut output.view_mut())?;
        Ok((calls, rows, output.read()?, own.read()?))
    })?;
    for (rank, (calls, rows, output, own)) in ranks.iter().enumerate() {
        compare_output(world_size, routing, width, rank, output)?;
        let arrived: usize = (0..world_size).map(|from| routing.counts(from, world_size)[rank]).sum();
        let of = format!("rank {rank} of {world_size}: {}", routing.name);
        ensure!(*calls == 1, "{of}: the expert was called {calls} times, expected once, even without tokens");
        ensure!(
            *rows == arrived,
            "{of}: the expert got {rows} tokens, expected {arrived}: nothing is padded"
        );
        let before = tokens(rank, own.len() / width, width);
        Expected::new(rank, "`tokens`, which must not change,", &before).exactly(own)?;
    }
    Ok(())
}

fn compare_output(
    world_size: usize,
    routing: &Routing,
    width: usize,
    rank: usize,
    output: &[f32],
) -> anyhow::Result<()> {
    let choices = (routing.choices)(rank, world_size);
    let own = tokens(rank, choices.len(), width);
    let rows: Vec<&[f32]> = own.chunks_exact(width).collect();
    let experts = |expert: &dyn Fn(usize) -> usize| -> Vec<Vec<f32>> {
        rows.iter().enumerate().map(|(token, row)| on_host(expert(token), row)).collect()
    };
    let right = experts(&|token| choices[token]);
    let Route { order, .. } = route(&choices, world_size);
    let in_order =
        |rows: &[Vec<f32>]| order.iter().map(|&token| rows[token as usize].clone()).collect::<Vec<_>>();
    // What happens to a token that is sent in another token's place.
    let place = |token: usize| order[token] as usize;
    let unordered: Vec<Vec<f32>> =
        rows.iter().enumerate().map(|(at, row)| on_host(choices[place(at)], row)).collect();
    let mut ordered_only_after = unordered.clone();
    unordered.iter().enumerate().for_each(|(at, row)| ordered_only_after[place(at)].clone_from(row));
    let name = format!("{} on {}: the output, in rows of {width},", routing.name, ranks_of(world_size));
    Expected::new(rank, &name, &right.concat())
        .if_instead(
            &irregular::integers(1000 + rank, output.len()),
            "it holds its old values: nothing was written",
        )
        .if_instead(&own, "these are the tokens as they were: no expert has changed them")
        .if_instead(
            &in_order(&right).concat(),
            "the rows are in the order of their experts: put them back in the order of the tokens",
        )
        .if_instead(
            &in_order(&in_order(&right)).concat(),
            "the rows were ordered by their experts twice: on the way back, the order must be reversed",
        )
        .if_instead(
            &experts(&|token| choices[place(place(token))]).concat(),
            "`scatter_rows` came before the exchanges, and `gather_rows` after them; it is the other way round",
        )
        .if_instead(
            &unordered.concat(),
            "the tokens were sent in their own order: put them in the order of their experts first",
        )
        .if_instead(
            &ordered_only_after.concat(),
            "the tokens were sent in their own order: put them in the order of their experts first",
        )
        .if_instead(
            &experts(&|_| rank).concat(),
            "all tokens went through the expert of their own rank: send them to the rank that they chose",
        )
        .exactly(output)
}

fn an_exchange_returns_at_once() -> anyhow::Result<()> {
    const WIDTH: usize = 5;
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let sent = ROUTINGS[0].counts(rank, 2);
        let received = [ROUTINGS[0].counts(0, 2)[rank], ROUTINGS[0].counts(1, 2)[rank]];
        let outgoing = stream.alloc_zeros::<f32>(sent.iter().sum::<usize>() * WIDTH)?;
        let mut incoming = stream.alloc_zeros::<f32>(received.iter().sum::<usize>() * WIDTH)?;
        returns_at_once("exchange", &stream, || {
            exchange(&comm, &outgoing.as_view(), &sent, &mut incoming.as_view_mut(), &received, WIDTH)
        })
    })?;
    Ok(())
}

fn tokens_are_exchanged_twice() -> anyhow::Result<()> {
    const WIDTH: usize = 5;
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, stream, world_size) = (comm.rank(), comm.stream(), comm.world_size());
        let kernels = Kernels::load(stream.context())?;
        let choices = irregular_choices(rank, world_size);
        let sent = choices.len();
        let arrived: usize = (0..world_size).map(|from| ROUTINGS[0].counts(from, world_size)[rank]).sum();
        let own = stream.clone_htod(&tokens(rank, sent, WIDTH))?;
        let mut output = stream.alloc_zeros::<f32>(sent * WIDTH)?;
        let expert = |tokens: &mut CudaViewMut<f32>| on_gpu(rank, &comm, &kernels, WIDTH, tokens);
        // An all-gather may exchange the counts, too. Two kernels order the tokens, and the expert has two.
        Budget::of("forward")
            .messages(3 * 2 * world_size as u64)
            .groups(3)
            .any_collectives(1)
            .bytes_to_nccl((8 * world_size + 4 * (sent + arrived) * WIDTH) as u64)
            .host_waits(1)
            .polls(0)
            .waits_for_values()
            .kernels(4)
            .bytes_to_host((world_size * world_size * size_of::<u64>()) as u64)
            .communicators(0)
            .stream_of(&comm)
            .spend(|| {
                forward(&comm, &kernels, &own.as_view(), &choices, WIDTH, expert, &mut output.as_view_mut())
            })?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    const TOKENS: usize = 7;
    const WIDTH: usize = 5;
    let counts = [TOKENS];
    each_call_fails("exchange", || {
        let comm = world_of_one()?;
        let outgoing = comm.stream().alloc_zeros::<f32>(TOKENS * WIDTH)?;
        let mut incoming = comm.stream().alloc_zeros::<f32>(TOKENS * WIDTH)?;
        Ok(move || {
            to_its_end(&comm, || {
                exchange(&comm, &outgoing.as_view(), &counts, &mut incoming.as_view_mut(), &counts, WIDTH)
            })
        })
    })?;
    each_call_fails("arriving", || {
        let comm = world_of_one()?;
        Ok(move || to_its_end(&comm, || arriving(&comm, &counts)))
    })?;
    each_call_fails("forward", || {
        let comm = world_of_one()?;
        let kernels = Kernels::load(comm.stream().context())?;
        let own = comm.stream().alloc_zeros::<f32>(TOKENS * WIDTH)?;
        let mut output = comm.stream().alloc_zeros::<f32>(TOKENS * WIDTH)?;
        Ok(move || {
            let expert = |tokens: &mut CudaViewMut<f32>| on_gpu(0, &comm, &kernels, WIDTH, tokens);
            to_its_end(&comm, || {
                forward(
                    &comm,
                    &kernels,
                    &own.as_view(),
                    &[0; TOKENS],
                    WIDTH,
                    expert,
                    &mut output.as_view_mut(),
                )
            })
        })
    })
}
