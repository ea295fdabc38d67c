//! Checks for `multi_gpu/tensor_forward`: layers that span several GPUs have the same results as on one GPU.

use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, Linear, Mlp, Weights, each_call_fails, ensure, irregular,
    returns_at_once, world_of_one,
};

use super::tensor::{
    Case, ODD, SAMPLES, Sizes, biased, columns_of, layer, linear, on_all_ranks, product, relu, with_columns,
    with_rows,
};
use crate::multi_gpu::tensor_forward::{column_parallel, column_shard, mlp, row_parallel, row_shard};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("tensor_forward::a_column_shard_has_its_columns", a_column_shard_has_its_columns)
            .calls(&["column_shard"]),
        Check::new("tensor_forward::a_row_shard_has_its_rows", a_row_shard_has_its_rows)
            .calls(&["row_shard"]),
        Check::new("tensor_forward::each_rank_computes_its_columns", each_rank_computes_its_columns)
            .calls(&["column_parallel"])
            .min_ranks(2),
        Check::new("tensor_forward::row_shards_sum_to_the_whole_output", row_shards_sum_to_the_whole_output)
            .calls(&["row_parallel"])
            .min_ranks(2),
        Check::new("tensor_forward::two_layers_are_those_of_one_gpu", two_layers_are_those_of_one_gpu)
            .calls(&["mlp"])
            .min_ranks(2),
        Check::new("tensor_forward::one_rank_has_all_of_it", || on_all_ranks(1, check_mlp)).calls(&["mlp"]),
        Check::new("tensor_forward::no_layer_waits_on_the_host", || {
            rendezvous(&lab::streams(2)?, |comm| check_at_once(&Case { comm: &comm, sizes: ODD }))?;
            Ok(())
        })
        .calls(&["column_parallel", "row_parallel", "mlp"])
        .min_ranks(2),
        Check::new("tensor_forward::each_pass_is_one_all_reduce", || {
            rendezvous(&lab::streams(3)?, |comm| check_cost(&Case { comm: &comm, sizes: ODD }))?;
            Ok(())
        })
        .min_ranks(3),
        Check::new("tensor_forward::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn a_column_shard_has_its_columns() -> anyhow::Result<()> {
    let Sizes { inputs, outputs, .. } = ODD;
    let whole = layer(0, inputs, outputs);
    for columns in [0..5, 5..6, 6..outputs, 0..outputs] {
        let shard = column_shard(&whole, columns.clone());
        let told = format!("columns {columns:?} of a layer with {inputs} inputs and {outputs} outputs");
        ensure!(
            (shard.inputs, shard.outputs) == (inputs, columns.len()),
            "{told}: the shard has {} inputs and {} outputs, expected {inputs} and {}{}",
            shard.inputs,
            shard.outputs,
            columns.len(),
            match (shard.inputs, shard.outputs) == (columns.len(), outputs) {
                true => {
                    "\n  likely cause: the wrong axis: columns are outputs, and all inputs stay"
                }
                false => "",
            }
        );
        let expected = with_columns(&whole, columns.clone());
        ensure!(
            shard.weights.len() == expected.weights.len(),
            "{told}: there are {} weights, expected {}: one for each input and each column. In the whole layer, a row is as \
             long as there are outputs",
            shard.weights.len(),
            expected.weights.len()
        );
        let in_a_row = &whole.weights[columns.start * inputs..columns.end * inputs];
        Expected::of(&format!("the weight matrix of {told}"), &expected.weights)
            .if_instead(
                in_a_row,
                "the wrong axis: these are contiguous in the buffer, so they are rows; a column has one element in \
                 each row",
            )
            .if_instead(
                &columns
                    .clone()
                    .flat_map(|column| columns_of(&whole.weights, outputs, column..column + 1))
                    .collect::<Vec<_>>(),
                "the shard is transposed: it must be row-major, like the whole layer",
            )
            .exactly(&shard.weights)?;
        ensure!(
            shard.bias.len() == columns.len(),
            "{told}: there are {} biases, expected {}: each output's bias stays with its column",
            shard.bias.len(),
            columns.len()
        );
        Expected::of(&format!("the bias of {told}"), &expected.bias).exactly(&shard.bias)?;
    }
    Ok(())
}

