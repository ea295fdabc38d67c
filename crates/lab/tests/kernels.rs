//! Compares each kernel with the same computation on the host, and checks the errors of its method.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{bail, ensure};
use approx::abs_diff_eq;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use half::f16;
use lab::compare::UNIT_ROUNDOFF;
use lab::digits::Digits;
use lab::kernels::{Dropout, Matrix, Product};
use lab::perceptron::HostPerceptron;
use lab::random::SplitMix64;
use lab::{
    Attention, Check, Kernels, Linear, Mlp, Momentum, Network, NetworkShape, Perceptron, Trainable, Weights,
    returns_at_once,
};

fn main() -> ExitCode {
    lab::check::run(vec![
        Check::new("kernels::elementwise_kernels_stay_inside_their_view", elementwise),
        Check::new("kernels::products_of_any_shape_are_the_hosts", products),
        Check::new("kernels::biases_and_relu_are_the_hosts", layers),
        Check::new("kernels::loss_gradient_and_count_are_the_hosts", losses),
        Check::new("kernels::a_sum_has_the_same_bits_on_every_run", sums),
        Check::new("kernels::norms_softmax_and_finiteness_are_the_hosts", vectors),
        Check::new("kernels::momentum_is_the_hosts", momentum),
        Check::new("kernels::conversions_to_f16_round_like_the_host", conversions),
        Check::new("kernels::norm_and_dropout_of_a_part_are_those_of_the_whole", norm_and_dropout),
        Check::new("kernels::rows_go_where_their_indices_say", rows),
        Check::new("attention::blocks_in_any_order_are_the_hosts", attention),
        Check::new("kernels::spin_comes_to_an_end", spin),
        Check::new("at_once::a_call_that_waits_on_the_host_is_named", at_once),
        Check::new("kernels::a_wrong_length_is_named_and_nothing_is_launched", wrong_lengths),
        Check::new("kernels::a_stream_of_another_gpu_is_refused", other_gpu).min_ranks(2),
        Check::new("perceptron::its_gradient_is_that_of_the_host", perceptron),
        Check::new("perceptron::parts_of_the_hidden_layer_add_up", perceptron_in_parts),
        Check::new("linear::a_wrong_shape_is_named", wrong_shapes),
        Check::new("network::its_gradients_are_those_of_finite_differences", network),
        Check::new("network::a_shape_that_cannot_be_is_named", network_shapes),
    ])
}

fn at_once() -> anyhow::Result<()> {
    let Bench { stream, .. } = Bench::new()?;
    let mut buffer = stream.alloc_zeros::<f32>(37)?;
    let mut clear = || Ok(stream.memset_zeros(&mut buffer)?);
    returns_at_once("clear", &stream, &mut clear)?;
    let returned = returns_at_once("clear_and_wait", &stream, || {
        clear()?;
        Ok(stream.synchronize()?)
    });
    let text = returned.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        text.contains("`clear_and_wait` returned only when its stream, which"),
        "the call waits on the host, but the error is {text:?}"
    );
    let refused = returns_at_once("refuse", &stream, || bail!("no batch is left"));
    ensure!(refused.is_err(), "the call's error is lost");
    Ok(())
}

struct Bench {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    random: SplitMix64,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        Ok(Self { kernels: Kernels::load(&context)?, stream, random: SplitMix64::new(11) })
    }

    /// Returns values between −1 and 1, on the host and on the GPU. An empty buffer can't be allocated, so take a view
    /// of a longer buffer.
    fn values(&mut self, len: usize) -> anyhow::Result<(Vec<f32>, CudaSlice<f32>)> {
        let host: Vec<f32> = (0..len).map(|_| self.random.uniform(-1.0, 1.0)).collect();
        let device = self.stream.clone_htod(&host)?;
        Ok((host, device))
    }

    fn read(&self, device: &CudaSlice<f32>) -> anyhow::Result<Vec<f32>> {
        let host = self.stream.clone_dtoh(device)?;
        self.stream.synchronize()?;
        Ok(host)
    }
}

/// Compares values, with a tolerance of `roundings` roundings of values of size `scale`.
fn expect(what: &str, got: &[f32], expected: &[f64], roundings: usize, scale: f64) -> anyhow::Result<()> {
    ensure!(got.len() == expected.len(), "{what}: {} values, expected {}", got.len(), expected.len());
    let bound = roundings as f64 * UNIT_ROUNDOFF * scale;
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(*got) - expected).abs();
        ensure!(
            abs_diff_eq!(f64::from(*got), *expected, epsilon = bound),
            "{what}: {got} at {index}, but expected {expected}; off by {off:e} > {bound:e}"
        );
    }
    Ok(())
}

