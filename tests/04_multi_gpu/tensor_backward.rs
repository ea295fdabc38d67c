//! Checks for `multi_gpu/tensor_backward`: layers that span several GPUs have the same gradients as on one GPU.

mod training;

use std::ops::Range;

use anyhow::Context;
use cudarc::driver::CudaView;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, Linear, Mlp, Weights, each_call_fails, irregular, returns_at_once,
    world_of_one,
};

use super::tensor::{
    Case, ODD, SAMPLES, Sizes, added, bias_gradient, columns_of, input_gradient, layer, linear, on_all_ranks,
    part, relu, weights_gradient, with_columns, with_rows,
};
use crate::multi_gpu::tensor_backward::{column_backward, mlp_backward, row_backward};
use training::{STEPS, Serial, train};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("tensor_backward::back_through_columns", || on_all_worlds(check_columns))
            .calls(&["column_backward"])
            .min_ranks(2),
        Check::new("tensor_backward::back_through_rows", || on_all_worlds(check_rows))
            .calls(&["row_backward"])
            .min_ranks(2),
        Check::new("tensor_backward::back_through_two_layers", || on_all_worlds(check_mlp))
            .calls(&["mlp_backward"])
            .min_ranks(2),
        Check::new("tensor_backward::each_step_is_that_of_one_gpu", each_step_is_that_of_one_gpu)
            .calls(&["mlp_backward"])
            .min_ranks(2),
        Check::new("tensor_backward::one_rank_has_all_of_it", || on_all_ranks(1, check_mlp))
            .calls(&["mlp_backward"]),
        Check::new("tensor_backward::no_layer_waits_on_the_host", || {
            rendezvous(&lab::streams(2)?, |comm| check_at_once(&Case { comm: &comm, sizes: ODD }))?;
            Ok(())
        })
        .calls(&["column_backward", "row_backward", "mlp_backward"])
        .min_ranks(2),
        Check::new("tensor_backward::each_pass_is_one_all_reduce", || {
            rendezvous(&lab::streams(3)?, |comm| check_cost(&Case { comm: &comm, sizes: ODD }))?;
            Ok(())
        })
        .min_ranks(3),
        Check::new("tensor_backward::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn on_all_worlds(check: impl Fn(&Case<'_>) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    lab::world_sizes().into_iter().try_for_each(|world_size| on_all_ranks(world_size, &check))
}

/// Returns samples of `columns` integers each, which differ for each seed.
fn rows(seed: usize, columns: usize) -> Vec<f32> {
    irregular::small_integers(2000 + seed, SAMPLES * columns)
}

fn read(case: &Case<'_>, view: CudaView<'_, f32>) -> anyhow::Result<Vec<f32>> {
    Ok(case.comm.stream().clone_dtoh(&view)?)
}

fn check_columns(case: &Case<'_>) -> anyhow::Result<()> {
    let Sizes { inputs, outputs, .. } = case.sizes;
    let whole = layer(0, inputs, outputs);
    let (input, output_gradient) = (rows(0, inputs), rows(1, outputs));
    let columns = case.part(outputs);
    let own_gradient = columns_of(&output_gradient, outputs, columns.clone());

    let stream = case.comm.stream();
    let mut shard = Linear::new(&stream, &with_columns(&whole, columns))?;
    let on_gpu = (Guarded::new(&stream, &input)?, Guarded::new(&stream, &own_gradient)?);
    let mut back = case.stale(SAMPLES * inputs)?;
    column_backward(case.comm, &mut shard, &on_gpu.0.view(), &on_gpu.1.view(), &mut back.view_mut())?;

    compare_columns(case, &whole, &shard, &input, &output_gradient)?;
    compare_input_of_columns(case, &whole, &output_gradient, &back.read()?)?;
    Expected::new(case.comm.rank(), "the input", &input).exactly(&on_gpu.0.read()?)?;
    Expected::new(case.comm.rank(), "the output's gradient", &own_gradient).exactly(&on_gpu.1.read()?)
}

fn check_rows(case: &Case<'_>) -> anyhow::Result<()> {
    let Sizes { inputs, outputs, .. } = case.sizes;
    let whole = layer(0, inputs, outputs);
    let (input, output_gradient) = (rows(0, inputs), rows(1, outputs));
    let own = case.part(inputs);
    let own_input = columns_of(&input, inputs, own.clone());

    let stream = case.comm.stream();
    let mut shard = Linear::new(&stream, &with_rows(&whole, own.clone()))?;
    let on_gpu = (Guarded::new(&stream, &own_input)?, Guarded::new(&stream, &output_gradient)?);
    let mut back = case.stale(SAMPLES * own.len())?;
    row_backward(&mut shard, &on_gpu.0.view(), &on_gpu.1.view(), &mut back.view_mut())?;

    compare_rows(case, &whole, &shard, &input, &output_gradient)?;
    let expected = columns_of(&input_gradient(&whole, &output_gradient), inputs, own);
    Expected::new(case.comm.rank(), "the input's gradient", &expected).exactly(&back.read()?)?;
    Expected::new(case.comm.rank(), "the output's gradient", &output_gradient).exactly(&on_gpu.1.read()?)
}

