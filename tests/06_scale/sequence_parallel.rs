//! Checks for `scale/sequence_parallel`: a block whose ranks divide the tokens computes what one GPU does.
//!
//! The values of each token are chosen so that its norm is exact: multiples of ½ up to 2. Weights are integers up to 9,
//! and half of all elements are dropped, so the factor of the others is 2. Every sum in any order is below 2²⁴ halves,
//! so all comparisons are exact.

use cudarc::driver::sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::kernels::Dropout;
use lab::{
    Budget, Check, Expected, Guarded, MemoryPool, Mlp, Weights, each_call_fails, ensure, irregular,
    returns_at_once, world_of_one,
};
use multi_gpu::tensor_forward::{column_shard, mlp as tensor_parallel, row_shard};

use crate::scale::sequence_parallel::{Block, Sequence};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("sequence_parallel::a_rank_keeps_its_own_tokens", a_rank_keeps_its_own_tokens)
            .calls(&["Block::new"])
            .min_ranks(2),
        Check::new("sequence_parallel::the_norm_is_that_of_the_own_tokens", norm_of_the_own_tokens)
            .calls(&["Block::enter"])
            .min_ranks(2),
        Check::new("sequence_parallel::the_block_is_that_of_one_gpu", the_block_is_that_of_one_gpu)
            .calls(&["Block::forward"])
            .min_ranks(2),
        Check::new("sequence_parallel::it_equals_tensor_parallelism", it_equals_tensor_parallelism)
            .calls(&["Block::forward"])
            .min_ranks(2),
        Check::new("sequence_parallel::one_rank_is_a_world_too", || on_all_ranks(1, compare_output))
            .calls(&["Block::forward"]),
        Check::new("sequence_parallel::the_host_does_not_wait", the_host_does_not_wait)
            .calls(&["Block::forward"])
            .min_ranks(2),
        Check::new("sequence_parallel::the_bytes_are_those_of_one_all_reduce", bytes_of_one_all_reduce)
            .min_ranks(2),
        Check::new("sequence_parallel::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const WIDTH: usize = 12;
const HIDDEN: usize = 29;
/// The tokens of each rank.
const OWN: usize = 5;
const DROPOUT: Dropout = Dropout { seed: 11, probability: 0.5 };

/// One rank in a check, and the whole block.
struct Case<'a> {
    comm: &'a Comm,
    first: Weights,
    second: Weights,
    /// All tokens.
    tokens: Vec<f32>,
}

/// Runs `check` on every rank of a world.
fn on_all_ranks(
    world_size: usize,
    check: impl Fn(&Case<'_>) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| check(&Case::new(&comm, OWN)))?;
    Ok(())
}

impl<'a> Case<'a> {
    fn new(comm: &'a Comm, own: usize) -> Self {
        Self {
            first: layer(0, WIDTH, HIDDEN),
            second: layer(1, HIDDEN, WIDTH),
            tokens: tokens(own * comm.world_size()),
            comm,
        }
    }

    /// Returns this rank's hidden units. The ranks' parts differ in length.
    fn units(&self) -> std::ops::Range<usize> {
        let cut = |rank: usize| HIDDEN * rank / self.comm.world_size();
        cut(self.comm.rank())..cut(self.comm.rank() + 1)
    }

    /// Returns this rank's elements of values for all tokens.
    fn own<'v>(&self, values: &'v [f32]) -> &'v [f32] {
        let len = values.len() / self.comm.world_size();
        &values[self.comm.rank() * len..(self.comm.rank() + 1) * len]
    }

    /// Returns this rank's part of the two layers.
    fn mlp(&self) -> anyhow::Result<Mlp> {
        let (first, second) =
            (column_shard(&self.first, self.units()), row_shard(&self.second, self.units()));
        Mlp::new(&self.comm.stream(), &first, &second, self.tokens.len() / WIDTH)
    }

    fn block(&self) -> anyhow::Result<Block> {
        let sequence = Sequence { tokens: self.tokens.len() / WIDTH, width: WIDTH };
        Block::new(&self.comm.stream(), sequence, self.comm.world_size(), self.mlp()?, DROPOUT)
    }

    /// Runs the block, and returns it and the output for this rank's tokens.
    fn run(&self) -> anyhow::Result<(Block, Vec<f32>)> {
        let stream = self.comm.stream();
        let mut block = self.block()?;
        let tokens = Guarded::new(&stream, self.own(&self.tokens))?;
        let mut output =
            Guarded::new(&stream, &irregular::integers(500 + self.comm.rank(), tokens.view().len()))?;
        block.forward(self.comm, &tokens.view(), &mut output.view_mut())?;
        let output = output.read()?;
        let name = "the buffer of tokens, which the block must only read,";
        Expected::new(self.comm.rank(), name, self.own(&self.tokens)).exactly(&tokens.read()?)?;
        Ok((block, output))
    }

    /// Returns the output of the two layers for all tokens. Adds the second layer's bias `biases` times, where 1 is right.
    fn layers(&self, biases: usize) -> Vec<f32> {
        self.layers_of(&normed(&self.tokens), biases)
    }

    fn layers_of(&self, input: &[f32], biases: usize) -> Vec<f32> {
        let hidden: Vec<f32> =
            linear(&self.first, input, 1).into_iter().map(|value| value.max(0.0)).collect();
        linear(&self.second, &hidden, biases)
    }
}