fn elementwise() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [1, 255, 256, 257, 1000] {
        let (x, x_device) = bench.values(len)?;
        let (before, mut buffer) = bench.values(len + 2)?;
        let (kernels, stream) = (&bench.kernels, &*bench.stream);
        let mut view = buffer.slice_mut(1..len + 1);
        kernels.axpy(stream, &mut view, &x_device, -2.5)?;
        kernels.scale(stream, &mut view, 0.75)?;
        kernels.sgd_step(stream, &mut view, &x_device, 0.3)?;
        let mut expected: Vec<f64> = before.iter().map(|&value| f64::from(value)).collect();
        for (value, x) in expected[1..=len].iter_mut().zip(&x) {
            *value = (*value - 2.5 * f64::from(*x)) * 0.75 - f64::from(0.3_f32) * f64::from(*x);
        }
        let after = bench.read(&buffer)?;
        expect("axpy, scale, sgd_step", &after, &expected, 5, 4.0)?;
        ensure!(
            (after[0], after[len + 1]) == (before[0], before[len + 1]),
            "a neighbor of the view was changed"
        );

        bench.kernels.fill(&bench.stream, &mut buffer.slice_mut(1..len + 1), 7.5)?;
        expected[1..=len].fill(7.5);
        expect("fill", &bench.read(&buffer)?, &expected, 0, 1.0)?;
    }
    Ok(())
}

fn products() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (m, n, k) in [(1, 1, 1), (16, 16, 16), (17, 33, 5), (3, 40, 64), (31, 15, 47), (5, 4, 0), (0, 3, 2)] {
        let shape = Product { m, n, k };
        let (a, a_device) = bench.values(m * k + 1)?;
        let (b, b_device) = bench.values(k * n + 1)?;
        let (a_view, b_view) = (a_device.slice(..m * k), b_device.slice(..k * n));
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        for (a_transposed, b_transposed) in [(false, false), (true, false), (false, true)] {
            let mut c = stream.clone_htod(&vec![9.0; m * n + 1])?;
            let mut c_view = c.slice_mut(..m * n);
            match (a_transposed, b_transposed) {
                (true, _) => kernels.matmul_ta(stream, &mut c_view, &a_view, &b_view, shape)?,
                (_, true) => kernels.matmul_tb(stream, &mut c_view, &a_view, &b_view, shape)?,
                _ => kernels.matmul(stream, &mut c_view, &a_view, &b_view, shape)?,
            }
            let a_at =
                |row: usize, i: usize| f64::from(a[if a_transposed { i * m + row } else { row * k + i }]);
            let b_at = |i: usize, column: usize| {
                f64::from(b[if b_transposed { column * k + i } else { i * n + column }])
            };
            let mut expected: Vec<f64> = (0..m * n)
                .map(|index| (0..k).map(|i| a_at(index / n, i) * b_at(i, index % n)).sum())
                .collect();
            expected.push(9.0);
            let what = format!("{shape:?}, a transposed: {a_transposed}, b transposed: {b_transposed}");
            expect(&what, &bench.read(&c)?, &expected, 2 * k, k as f64)?;
        }
    }
    Ok(())
}

fn layers() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (37, 10), (5, 300), (0, 3)] {
        let (shape, len) = (Matrix { rows, columns }, rows * columns);
        let (matrix, mut matrix_device) = bench.values(len + 1)?;
        let (bias, bias_device) = bench.values(columns)?;
        let (upstream, mut upstream_device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut sums = stream.clone_htod(&vec![9.0; columns])?;
        kernels.add_bias(stream, &mut matrix_device.slice_mut(..len), &bias_device, shape)?;
        kernels.column_sums(stream, &mut sums, &matrix_device.slice(..len), shape)?;
        let add = |(value, bias): (&f32, &f32)| f64::from(*value) + f64::from(*bias);
        let biased: Vec<f64> = matrix[..len].iter().zip(bias.iter().cycle()).map(add).collect();
        expect("add_bias", &bench.read(&matrix_device)?[..len], &biased, 1, 2.0)?;
        let expected: Vec<f64> =
            (0..columns).map(|column| (0..rows).map(|row| biased[row * columns + column]).sum()).collect();
        expect("column_sums", &bench.read(&sums)?, &expected, rows + 1, 2.0 * rows as f64)?;

        kernels.relu(stream, &mut matrix_device.slice_mut(..len))?;
        let activation = matrix_device.slice(..len);
        kernels.relu_gradient(stream, &mut upstream_device.slice_mut(..len), &activation)?;
        let rectified: Vec<f64> = biased.iter().map(|value| value.max(0.0)).collect();
        let after = bench.read(&matrix_device)?;
        expect("relu", &after[..len], &rectified, 1, 2.0)?;
        ensure!(after[len] == matrix[len], "an element after the matrix was changed");
        let back = |(slope, value): (&f32, &f64)| if *value > 0.0 { f64::from(*slope) } else { 0.0 };
        let expected: Vec<f64> = upstream.iter().zip(&rectified).map(back).collect();
        expect("relu_gradient", &bench.read(&upstream_device)?[..len], &expected, 0, 1.0)?;
    }
    Ok(())
}