fn a_row_shard_has_its_rows() -> anyhow::Result<()> {
    let Sizes { inputs, outputs, .. } = ODD;
    let whole = layer(0, inputs, outputs);
    for rows in [0..5, 5..6, 6..inputs, 0..inputs] {
        let shard = row_shard(&whole, rows.clone());
        let told = format!("rows {rows:?} of a layer with {inputs} inputs and {outputs} outputs");
        ensure!(
            (shard.inputs, shard.outputs) == (rows.len(), outputs),
            "{told}: the shard has {} inputs and {} outputs, expected {} and {outputs}{}",
            shard.inputs,
            shard.outputs,
            rows.len(),
            match (shard.inputs, shard.outputs) == (inputs, rows.len()) {
                true => {
                    "\n  likely cause: the wrong axis: rows are inputs, and all outputs stay"
                }
                false => "",
            }
        );
        let expected = with_rows(&whole, rows.clone());
        ensure!(
            shard.weights.len() == expected.weights.len(),
            "{told}: there are {} weights, expected {}: a row is as long as there are outputs",
            shard.weights.len(),
            expected.weights.len()
        );
        let end = rows.end.min(outputs);
        let columns = rows.start.min(end)..end;
        Expected::of(&format!("the weight matrix of {told}"), &expected.weights)
            .if_instead(&columns_of(&whole.weights, outputs, columns), "the wrong axis: these are columns")
            .exactly(&shard.weights)?;
        Expected::of(&format!("the bias of {told}"), &expected.bias).exactly(&shard.bias)?;
    }
    Ok(())
}

fn each_rank_computes_its_columns() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case| {
            let (comm, stream) = (case.comm, case.comm.stream());
            let Sizes { inputs, outputs, .. } = case.sizes;
            let whole = layer(0, inputs, outputs);
            let input = irregular::small_integers(0, SAMPLES * inputs);
            let columns = case.part(outputs);
            let own = with_columns(&whole, columns.clone());
            let shard = Linear::new(&stream, &own)?;
            let on_gpu = Guarded::new(&stream, &input)?;
            let mut output = case.stale(SAMPLES * columns.len())?;
            column_parallel(&shard, &on_gpu.view(), &mut output.view_mut())?;
            let expected = columns_of(&linear(&whole, &input), outputs, columns.clone());
            Expected::new(comm.rank(), &format!("the output, for columns {columns:?},"), &expected)
                .if_instead(&product(&own, &input), "the bias is missing")
                .if_instead(&biased(&own, &expected, 1), "the bias was added twice")
                .exactly(&output.read()?)?;
            Expected::new(comm.rank(), "the input", &input).exactly(&on_gpu.read()?)
        })?;
    }
    Ok(())
}

fn row_shards_sum_to_the_whole_output() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, |case| {
            let (comm, stream) = (case.comm, case.comm.stream());
            let Sizes { inputs, outputs, .. } = case.sizes;
            let whole = layer(0, inputs, outputs);
            let input = irregular::small_integers(0, SAMPLES * inputs);
            let rows = case.part(inputs);
            let own = with_rows(&whole, rows.clone());
            let own_input = columns_of(&input, inputs, rows);
            let shard = Linear::new(&stream, &own)?;
            let on_gpu = Guarded::new(&stream, &own_input)?;
            let mut output = case.stale(SAMPLES * outputs)?;
            row_parallel(comm, &shard, &on_gpu.view(), &mut output.view_mut())?;
            compare_output(case, &whole, &input, &output.read()?)?;
            Expected::new(comm.rank(), "the input", &own_input).exactly(&on_gpu.read()?)
        })?;
    }
    Ok(())
}

/// Compares the output of a layer whose rows are spread over the ranks with the expected output, and with the outputs
/// that known mistakes lead to.
fn compare_output(case: &Case<'_>, whole: &Weights, input: &[f32], got: &[f32]) -> anyhow::Result<()> {
    let world_size = case.comm.world_size();
    let rows = case.part(whole.inputs);
    let own_input = columns_of(input, whole.inputs, rows.clone());
    let own = product(&with_rows(whole, rows), &own_input);
    let all = product(whole, input);
    let mean: Vec<f32> = all.iter().map(|value| value / world_size as f32).collect();
    let right = biased(whole, &all, 1);
    let mut expected = Expected::new(case.comm.rank(), "the output", &right);
    if world_size > 1 {
        expected = expected
            .if_instead(
                &biased(whole, &own, 1),
                "this is the product of the rank's own rows: sum the products from all ranks",
            )
            .if_instead(&own, "this is the product of the rank's own rows, without the bias")
            .if_instead(
                &biased(whole, &mean, 1),
                "the ranks' products were averaged, but the product over all rows is their sum",
            )
            .if_instead(
                &biased(whole, &all, world_size),
                format!("the bias was added {world_size} times: every rank added it before the sum"),
            );
    }
    expected.if_instead(&all, "the bias is missing").exactly(got)
}

fn two_layers_are_those_of_one_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_all_ranks(world_size, check_mlp)?;
    }
    Ok(())
}