fn check_mlp(case: &Case<'_>) -> anyhow::Result<()> {
    let Sizes { inputs, hidden: units, outputs } = case.sizes;
    let (first, second) = (layer(1, inputs, units), layer(2, units, outputs));
    let own = case.part(units);
    let stream = case.comm.stream();
    let own_layers = (with_columns(&first, own.clone()), with_rows(&second, own.clone()));
    let mut mlp = Mlp::new(&stream, &own_layers.0, &own_layers.1, SAMPLES)?;
    // The second pass must overwrite the results of the first.
    for pass in [0, 10] {
        let (input, output_gradient) = (rows(pass, inputs), rows(pass + 1, outputs));
        let hidden = relu(&linear(&first, &input));
        let own_hidden = columns_of(&hidden, units, own.clone());
        stream.memcpy_htod(&own_hidden, &mut mlp.hidden)?;
        let on_gpu = (Guarded::new(&stream, &input)?, Guarded::new(&stream, &output_gradient)?);
        let mut back = case.stale(SAMPLES * inputs)?;
        mlp_backward(case.comm, &mut mlp, &on_gpu.0.view(), &on_gpu.1.view(), &mut back.view_mut())?;

        compare_rows(case, &second, &mlp.second, &hidden, &output_gradient)?;
        let unbent = input_gradient(&second, &output_gradient);
        let hidden_gradient = bend(&unbent, &hidden);
        let own_units = |values: &[f32]| columns_of(values, units, own.clone());
        let mixed = added(all_parts(case, units).map(|part| columns_of(&unbent, units, part)));
        Expected::new(case.comm.rank(), "mlp.hidden_gradient", &own_units(&hidden_gradient))
            .if_instead(
                &own_units(&unbent),
                "the backward pass of ReLU is missing, or runs before the gradient that it changes is there",
            )
            .if_instead(&bend(&mixed, &own_hidden), THE_WRONG_SIDE)
            .if_instead(
                &added(all_parts(case, units).map(|part| columns_of(&hidden_gradient, units, part))),
                THE_WRONG_SIDE,
            )
            .exactly(&read(case, mlp.hidden_gradient.as_view())?)?;
        const WITHOUT_RELU: &str =
            "the first layer received the hidden units' gradient as it was before `relu_gradient` changed it";
        let instead = Some((unbent.as_slice(), WITHOUT_RELU));
        compare_columns_or(case, &first, &mlp.first, &input, &hidden_gradient, instead)?;
        compare_input_of_columns(case, &first, &hidden_gradient, &back.read()?)?;
        Expected::new(case.comm.rank(), "mlp.hidden", &own_hidden)
            .exactly(&read(case, mlp.hidden.as_view())?)?;
    }
    Ok(())
}

fn check_at_once(case: &Case<'_>) -> anyhow::Result<()> {
    let (comm, stream) = (case.comm, case.comm.stream());
    let Sizes { inputs, hidden, outputs } = case.sizes;
    let units = case.part(hidden);
    let first = with_columns(&layer(1, inputs, hidden), units.clone());
    let second = with_rows(&layer(2, hidden, outputs), units.clone());
    let mut mlp = Mlp::new(&stream, &first, &second, SAMPLES)?;
    let (input, output_gradient) = (case.stale(SAMPLES * inputs)?, case.stale(SAMPLES * outputs)?);
    let own_hidden = case.stale(SAMPLES * units.len())?;
    let mut back = case.stale(SAMPLES * inputs)?;
    let mut hidden_back = case.stale(SAMPLES * units.len())?;
    let columns = returns_at_once("column_backward", &stream, || {
        column_backward(comm, &mut mlp.first, &input.view(), &own_hidden.view(), &mut back.view_mut())
    });
    let rows = returns_at_once("row_backward", &stream, || {
        row_backward(
            &mut mlp.second,
            &own_hidden.view(),
            &output_gradient.view(),
            &mut hidden_back.view_mut(),
        )
    });
    stream.memcpy_dtod(&own_hidden.view(), &mut mlp.hidden)?;
    let both = returns_at_once("mlp_backward", &stream, || {
        mlp_backward(comm, &mut mlp, &input.view(), &output_gradient.view(), &mut back.view_mut())
    });
    columns.and(rows).and(both)
}

const THE_WRONG_SIDE: &str =
    "the ranks' gradients were summed on the wrong side of the hidden units, but each rank has its own units";