fn losses() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (300, 10), (7, 3)] {
        let shape = Matrix { rows, columns };
        let (_, mut logits_device) = bench.values(rows * columns)?;
        bench.kernels.scale(&bench.stream, &mut logits_device, 40.0)?;
        let logits = bench.read(&logits_device)?;
        let labels: Vec<u32> = (0..rows).map(|_| bench.random.below(columns) as u32).collect();
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let labels_device = stream.clone_htod(&labels)?;
        let mut losses = stream.alloc_zeros(rows)?;
        let mut gradient = stream.alloc_zeros(rows * columns)?;
        let mut count = stream.clone_htod(&[5_u32])?;
        kernels.cross_entropy(stream, &mut losses, &logits_device, &labels_device, shape)?;
        kernels.cross_entropy_gradient(stream, &mut gradient, &logits_device, &labels_device, 0.5, shape)?;
        kernels.count_correct(stream, &mut count, &logits_device, &labels_device, shape)?;

        let (mut expected_losses, mut expected_gradient, mut right) = (Vec::new(), Vec::new(), 5);
        for (scores, &label) in logits.chunks(columns).zip(&labels) {
            let exponentials: Vec<f64> = scores.iter().map(|&score| f64::from(score).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            expected_losses.push(sum.ln() - f64::from(scores[label as usize]));
            let is_label = |class: usize| if class == label as usize { 1.0 } else { 0.0 };
            expected_gradient
                .extend(exponentials.iter().enumerate().map(|(class, e)| 0.5 * (e / sum - is_label(class))));
            right += u32::from(scores.iter().all(|score| *score <= scores[label as usize]));
        }
        // expf is within 2 units in the last place, and logf within 1 (CUDA C++ Programming Guide). Scores are at most
        // 40.
        expect("cross_entropy", &bench.read(&losses)?, &expected_losses, columns + 10, 80.0)?;
        expect("cross_entropy_gradient", &bench.read(&gradient)?, &expected_gradient, columns + 100, 0.5)?;
        ensure!(stream.clone_dtoh(&count)? == [right], "count_correct: expected {right}");

        let strange = stream.clone_htod(&vec![columns as u32; rows])?;
        kernels.cross_entropy(stream, &mut losses, &logits_device, &strange, shape)?;
        ensure!(
            bench.read(&losses)?.iter().all(|loss| loss.is_nan()),
            "a label that is not a class has a finite loss"
        );
    }
    Ok(())
}

fn sums() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [0, 1, 255, 1000, 4099] {
        let (x, x_device) = bench.values(len + 1)?;
        let mut sum = bench.stream.clone_htod(&[9.0_f32])?;
        let mut seen = Vec::new();
        for _ in 0..3 {
            bench.kernels.sum(&bench.stream, &mut sum, &x_device.slice(..len))?;
            seen.push(bench.read(&sum)?[0]);
        }
        ensure!(
            seen.iter().all(|sum| sum.to_bits() == seen[0].to_bits()),
            "{seen:?} of the same {len} values"
        );
        let expected: f64 = x[..len].iter().map(|&value| f64::from(value)).sum();
        expect("sum", &seen[..1], &[expected], len / 256 + 10, len as f64)?;
    }
    Ok(())
}

fn vectors() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [0, 1, 255, 1000, 4099] {
        let (mut x, mut device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut number = stream.clone_htod(&[9.0_f32])?;
        let values: Vec<f64> = x[..len].iter().map(|&value| f64::from(value)).collect();
        kernels.sum_of_squares(stream, &mut number, &device.slice(..len))?;
        let squares: f64 = values.iter().map(|value| value * value).sum();
        expect("sum_of_squares", &bench.read(&number)?, &[squares], len / 256 + 11, len as f64)?;
        kernels.maximum(stream, &mut number, &device.slice(..len))?;
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        ensure!(bench.read(&number)? == [most as f32], "maximum of {len}: expected {most}");

        let shift = stream.clone_htod(&[0.75_f32])?;
        kernels.exp_minus(stream, &mut device.slice_mut(..len), &shift)?;
        kernels.divide(stream, &mut device.slice_mut(..len), &stream.clone_htod(&[3.0_f32])?)?;
        let expected: Vec<f64> = values.iter().map(|value| (value - 0.75).exp() / 3.0).collect();
        let after = bench.read(&device)?;
        // expf is within 2 units in the last place (CUDA C++ Programming Guide). The difference and the quotient are
        // rounded too.
        expect("exp_minus, divide", &after[..len], &expected, 8, 1.0)?;
        ensure!(after[len] == x[len], "an element after the vector was changed");

        for (index, value) in x.iter_mut().enumerate() {
            *value = match index % 100 {
                3 => f32::NAN,
                31 => f32::INFINITY,
                77 => f32::NEG_INFINITY,
                _ => f32::MAX,
            };
        }
        let (device, mut count) = (stream.clone_htod(&x)?, stream.clone_htod(&[5_u32])?);
        kernels.count_not_finite(stream, &mut count, &device.slice(..len))?;
        let expected = 5 + x[..len].iter().filter(|value| !value.is_finite()).count() as u32;
        ensure!(stream.clone_dtoh(&count)? == [expected], "count_not_finite of {len}: expected {expected}");
    }
    Ok(())
}

