//! Compares each kernel with the same computation on the host, and checks the errors of its method.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{bail, ensure};
use approx::abs_diff_eq;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use lab::compare::UNIT_ROUNDOFF;
use lab::digits::Digits;
use lab::kernels::{Matrix, Product};
use lab::perceptron::HostPerceptron;
use lab::random::SplitMix64;
use lab::{
    Check, Kernels, Linear, Mlp, Momentum, Network, NetworkShape, Perceptron, Trainable, Weights,
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
