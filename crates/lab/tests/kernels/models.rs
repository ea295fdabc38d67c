//! Models, and their gradients.

use anyhow::{bail, ensure};
use approx::abs_diff_eq;
use cudarc::driver::CudaContext;
use lab::digits::Digits;
use lab::perceptron::HostPerceptron;
use lab::random::SplitMix64;
use lab::{Linear, Mlp, Network, NetworkShape, Perceptron, Trainable, Weights};

use super::{expect, expect_error};

/// Pixels are at most 1, and parameters are below 1. So every part of a gradient is a sum of at most 64 + 20 + 10 + 53
/// values below 2.
pub(super) fn perceptron() -> anyhow::Result<()> {
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
    let refused = model.forward(&samples.batch(0..54)?);
    expect_error(refused, "the batch has 54 samples, but the model has buffers for 53")?;
    ensure!(samples.batch(1400..1439).is_err(), "a batch with sample 1,439 of 1,438 must fail");
    Ok(())
}

/// Scores are sums of at most 64 + 20 + 1 products below 4.
pub(super) fn perceptron_in_parts() -> anyhow::Result<()> {
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
    let refused = Perceptron::of_units(&stream, HIDDEN, 11..21, 17, 4);
    expect_error(refused, "hidden units 11..21 are not within the 20 hidden units")
}

pub(super) fn wrong_shapes() -> anyhow::Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let of = |inputs: usize, outputs: usize, weights: usize, bias: usize| Weights {
        inputs,
        outputs,
        weights: vec![1.0; weights],
        bias: vec![1.0; bias],
    };
    for (weights, words) in [
        (of(0, 2, 0, 2), "a layer with 0 inputs and 2 outputs computes nothing"),
        (of(3, 2, 5, 2), "5 weights, but 3 inputs and 2 outputs"),
        (of(3, 2, 6, 3), "3 biases, but 2 outputs"),
    ] {
        expect_error(Linear::new(&stream, &weights), words)?;
    }
    let layer = Linear::new(&stream, &of(3, 2, 6, 2))?;
    let input = stream.alloc_zeros(7)?;
    let mut output = stream.alloc_zeros(4)?;
    let refused = layer.multiply(&input.as_view(), &mut output.as_view_mut());
    expect_error(refused, "7 elements are not a whole number of rows of 3 inputs")?;
    let mlp = Mlp::new(&stream, &of(3, 2, 6, 2), &of(3, 1, 3, 1), 1);
    expect_error(mlp, "the first layer has 2 outputs, but the second layer has 3 inputs")
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

pub(super) fn network() -> anyhow::Result<()> {
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

pub(super) fn network_shapes() -> anyhow::Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let uneven = NetworkShape { heads: 4, ..SMALL };
    let empty = NetworkShape { layers: 0, ..SMALL };
    for (shape, says) in [(uneven, "the width is not divisible by"), (empty, "layers: 0")] {
        let Err(error) = Network::new(&stream, shape, 0.5, 3, 4) else { bail!("{shape:?} was accepted") };
        ensure!(error.to_string().contains(says), "{error}");
    }
    Ok(())
}