/// Compares attention over blocks with the softmax over all keys at once.
fn attention() -> anyhow::Result<()> {
    const BLOCK: usize = 37;
    let mut bench = Bench::new()?;
    for width in [1, 5, 64] {
        let blocks: Vec<_> =
            (0..3).map(|_| bench.values(2 * BLOCK * width)).collect::<anyhow::Result<_>>()?;
        let (queries, on_gpu) = bench.values(BLOCK * width)?;
        // Block 0 is the queries' own. It comes first, last, or in between.
        for (order, causal) in [([0, 1, 2], false), ([2, 0, 1], false), ([0, 1, 2], true), ([1, 2, 0], true)]
        {
            let mut attention = Attention::new(&bench.stream, BLOCK, width)?;
            for block in order {
                let keys_values = blocks[block].1.as_view();
                attention.fold(&on_gpu.as_view(), &keys_values, causal && block == 0)?;
            }
            attention.finish()?;
            let got = bench.stream.clone_dtoh(&attention.output())?;
            bench.stream.synchronize()?;
            let mut expected = Vec::new();
            for (row, query) in queries.chunks_exact(width).enumerate() {
                let (mut sum, mut output) = (0.0, vec![0.0; width]);
                for (block, (keys_values, _)) in blocks.iter().enumerate() {
                    let (keys, values) = keys_values.split_at(BLOCK * width);
                    let visible = if causal && block == 0 { row + 1 } else { BLOCK };
                    let pairs = keys.chunks_exact(width).zip(values.chunks_exact(width));
                    for (key, value) in pairs.take(visible) {
                        let score: f64 =
                            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        let weight = (score / (width as f64).sqrt()).exp();
                        sum += weight;
                        output
                            .iter_mut()
                            .zip(value)
                            .for_each(|(out, value)| *out += weight * f64::from(*value));
                    }
                }
                expected.extend(output.into_iter().map(|out| out / sum));
            }
            // A score of at most √width has width + 1 roundings, twice, and so has the exponential of a difference. An
            // exponential has 4 roundings, and each of 3 maxima rescales it once. Both sums have a rounding for each key.
            let of_score = 2 * (width + 3) * (width as f64).sqrt().ceil() as usize;
            expect("attention", &got, &expected, 2 * (of_score + 3 * 6 + 3 * BLOCK), 1.0)?;
        }
    }
    let mut attention = Attention::new(&bench.stream, 2, 3)?;
    let (_, six) = bench.values(6)?;
    let refused = attention.fold(&six.as_view(), &six.slice(..5), false).map_err(|error| error.to_string());
    let words = "kernel `attend`: `keys_values` has 5 elements, expected 0 × 3";
    ensure!(refused == Err(words.to_owned()), "{refused:?}");
    let refused = attention.fold(&six.as_view(), &six.as_view(), true).map_err(|error| error.to_string());
    let words = "a causal block has as many keys as queries, but there are 6 elements of queries, and 6 of keys and values";
    ensure!(refused == Err(words.to_owned()), "{refused:?}");
    Ok(())
}