/// Returns a layer of integers that differ for each seed.
fn layer(seed: usize, inputs: usize, outputs: usize) -> Weights {
    let mut weights = irregular::small_integers(1000 + seed, (inputs + 1) * outputs);
    let bias = weights.split_off(inputs * outputs);
    Weights { inputs, outputs, weights, bias }
}

/// Returns tokens whose norm is exact. The squares of 1, 1, 1, 1, 2, and 4 have a mean of 4. Each token has these values
/// twice, in a random order, with random signs, and times a number from 16 to 63. Next to that number's square, the small
/// constant that the norm adds is rounded away.
fn tokens(count: usize) -> Vec<f32> {
    let mut random = lab::random::SplitMix64::new(77);
    (0..count)
        .flat_map(|_| {
            let factor = (16 + random.below(48)) as f32;
            let mut values = [1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0_f32];
            random.shuffle(&mut values);
            values.map(|value| if random.below(2) == 0 { factor * value } else { -factor * value })
        })
        .collect()
}

/// Returns the norm of each token.
fn normed(tokens: &[f32]) -> Vec<f32> {
    let of_token = |token: &[f32]| {
        let squares: f32 = token.iter().map(|value| value * value).sum();
        let root = (squares / WIDTH as f32).sqrt();
        token.iter().map(|value| value / root).collect::<Vec<_>>()
    };
    tokens.chunks_exact(WIDTH).flat_map(of_token).collect()
}

/// Computes `input · weights`, and adds the bias `biases` times.
fn linear(layer: &Weights, input: &[f32], biases: usize) -> Vec<f32> {
    let Weights { inputs, outputs, weights, bias } = layer;
    let of_row = |row: &[f32]| -> Vec<f32> {
        let sum = |column: usize| (0..*inputs).map(|i| row[i] * weights[i * outputs + column]).sum::<f32>();
        (0..*outputs).map(|column| sum(column) + biases as f32 * bias[column]).collect()
    };
    input.chunks_exact(*inputs).flat_map(of_row).collect()
}

/// Applies dropout to part of a sequence that starts at element `first` of the whole.
fn dropped(values: &[f32], first: usize) -> Vec<f32> {
    let mask = DROPOUT.mask(first + values.len());
    let of = |(value, &drops): (&f32, &bool)| if drops { 0.0 } else { DROPOUT.factor() * value };
    values.iter().zip(&mask[first..]).map(of).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn a_rank_keeps_its_own_tokens() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case| {
            let (rank, block) = (case.comm.rank(), case.block()?);
            let (whole, len) = (case.tokens.len(), block.normed.len());
            ensure!(
                len == OWN * WIDTH,
                "rank {rank} of {world_size}: `normed` has {len} elements, expected {}: {OWN} tokens of {WIDTH} values{}",
                OWN * WIDTH,
                match world_size > 1 && len == whole {
                    true =>
                        "\n  likely cause: it has room for all tokens, but a rank keeps the norm of its own",
                    false => "",
                }
            );
            Ok(())
        })?;
    }
    memory_is_divided()
}