/// Returns each rank's part of `0..len`.
fn all_parts(case: &Case<'_>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let world_size = case.comm.world_size();
    (0..world_size).map(move |rank| part(len, rank, world_size))
}

/// Computes the backward pass of a ReLU whose results are `values`.
fn bend(gradient: &[f32], values: &[f32]) -> Vec<f32> {
    let bent = |(slope, value): (&f32, &f32)| if *value > 0.0 { *slope } else { 0.0 };
    gradient.iter().zip(values).map(bent).collect()
}

/// Compares a part's gradient with the expected one, and with those that result from mixing up the ranks' parts.
/// `parts` contains all ranks' parts. `mistake` contains the values that another mistake leads to, and its cause.
fn compare_part(
    case: &Case<'_>,
    buffer: &str,
    parts: Vec<Vec<f32>>,
    mistake: Option<(Vec<f32>, &str)>,
    got: &[f32],
) -> anyhow::Result<()> {
    let (rank, world_size) = (case.comm.rank(), case.comm.world_size());
    let own = parts[rank].clone();
    let mut expected = Expected::new(rank, buffer, &own);
    if world_size > 1 {
        let sum = added(parts);
        let mean: Vec<f32> = sum.iter().map(|value| value / world_size as f32).collect();
        let cause = "was taken over all ranks, but each rank has its own weights, so their gradients are its own, too";
        expected = expected
            .if_instead(&sum, format!("a sum {cause}"))
            .if_instead(&mean, format!("an average {cause}"));
    }
    if let Some((values, cause)) = mistake {
        expected = expected.if_instead(&values, cause);
    }
    expected.if_instead(&vec![0.0; got.len()], "nothing was written").exactly(got)
}

/// Compares a column shard's gradients with the same columns of the entire layer's gradients. `output_gradient` belongs
/// to the entire layer.
fn compare_columns(
    case: &Case<'_>,
    whole: &Weights,
    shard: &Linear,
    input: &[f32],
    output_gradient: &[f32],
) -> anyhow::Result<()> {
    compare_columns_or(case, whole, shard, input, output_gradient, None)
}

/// Compares like [`compare_columns`]. If the gradients match those for `instead`, the message contains that cause.
fn compare_columns_or(
    case: &Case<'_>,
    whole: &Weights,
    shard: &Linear,
    input: &[f32],
    output_gradient: &[f32],
    instead: Option<(&[f32], &str)>,
) -> anyhow::Result<()> {
    let parts = |values: &[f32]| -> Vec<Vec<f32>> {
        all_parts(case, whole.outputs).map(|part| columns_of(values, whole.outputs, part)).collect()
    };
    let mistake = |gradient: &dyn Fn(&[f32]) -> Vec<f32>| {
        let (output_gradient, cause) = instead?;
        Some((parts(&gradient(output_gradient)).swap_remove(case.comm.rank()), cause))
    };
    let of_weights = |output_gradient: &[f32]| weights_gradient(whole, input, output_gradient);
    let of_bias = |output_gradient: &[f32]| bias_gradient(whole, output_gradient);
    let (weights, bias) = (parts(&of_weights(output_gradient)), parts(&of_bias(output_gradient)));
    let got = read(case, shard.weights_gradient())?;
    compare_part(case, "the gradient of the columns' weights", weights, mistake(&of_weights), &got)?;
    let got = read(case, shard.bias_gradient())?;
    compare_part(case, "the gradient of the columns' biases", bias, mistake(&of_bias), &got)
}

/// Compares a row shard's gradients with the same rows of the entire layer's gradients. Also compares the gradient of
/// the entire bias.
fn compare_rows(
    case: &Case<'_>,
    whole: &Weights,
    shard: &Linear,
    input: &[f32],
    output_gradient: &[f32],
) -> anyhow::Result<()> {
    let (rank, world_size) = (case.comm.rank(), case.comm.world_size());
    let all = weights_gradient(whole, input, output_gradient);
    let of_rows = |rows: Range<usize>| all[rows.start * whole.outputs..rows.end * whole.outputs].to_vec();
    let weights = all_parts(case, whole.inputs).map(of_rows).collect();
    compare_part(
        case,
        "the gradient of the rows' weights",
        weights,
        None,
        &read(case, shard.weights_gradient())?,
    )?;
    let bias = bias_gradient(whole, output_gradient);
    let sum: Vec<f32> = bias.iter().map(|value| value * world_size as f32).collect();
    let mut expected = Expected::new(rank, "the gradient of the bias", &bias);
    if world_size > 1 {
        let cause = format!(
            "this is {world_size} times the gradient: every rank already has all of it, so there is nothing to sum"
        );
        expected = expected.if_instead(&sum, cause);
    }
    expected.exactly(&read(case, shard.bias_gradient())?)
}