fn conversions() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    // Every f16 becomes the f32 with the same value.
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let mut wide = stream.alloc_zeros(halves.len())?;
    kernels.from_f16(stream, &mut wide, &stream.clone_htod(&halves)?, 1.0)?;
    let wide = bench.read(&wide)?;
    for (half, &got) in halves.iter().zip(&wide) {
        let expected = half.to_f32();
        ensure!(got == expected || got.is_nan() && expected.is_nan(), "{half:?} became {got}");
    }
    // Numbers between two neighbors, exactly between them, and out of range.
    let finite = || halves.iter().map(|half| half.to_f32()).filter(|value| value.is_finite());
    let ulp = |value: f32| f32::powi(2.0, value.abs().log2().floor().max(-14.0) as i32 - 10);
    let between = finite().flat_map(|value| [0.25, 0.5, 0.75].map(|part| value + part * ulp(value)));
    let mut values: Vec<f32> = finite().chain(between).collect();
    values.extend([65519.996, 65520.0, -65520.0, f32::MAX, f32::NAN, f32::NEG_INFINITY, 1e-30]);
    let mut narrow = stream.alloc_zeros(values.len() + 2)?;
    kernels.to_f16(stream, &mut narrow.slice_mut(1..values.len() + 1), &stream.clone_htod(&values)?, 1.0)?;
    let got = stream.clone_dtoh(&narrow)?;
    stream.synchronize()?;
    ensure!(got[0] == f16::ZERO && got[values.len() + 1] == f16::ZERO, "a neighbor of the view was changed");
    for (value, &got) in values.iter().zip(&got[1..]) {
        let expected = f16::from_f32(*value);
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        ensure!(same, "{value} became {got:?}, expected {expected:?}");
    }
    // The factor is applied in f32: 3 · 2⁻²⁰ · 2¹⁰ and back, where 3 · 2⁻³⁰ would be 0 in f16.
    let small = 3.0 * f32::powi(2.0, -20);
    let (mut halves, mut wide) = (stream.alloc_zeros(1)?, stream.alloc_zeros(1)?);
    kernels.to_f16(stream, &mut halves, &stream.clone_htod(&[small])?, 1024.0)?;
    kernels.from_f16(stream, &mut wide, &halves, f32::powi(2.0, -20))?;
    ensure!(bench.read(&wide)? == [small / 1024.0], "the factor is not applied in f32");
    Ok(())
}

fn norm_and_dropout() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (37, 10), (5, 300), (0, 3)] {
        let (shape, len) = (Matrix { rows, columns }, rows * columns);
        let (x, x_device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut y = stream.clone_htod(&vec![9.0; len + 1])?;
        kernels.rms_norm(stream, &mut y.slice_mut(..len), &x_device.slice(..len), shape)?;
        let norm = |row: &[f32]| {
            let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
            let root = (squares / columns as f64 + 1e-5).sqrt();
            row.iter().map(|&value| f64::from(value) / root).collect::<Vec<_>>()
        };
        let mut expected: Vec<f64> = x[..len].chunks(columns).flat_map(norm).collect();
        expected.push(9.0);
        // An element is at most the square root of the number of columns. The sum of squares rounds twice per column, and the
        // root halves the relative error.
        let largest = (columns as f64).sqrt().max(9.0);
        expect("rms_norm", &bench.read(&y)?, &expected, columns + 5, largest)?;
    }
    let dropout = Dropout { seed: 7, probability: 0.25 };
    let mask = dropout.mask(5_000);
    let dropped = mask.iter().filter(|&&drops| drops).count();
    // The standard deviation of the number is 31.
    ensure!(
        (1_100..1_400).contains(&dropped),
        "{dropped} of 5,000 elements are dropped, expected about 1,250"
    );
    for range in [0..5_000, 0..1, 1_234..4_321, 4_999..5_000] {
        let (x, mut x_device) = bench.values(range.len() + 2)?;
        let mut view = x_device.slice_mut(1..range.len() + 1);
        bench.kernels.dropout(&bench.stream, &mut view, dropout, range.start)?;
        let mut expected: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
        for (value, &drops) in expected[1..].iter_mut().zip(&mask[range]) {
            *value *= if drops { 0.0 } else { f64::from(dropout.factor()) };
        }
        expect("dropout", &bench.read(&x_device)?, &expected, 1, 2.0)?;
    }
    let mut x = bench.stream.alloc_zeros(3)?;
    let refused = bench.kernels.dropout(&bench.stream, &mut x, Dropout { seed: 7, probability: 1.0 }, 0);
    let words = "kernel `dropout`: the probability is 1, expected 0 to below 1";
    let refused = refused.map_err(|error| error.to_string());
    ensure!(refused == Err(words.to_owned()), "{refused:?}");
    Ok(())
}

fn rows() -> anyhow::Result<()> {
    const ROWS: usize = 101;
    let mut bench = Bench::new()?;
    for columns in [1, 5, 37] {
        let (x, x_device) = bench.values(ROWS * columns)?;
        // 3 and 101 have no common factor, so these are the numbers of all rows. The last two rows don't exist.
        let mut indices: Vec<u32> = (0..ROWS).map(|row| (3 * row % ROWS) as u32).collect();
        indices.extend([ROWS as u32, u32::MAX]);
        let some = bench.stream.clone_htod(&indices)?;
        let mut gathered = bench.stream.alloc_zeros::<f32>(indices.len() * columns)?;
        bench.kernels.gather_rows(&bench.stream, &mut gathered, &x_device, &some, columns)?;
        let row = |index: u32| x.chunks_exact(columns).nth(index as usize);
        let got = bench.read(&gathered)?;
        for (got, &index) in got.chunks_exact(columns).zip(&indices) {
            match row(index) {
                Some(row) => {
                    ensure!(got == row, "row {index} of {columns} columns: {got:?}, expected {row:?}")
                }
                None => ensure!(
                    got.iter().all(|value| value.is_nan()),
                    "row {index} does not exist, but is {got:?}"
                ),
            }
        }
        // Scattering reverses gathering. A row more stays as it is.
        let (mut expected, mut scattered) = bench.values((ROWS + 1) * columns)?;
        expected[..ROWS * columns].copy_from_slice(&x);
        let (all, known) = (gathered.slice(..ROWS * columns), some.slice(..ROWS));
        bench.kernels.scatter_rows(&bench.stream, &mut scattered, &all, &known, columns)?;
        ensure!(
            bench.read(&scattered)? == expected,
            "{columns} columns: the rows did not return to their places"
        );
        let dropped = bench.stream.clone_htod(&[u32::MAX])?;
        bench.kernels.scatter_rows(
            &bench.stream,
            &mut scattered,
            &x_device.slice(..columns),
            &dropped,
            columns,
        )?;
        bench.kernels.scatter_rows(
            &bench.stream,
            &mut scattered,
            &x_device.slice(..0),
            &some.slice(..0),
            columns,
        )?;
        ensure!(
            bench.read(&scattered)? == expected,
            "{columns} columns: a row that does not exist was written"
        );
    }
    Ok(())
}