/// Compares the memory of a block with many tokens, without its layers, with its two buffers.
fn memory_is_divided() -> anyhow::Result<()> {
    const TOKENS: usize = 1 << 14;
    let sequence = Sequence { tokens: TOKENS, width: WIDTH };
    rendezvous(&lab::streams(2)?, |comm| {
        let (case, stream) = (Case::new(&comm, OWN), comm.stream());
        let mlp = case.mlp()?;
        let pool = MemoryPool::of_gpu(stream.context().ordinal())?;
        stream.synchronize()?;
        let before = pool.figure(USED)?;
        let _block = Block::new(&stream, sequence, comm.world_size(), mlp, DROPOUT)?;
        stream.synchronize()?;
        let whole = (TOKENS * WIDTH * size_of::<f32>()) as f64;
        let used = (pool.figure(USED)? - before) as f64 / whole;
        // A pool rounds up each allocation by far less than that.
        ensure!(
            (used - 1.5).abs() < 0.1,
            "rank {}: with world size 2, the block allocates {used:.2} times the memory of all tokens, expected 1.50: all tokens in \
             `scratch`, and this rank's half in `normed`",
            comm.rank()
        );
        Ok(())
    })?;
    Ok(())
}

fn norm_of_the_own_tokens() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case| {
            let (block, _) = case.run()?;
            let stream = case.comm.stream();
            let got = stream.clone_dtoh(&block.normed)?;
            stream.synchronize()?;
            let whole = normed(&case.tokens);
            let right = case.own(&whole);
            Expected::new(case.comm.rank(), "`normed` after `forward`", right)
                .if_instead(case.own(&case.tokens), "these are the tokens, without the norm")
                .if_instead(&vec![0.0; right.len()], "it was never written")
                .if_instead(&whole[..right.len()], "these are rank 0's tokens")
                .exactly(&got)
        })?;
    }
    Ok(())
}

fn the_block_is_that_of_one_gpu() -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(|world_size| on_all_ranks(world_size, compare_output))
}

/// Compares the output with that of one GPU, and with the outputs that known mistakes lead to.
fn compare_output(case: &Case<'_>) -> anyhow::Result<()> {
    let (rank, world_size) = (case.comm.rank(), case.comm.world_size());
    let (_, got) = case.run()?;
    let tokens = case.own(&case.tokens);
    let all = case.layers(1);
    let layers = case.own(&all);
    let first = rank * layers.len();
    let right = sum(&dropped(layers, first), tokens);
    let biased = |times: usize| case.own(&case.layers(times)).to_vec();
    let with_bias = |values: &[f32]| -> Vec<f32> {
        values.iter().enumerate().map(|(index, value)| value + case.second.bias[index % WIDTH]).collect()
    };
    let norm_of_all_ranks: Vec<f32> =
        case.own(&normed(&case.tokens)).iter().map(|value| world_size as f32 * value).collect();
    let name = format!("the output with world size {world_size}");
    let mut expected = Expected::new(rank, &name, &right)
        .if_instead(&dropped(layers, first), "the tokens are not added")
        .if_instead(&sum(layers, tokens), "nothing is dropped")
        .if_instead(
            &dropped(&sum(layers, tokens), first),
            "the tokens were added before dropout, so some of their elements are dropped",
        )
        .if_instead(
            &sum(&dropped(layers, first), case.own(&normed(&case.tokens))),
            "the norm was added instead of the tokens",
        )
        .if_instead(
            &sum(&dropped(case.own(&case.layers_of(&case.tokens, 1)), first), tokens),
            "the layers got the tokens without the norm",
        )
        .if_instead(
            &sum(&dropped(case.own(&case.layers_of(&vec![0.0; case.tokens.len()], 1)), first), tokens),
            "the layers got zeros for these tokens: their norm was computed after `scratch` was filled, or was not gathered",
        )
        .if_instead(&sum(&dropped(&biased(0), first), tokens), "the bias is missing")
        .if_instead(
            &sum(&with_bias(&dropped(&biased(0), first)), tokens),
            "the bias was added after dropout, but it is part of what is dropped",
        )
        .if_instead(
            &sum(&dropped(&with_bias(&norm_of_all_ranks), first), tokens),
            "`scratch` still held the norm when it was summed: first multiply by the second layer",
        );
    // With two ranks, a bias that each rank adds before the sum has the same effect.
    if world_size != 2 {
        expected = expected.if_instead(&sum(&dropped(&biased(2), first), tokens), "the bias was added twice");
    }
    if world_size > 1 {
        let of_rank = |rank: usize| sum(&dropped(&all[rank * layers.len()..][..layers.len()], first), tokens);
        let averaged: Vec<f32> = case.layers(0).iter().map(|value| value / world_size as f32).collect();
        expected = expected
            .if_instead(
                &sum(&dropped(&biased(world_size), first), tokens),
                "each rank added the bias before the sum, so it counts once per rank",
            )
            .if_instead(
                &sum(&dropped(&with_bias(case.own(&averaged)), first), tokens),
                "the ranks' products were averaged, but the product over all rows is their sum",
            );
        if rank > 0 {
            let local = |first: usize| sum(&dropped(layers, first), tokens);
            expected = expected
                .if_instead(&local(0), "each rank drops the same elements as rank 0: the index of an element counts from the start of the sequence")
                .if_instead(&local(rank * OWN), "the index of the first element counts elements, not tokens")
                .if_instead(&local(rank), "the index of the first element counts elements, not ranks")
                .if_instead(&of_rank(0), "these are rank 0's tokens");
        }
    }
    let is_masked = |((got, layers), token): ((&f32, &f32), &f32)| {
        [0.0, DROPOUT.factor() * layers].contains(&(got - token))
    };
    if got.iter().zip(layers).zip(tokens).all(is_masked) {
        expected = expected.if_instead(&got, "other elements are dropped than on one GPU");
    }
    expected.exactly(&got)
}