/// Compares the gradient of the input, which depends on every column. `output_gradient` belongs to the entire layer.
fn compare_input_of_columns(
    case: &Case<'_>,
    whole: &Weights,
    output_gradient: &[f32],
    got: &[f32],
) -> anyhow::Result<()> {
    let (rank, world_size) = (case.comm.rank(), case.comm.world_size());
    let columns = case.part(whole.outputs);
    let own_gradient = columns_of(output_gradient, whole.outputs, columns.clone());
    let right = input_gradient(whole, output_gradient);
    let mut expected = Expected::new(rank, "the input's gradient", &right);
    if world_size > 1 {
        let own = input_gradient(&with_columns(whole, columns), &own_gradient);
        let mean: Vec<f32> = right.iter().map(|value| value / world_size as f32).collect();
        expected = expected
            .if_instead(
                &own,
                "this is the gradient from the rank's own columns, but the input goes into all ranks' columns: sum \
                 over the ranks",
            )
            .if_instead(&mean, "the ranks' gradients were averaged, but the gradient is their sum");
    }
    expected.exactly(got)
}

fn each_step_is_that_of_one_gpu() -> anyhow::Result<()> {
    let serial = Serial::run();
    for world_size in lab::world_sizes() {
        for (rank, steps) in train(world_size)?.iter().enumerate() {
            let units = part(ODD.hidden, rank, world_size);
            for (step, got) in steps.iter().enumerate() {
                let place = format!("world size {world_size}, step {} of {STEPS}, rank {rank}", step + 1);
                serial.compare(step, units.clone(), got).with_context(|| place)?;
            }
        }
    }
    Ok(())
}

fn check_cost(case: &Case<'_>) -> anyhow::Result<()> {
    let (comm, stream) = (case.comm, case.comm.stream());
    let Sizes { inputs, hidden, outputs } = case.sizes;
    let units = case.part(hidden);
    let first = with_columns(&layer(1, inputs, hidden), units.clone());
    let second = with_rows(&layer(2, hidden, outputs), units.clone());
    let mut mlp = Mlp::new(&stream, &first, &second, SAMPLES)?;
    let zeros = |columns: usize| stream.alloc_zeros::<f32>(SAMPLES * columns);
    let (input, own_hidden, slopes) = (zeros(inputs)?, zeros(units.len())?, zeros(outputs)?);
    let (mut back, mut hidden_back) = (zeros(inputs)?, zeros(units.len())?);
    let budget = |function: &str, kernels: u64| {
        let budget = Budget::of(function).messages(0).kernels(kernels).bytes_to_device(0).bytes_to_host(0);
        budget.host_waits(0).communicators(0).stream_of(comm)
    };
    let one = [("AllReduce", SAMPLES * inputs)];
    budget("column_backward", 4).collectives(&one).spend(|| {
        let mut back = back.as_view_mut();
        column_backward(comm, &mut mlp.first, &input.as_view(), &own_hidden.as_view(), &mut back)
    })?;
    budget("row_backward", 4).collectives(&[]).spend(|| {
        let mut back = hidden_back.as_view_mut();
        row_backward(&mut mlp.second, &own_hidden.as_view(), &slopes.as_view(), &mut back)
    })?;
    budget("mlp_backward", 9).collectives(&one).spend(|| {
        mlp_backward(comm, &mut mlp, &input.as_view(), &slopes.as_view(), &mut back.as_view_mut())
    })?;
    Ok(stream.synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let Sizes { inputs, hidden, outputs } = ODD;
    each_call_fails("mlp_backward", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let mut mlp = Mlp::new(&stream, &layer(1, inputs, hidden), &layer(2, hidden, outputs), SAMPLES)?;
        let zeros = |columns: usize| stream.alloc_zeros::<f32>(SAMPLES * columns);
        let (input, slopes, mut back) = (zeros(inputs)?, zeros(outputs)?, zeros(inputs)?);
        Ok(move || {
            mlp_backward(&comm, &mut mlp, &input.as_view(), &slopes.as_view(), &mut back.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    // `mlp_backward` does not have to call the other two functions.
    each_call_fails("column_backward` or `row_backward", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let mut shard = Linear::new(&stream, &layer(0, inputs, outputs))?;
        let zeros = |columns: usize| stream.alloc_zeros::<f32>(SAMPLES * columns);
        let (input, slopes, mut back) = (zeros(inputs)?, zeros(outputs)?, zeros(inputs)?);
        Ok(move || {
            let (input, slopes, mut back) = (input.as_view(), slopes.as_view(), back.as_view_mut());
            column_backward(&comm, &mut shard, &input, &slopes, &mut back)?;
            row_backward(&mut shard, &input, &slopes, &mut back)?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