fn momentum() -> anyhow::Result<()> {
    const LEN: usize = 300;
    let mut bench = Bench::new()?;
    let (start, mut parameters) = bench.values(LEN)?;
    let mut expected: Vec<f64> = start.iter().map(|&value| f64::from(value)).collect();
    let mut velocity = vec![0.0; LEN];
    let mut optimizer = Momentum::new(&bench.stream, LEN, 0.5)?;
    for _ in 0..4 {
        let (slopes, gradient) = bench.values(LEN)?;
        optimizer.step(&mut parameters.as_view_mut(), &gradient.as_view(), 0.25)?;
        for ((value, velocity), slope) in expected.iter_mut().zip(&mut velocity).zip(&slopes) {
            *velocity = 0.5 * *velocity + f64::from(*slope);
            *value -= 0.25 * *velocity;
        }
    }
    // Velocities stay below 2, and parameters below 3. Each step rounds both.
    expect("momentum_step", &bench.read(&parameters)?, &expected, 12, 3.0)?;
    ensure!(optimizer.bytes() == 4 * LEN, "{} bytes", optimizer.bytes());
    let gradient = bench.stream.alloc_zeros(LEN - 1)?;
    let refused = optimizer.step(&mut parameters.as_view_mut(), &gradient.as_view(), 0.25);
    let refused = refused.map_err(|error| error.to_string());
    let words = "the optimizer is for 300 parameters, but was given 300 parameters and 299 gradients";
    ensure!(refused == Err(words.to_owned()), "{refused:?}");
    Ok(())
}

fn spin() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    bench.kernels.spin(&bench.stream, 0)?;
    bench.kernels.spin(&bench.stream, 1_000_000)?;
    Ok(bench.stream.synchronize()?)
}

fn wrong_lengths() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    let (before, mut y) = bench.values(6)?;
    let (_, x) = bench.values(5)?;
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    let labels = stream.clone_htod(&[0_u32, 1, 2])?;
    let indices = &labels;
    let shape = Matrix { rows: 2, columns: 3 };
    let cases = [
        (kernels.axpy(stream, &mut y, &x, 1.0), "kernel `axpy`: `x` has 5 elements, expected 6"),
        (
            kernels.sgd_step(stream, &mut y, &x, 1.0),
            "kernel `sgd_step`: `gradient` has 5 elements, expected 6",
        ),
        (
            kernels.matmul(stream, &mut y, &x, &x, Product { m: 2, n: 3, k: 2 }),
            "kernel `matmul`: `a` has 5 elements, expected 2 × 2",
        ),
        (kernels.add_bias(stream, &mut y, &x, shape), "kernel `add_bias`: `bias` has 5 elements, expected 3"),
        (
            kernels.cross_entropy(stream, &mut y, &x, &labels, shape),
            "kernel `cross_entropy`: `labels` has 3 elements, expected 2",
        ),
        (
            kernels.matmul_tb(stream, &mut y, &x, &x, Product { m: usize::MAX, n: 3, k: 2 }),
            "kernel `matmul_tb`: `c` has 6 elements, expected 18446744073709551615 × 3",
        ),
        (
            kernels.gather_rows(stream, &mut y, &x, indices, 3),
            "kernel `gather_rows`: `out` has 6 elements, expected 3 × 3",
        ),
        (
            kernels.gather_rows(stream, &mut y, &x, indices, 2),
            "kernel `gather_rows`: `x` has 5 elements, which are not whole rows of 2",
        ),
        (
            kernels.scatter_rows(stream, &mut y, &x, indices, 2),
            "kernel `scatter_rows`: `x` has 5 elements, expected 3 × 2",
        ),
    ];
    for (answer, expected) in cases {
        match answer {
            Ok(()) => bail!("launched, expected: {expected}"),
            Err(error) => ensure!(error.to_string() == expected, "{error}\nexpected: {expected}"),
        }
    }
    ensure!(bench.read(&y)? == before, "a rejected call changed its output");
    Ok(())
}