/// Compares the block with module 04's layers, on the same GPUs, with all tokens on each of them.
fn it_equals_tensor_parallelism() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case| {
            let stream = case.comm.stream();
            let (_, got) = case.run()?;
            let input = stream.clone_htod(&normed(&case.tokens))?;
            let mut output = stream.alloc_zeros(case.tokens.len())?;
            let mut mlp = case.mlp()?;
            tensor_parallel(case.comm, &mut mlp, &input.as_view(), &mut output.as_view_mut())?;
            let output = stream.clone_dtoh(&output)?;
            stream.synchronize()?;
            let right = sum(&dropped(&output, 0), &case.tokens);
            let name = "the output, compared with that of `tensor_forward::mlp` for this rank's tokens,";
            Expected::new(case.comm.rank(), name, case.own(&right)).exactly(&got)
        })?;
    }
    Ok(())
}

fn the_host_does_not_wait() -> anyhow::Result<()> {
    on_all_ranks(2, |case| {
        let stream = case.comm.stream();
        let mut block = case.block()?;
        let tokens = stream.clone_htod(case.own(&case.tokens))?;
        let mut output = stream.alloc_zeros(tokens.len())?;
        returns_at_once("Block::forward", &stream, || {
            block.forward(case.comm, &tokens.as_view(), &mut output.as_view_mut())
        })
    })
}

fn bytes_of_one_all_reduce() -> anyhow::Result<()> {
    on_all_ranks(2, |case| {
        let stream = case.comm.stream();
        let mut block = case.block()?;
        let tokens = stream.clone_htod(case.own(&case.tokens))?;
        let mut output = stream.alloc_zeros(tokens.len())?;
        let budget = Budget::of("Block::forward")
            .collectives(&[("AllGather", OWN * WIDTH), ("ReduceScatter", OWN * WIDTH)])
            .messages(0)
            .communicators(0)
            .allocations(0)
            .fills(0)
            .copies(0)
            .host_waits(0)
            .polls(0)
            // Norm, two products, two biases, ReLU, dropout, and the sum.
            .kernels(8)
            .stream_of(case.comm);
        budget.spend(|| block.forward(case.comm, &tokens.as_view(), &mut output.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("Block::new", || {
        let comm = world_of_one()?;
        Ok(move || {
            Case::new(&comm, OWN).block()?;
            Ok(())
        })
    })?;
    each_call_fails("Block::forward", || {
        let comm = world_of_one()?;
        let case = Case::new(&comm, OWN);
        let (mut block, tokens) = (case.block()?, comm.stream().clone_htod(&case.tokens)?);
        let mut output = comm.stream().alloc_zeros(tokens.len())?;
        Ok(move || {
            block.forward(&comm, &tokens.as_view(), &mut output.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