fn check_mlp(case: &Case<'_>) -> anyhow::Result<()> {
    let (comm, stream) = (case.comm, case.comm.stream());
    let Sizes { inputs, hidden: hidden_units, outputs } = case.sizes;
    let (first, second) = (layer(1, inputs, hidden_units), layer(2, hidden_units, outputs));
    let units = case.part(hidden_units);
    let (own_first, own_second) = (with_columns(&first, units.clone()), with_rows(&second, units.clone()));
    let mut layers = Mlp::new(&stream, &own_first, &own_second, SAMPLES)?;
    let mut verdict = Ok(());
    // The second pass must overwrite the results of the first.
    for pass in 0..2 {
        let input = irregular::small_integers(pass, SAMPLES * inputs);
        let on_gpu = Guarded::new(&stream, &input)?;
        let mut output = case.stale(SAMPLES * outputs)?;
        mlp(comm, &mut layers, &on_gpu.view(), &mut output.view_mut())?;
        let before_relu = linear(&first, &input);
        let hidden = relu(&before_relu);
        let got = stream.clone_dtoh(&layers.hidden)?;
        let units_of = |values: &[f32]| columns_of(values, hidden_units, units.clone());
        let bias_after_relu = biased(&first, &relu(&product(&first, &input)), 1);
        let own_units = Expected::new(comm.rank(), "mlp.hidden", &units_of(&hidden))
            .if_instead(&units_of(&bias_after_relu), "the bias was added after ReLU instead of before it")
            .if_instead(&units_of(&before_relu), "ReLU is missing")
            .if_instead(&vec![0.0; got.len()], "nothing was written")
            .exactly(&got);
        verdict = verdict.and(own_units).and(compare_output(case, &second, &hidden, &output.read()?));
    }
    verdict
}

fn check_at_once(case: &Case<'_>) -> anyhow::Result<()> {
    let (comm, stream) = (case.comm, case.comm.stream());
    let Sizes { inputs, hidden, outputs } = case.sizes;
    let units = case.part(hidden);
    let first = with_columns(&layer(1, inputs, hidden), units.clone());
    let second = with_rows(&layer(2, hidden, outputs), units);
    let mut layers = Mlp::new(&stream, &first, &second, SAMPLES)?;
    let input = case.stale(SAMPLES * inputs)?;
    let mut output = case.stale(SAMPLES * outputs)?;
    let columns = returns_at_once("column_parallel", &stream, || {
        column_parallel(&layers.first, &input.view(), &mut layers.hidden.as_view_mut())
    });
    let rows = returns_at_once("row_parallel", &stream, || {
        row_parallel(comm, &layers.second, &layers.hidden.as_view(), &mut output.view_mut())
    });
    let both =
        returns_at_once("mlp", &stream, || mlp(comm, &mut layers, &input.view(), &mut output.view_mut()));
    columns.and(rows).and(both)
}

fn check_cost(case: &Case<'_>) -> anyhow::Result<()> {
    let (comm, stream) = (case.comm, case.comm.stream());
    let Sizes { inputs, hidden, outputs } = case.sizes;
    let units = case.part(hidden);
    let first = with_columns(&layer(1, inputs, hidden), units.clone());
    let second = with_rows(&layer(2, hidden, outputs), units);
    let mut layers = Mlp::new(&stream, &first, &second, SAMPLES)?;
    let input = stream.clone_htod(&irregular::small_integers(0, SAMPLES * inputs))?;
    let mut output = stream.alloc_zeros::<f32>(SAMPLES * outputs)?;
    let budget = |function: &str, kernels: u64| {
        let budget = Budget::of(function).messages(0).kernels(kernels).bytes_to_device(0).bytes_to_host(0);
        budget.host_waits(0).communicators(0).stream_of(comm)
    };
    let one = [("AllReduce", SAMPLES * outputs)];
    budget("column_parallel", 3)
        .collectives(&[])
        .spend(|| column_parallel(&layers.first, &input.as_view(), &mut layers.hidden.as_view_mut()))?;
    budget("row_parallel", 3)
        .collectives(&one)
        .spend(|| row_parallel(comm, &layers.second, &layers.hidden.as_view(), &mut output.as_view_mut()))?;
    budget("mlp", 7)
        .collectives(&one)
        .spend(|| mlp(comm, &mut layers, &input.as_view(), &mut output.as_view_mut()))?;
    Ok(stream.synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let Sizes { inputs, hidden, outputs } = ODD;
    each_call_fails("mlp", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let mut layers = Mlp::new(&stream, &layer(1, inputs, hidden), &layer(2, hidden, outputs), SAMPLES)?;
        let input = stream.alloc_zeros::<f32>(SAMPLES * inputs)?;
        let mut output = stream.alloc_zeros::<f32>(SAMPLES * outputs)?;
        Ok(move || {
            mlp(&comm, &mut layers, &input.as_view(), &mut output.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    // `mlp` does not have to call the other two functions.
    each_call_fails("column_parallel` or `row_parallel", || {
        let comm = world_of_one()?;
        let stream = comm.stream();
        let shard = Linear::new(&stream, &layer(0, inputs, outputs))?;
        let input = stream.alloc_zeros::<f32>(SAMPLES * inputs)?;
        let mut output = stream.alloc_zeros::<f32>(SAMPLES * outputs)?;
        Ok(move || {
            column_parallel(&shard, &input.as_view(), &mut output.as_view_mut())?;
            row_parallel(&comm, &shard, &input.as_view(), &mut output.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