fn other_gpu() -> anyhow::Result<()> {
    let kernels = Kernels::load(&CudaContext::new(0)?)?;
    let stream = CudaContext::new(1)?.new_stream()?;
    let mut x = stream.alloc_zeros(3)?;
    let answer = kernels.relu(&stream, &mut x).map_err(|error| error.to_string());
    let expected = "kernel `relu` is loaded on GPU 0, but its stream is on GPU 1";
    ensure!(answer == Err(expected.to_owned()), "{answer:?}");
    Ok(())
}

/// Pixels are at most 1, and parameters are below 1. So every part of a gradient is a sum of at most 64 + 20 + 10 + 53
/// values below 2.
fn perceptron() -> anyhow::Result<()> {
    const HIDDEN: usize = 20;
    let stream = CudaContext::new(0)?.new_stream()?;
    let digits = Digits::load()?;
    let samples = digits.train.to_device(&stream)?;
    let mut model = Perceptron::new(&stream, HIDDEN, 53, 4)?;
    let host = HostPerceptron::new(HIDDEN, 4);
    for (rows, weight) in [(100..153, 1.0), (7..8, 0.25), (30..47, 3.0), (5..5, 1.0)] {
        let batch = samples.batch(rows.clone())?;
        model.forward(&batch)?;
        model.backward(&batch, weight)?;
        let (loss, gradient) = host.loss_and_gradient(&digits.train, rows.clone());
        let weighted: Vec<f64> =
            gradient.iter().chain([&loss]).map(|value| f64::from(weight) * value).collect();
        let got = stream.clone_dtoh(&model.gradient_and_loss())?;
        expect(
            &format!("the gradient over {rows:?}"),
            &got,
            &weighted,
            64 + HIDDEN + 10 + 53,
            2.0 * f64::from(weight),
        )?;
        ensure!(model.loss()? == got[got.len() - 1], "the loss must be after the gradients");
    }
    let unseen = digits.test.to_device(&stream)?;
    let (got, expected) = (model.accuracy(&unseen)?, host.accuracy(&digits.test));
    // If the scores of two classes are very close, rounding decides. Here, this affects at most one sample.
    let one_sample = 1.0 / digits.test.len() as f64;
    ensure!(abs_diff_eq!(got, expected, epsilon = one_sample), "accuracy {got}, expected {expected}");
    let refused = model.forward(&samples.batch(0..54)?).map_err(|error| error.to_string());
    ensure!(
        refused == Err("the batch has 54 samples, but the model has buffers for 53".to_owned()),
        "{refused:?}"
    );
    ensure!(samples.batch(1400..1439).is_err(), "a batch with sample 1,439 of 1,438 must fail");
    Ok(())
}

const SMALL: NetworkShape = NetworkShape { width: 6, layers: 3, heads: 2, rows: 5 };

/// Returns the mean squared error of a network on the host, whose inputs and targets are the first numbers of a seed.
fn mean_squared_error(shape: NetworkShape, parameters: &[f64], seed_of_samples: u64) -> f64 {
    let NetworkShape { width, layers, rows, .. } = shape;
    let mut random = SplitMix64::new(seed_of_samples);
    let mut sample =
        || -> Vec<f64> { (0..rows * width).map(|_| f64::from(random.uniform(-1.0, 1.0))).collect() };
    let (mut values, targets) = (sample(), sample());
    for (layer, parameters) in parameters.chunks_exact((width + 1) * width).enumerate() {
        let (weights, biases) = parameters.split_at(width * width);
        let output = |at: usize| {
            let (row, column) = (at / width, at % width);
            let sum: f64 = (0..width).map(|k| values[row * width + k] * weights[k * width + column]).sum();
            let output = sum + biases[column];
            if layer + 1 < layers { output.max(0.0) } else { output }
        };
        values = (0..rows * width).map(output).collect();
    }
    let squares = values.iter().zip(&targets).map(|(value, target)| (value - target).powi(2));
    squares.sum::<f64>() / (rows * width) as f64
}

fn network() -> anyhow::Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut network = Network::new(&stream, SMALL, 0.5, 3, 4)?;
    let layout = network.layout().to_vec();
    let end = layout.iter().fold(0, |end, place| if place.start == end { place.end } else { usize::MAX });
    let before = stream.clone_dtoh(&network.parameters())?;
    ensure!(end == before.len(), "{layout:?} is not contiguous");
    let mut ready = Vec::new();
    network.forward()?;
    network.backward(|parameter, gradients| {
        ensure!(gradients.len() == end, "the hook received {} gradients out of {end}", gradients.len());
        ready.push(parameter);
        Ok(())
    })?;
    let backwards: Vec<usize> = (0..layout.len()).rev().collect();
    ensure!(ready == backwards, "the gradients became ready as {ready:?}");
    let gradients = stream.clone_dtoh(&network.gradients_mut())?;
    network.descend()?;
    let after = stream.clone_dtoh(&network.parameters())?;
    let mut parameters: Vec<f64> = before.iter().map(|&value| f64::from(value)).collect();
    let step = 1e-5;
    for at in 0..end {
        let mut error_at = |offset: f64| {
            let kept = parameters[at];
            parameters[at] += offset;
            let error = mean_squared_error(SMALL, &parameters, 4);
            parameters[at] = kept;
            error
        };
        let slope = (error_at(step) - error_at(-step)) / (2.0 * step);
        // The tolerance covers a few dozen roundings of values of size 1, and the difference's own error of about
        // 1e-10.
        ensure!(
            abs_diff_eq!(slope, f64::from(gradients[at]), epsilon = 1e-5),
            "the gradient of value {at} is {}, but finite differences give {slope}",
            gradients[at]
        );
        let stepped = before[at] - 0.5 * gradients[at];
        ensure!(
            abs_diff_eq!(stepped, after[at], epsilon = 1e-6),
            "value {at} became {}, expected {stepped}",
            after[at]
        );
    }
    Ok(())
}

fn network_shapes() -> anyhow::Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let uneven = NetworkShape { heads: 4, ..SMALL };
    let empty = NetworkShape { layers: 0, ..SMALL };
    for (shape, says) in [(uneven, "the width is not divisible by"), (empty, "layers: 0")] {
        let Err(error) = Network::new(&stream, shape, 0.5, 3, 4) else { bail!("{shape:?} was accepted") };
        ensure!(error.to_string().contains(says), "{error}");
    }
    Ok(())
}

/// Scores are sums of at most 64 + 20 + 1 products below 4.
fn perceptron_in_parts() -> anyhow::Result<()> {
    const HIDDEN: usize = 20;
    let stream = CudaContext::new(0)?.new_stream()?;
    let samples = Digits::load()?.train.to_device(&stream)?;
    let batch = samples.batch(0..17)?;
    let mut whole = Perceptron::new(&stream, HIDDEN, 17, 4)?;
    whole.forward_units(&batch)?;
    let expected = stream.clone_dtoh(&whole.scores_mut())?;
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    let mut sum = vec![0.0; expected.len()];
    for units in [0..3, 3..11, 11..20] {
        let mut part = Perceptron::of_units(&stream, HIDDEN, units, 17, 4)?;
        part.forward_units(&batch)?;
        let scores = stream.clone_dtoh(&part.scores_mut())?;
        sum.iter_mut().zip(scores).for_each(|(sum, score)| *sum += score);
    }
    expect("the scores of all parts", &sum, &expected, 64 + HIDDEN + 3, 4.0)?;
    let refused = Perceptron::of_units(&stream, HIDDEN, 11..21, 17, 4).map_err(|error| error.to_string());
    ensure!(
        refused.as_ref().is_err_and(|text| text == "hidden units 11..21 are not within the 20 hidden units"),
        "{refused:?}"
    );
    Ok(())
}

fn wrong_shapes() -> anyhow::Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let of = |inputs: usize, outputs: usize, weights: usize, bias: usize| Weights {
        inputs,
        outputs,
        weights: vec![1.0; weights],
        bias: vec![1.0; bias],
    };
    let answer =
        |weights: &Weights| Linear::new(&stream, weights).map(|_| ()).map_err(|error| error.to_string());
    for (weights, words) in [
        (of(0, 2, 0, 2), "a layer with 0 inputs and 2 outputs computes nothing"),
        (of(3, 2, 5, 2), "5 weights, but 3 inputs and 2 outputs"),
        (of(3, 2, 6, 3), "3 biases, but 2 outputs"),
    ] {
        ensure!(answer(&weights) == Err(words.to_owned()), "{:?}, expected {words}", answer(&weights));
    }
    let layer = Linear::new(&stream, &of(3, 2, 6, 2))?;
    let input = stream.alloc_zeros(7)?;
    let mut output = stream.alloc_zeros(4)?;
    let refused = layer.multiply(&input.as_view(), &mut output.as_view_mut());
    let refused = refused.map_err(|error| error.to_string());
    let words = "7 elements are not a whole number of rows of 3 inputs";
    ensure!(refused == Err(words.to_owned()), "{refused:?}");
    let mlp =
        Mlp::new(&stream, &of(3, 2, 6, 2), &of(3, 1, 3, 1), 1).map(|_| ()).map_err(|error| error.to_string());
    let words = "the first layer has 2 outputs, but the second layer has 3 inputs";
    ensure!(mlp == Err(words.to_owned()), "{mlp:?}");
    Ok(())
}
