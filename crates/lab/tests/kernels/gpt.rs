//! Compares a small GPT with the same computation on the host.

use anyhow::ensure;
use lab::gpt::{Batch, HostGpt, Text};
use lab::{Expected, Gpt, GptShape};

const SHAPE: GptShape =
    GptShape { vocabulary: 51, context: 7, width: 12, heads: 6, head_width: 3, hidden: 30, blocks: 2 };

/// How many times a result may be rounded: a sum has at most 51 terms, and about 20 sums follow each other.
const ROUNDINGS: f64 = 51.0 * 20.0;
/// How far the loss may be from the host's, which is in double precision. No score exceeds 8.
const LOSS_BOUND: f64 = ROUNDINGS * 8.0 * lab::compare::UNIT_ROUNDOFF;
/// How far a gradient may be from the host's. It is an average over tokens, and no sum of it exceeds ½.
const GRADIENT_BOUND: f64 = ROUNDINGS * 0.5 * lab::compare::UNIT_ROUNDOFF;

fn parameters() -> Vec<f32> {
    let mut parameters = SHAPE.initial(5);
    // Gains differ from each other.
    for layer in 1..SHAPE.layers() {
        let start = SHAPE.range(layer).start;
        let gains = &mut parameters[start..start + SHAPE.width];
        gains.iter_mut().enumerate().for_each(|(index, gain)| *gain += 0.1 * (index as f32 - 4.0));
    }
    parameters
}

fn batch() -> Batch {
    Text::sonnets().batch(9, 5, SHAPE.context)
}

/// Runs the model forward and backward.
pub(super) fn whole() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let (parameters, batch) = (parameters(), batch());
    let mut gpt = Gpt::new(&stream, SHAPE, batch.len())?;
    let weights = stream.clone_htod(&parameters)?;
    let mut gradient = stream.alloc_zeros::<f32>(parameters.len())?;
    gpt.begin(&batch)?;
    for layer in 0..SHAPE.layers() {
        gpt.forward(layer, &weights.slice(SHAPE.range(layer)))?;
    }
    for layer in (0..SHAPE.layers()).rev() {
        let range = SHAPE.range(layer);
        gpt.backward(layer, &weights.slice(range.clone()), &mut gradient.slice_mut(range))?;
    }
    let (loss, gradient) = (stream.clone_dtoh(&gpt.loss())?, stream.clone_dtoh(&gradient)?);
    stream.synchronize()?;
    compare(&loss, &gradient)
}

fn compare(loss: &[f32], gradient: &[f32]) -> anyhow::Result<()> {
    let (expected_loss, expected) = HostGpt::new(SHAPE, &parameters()).loss_and_gradient(&batch());
    Expected::of("the loss", &[expected_loss as f32]).within(LOSS_BOUND, loss)?;
    for layer in 0..SHAPE.layers() {
        let range = SHAPE.range(layer);
        let expected: Vec<f32> = expected[range.clone()].iter().map(|&value| value as f32).collect();
        let name = format!("the gradient of layer {layer}, {}", SHAPE.name(layer));
        Expected::of(&name, &expected).within(GRADIENT_BOUND, &gradient[range])?;
    }
    Ok(())
}

/// Runs three parts of the model, which divide heads and hidden units, on one GPU, layer by layer.
pub(super) fn parts() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let (batch, part) = (batch(), SHAPE.part(3)?);
    let mut models = Vec::new();
    for own in SHAPE.split(&parameters(), 3)? {
        let mut gpt = Gpt::new(&stream, part, batch.len())?;
        gpt.begin(&batch)?;
        models.push((gpt, stream.clone_htod(&own)?, stream.alloc_zeros::<f32>(own.len())?));
    }
    // Every model's partial result becomes the sum of all.
    let sum = |models: &mut [(Gpt, _, _)]| -> anyhow::Result<()> {
        let mut sum = stream.clone_dtoh(&models[0].0.partial_mut())?;
        for (gpt, _, _) in &mut models[1..] {
            let other = stream.clone_dtoh(&gpt.partial_mut())?;
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        }
        models.iter_mut().try_for_each(|(gpt, _, _)| Ok(stream.memcpy_htod(&sum, &mut gpt.partial_mut())?))
    };
    let last = SHAPE.layers() - 1;
    for layer in 0..=last {
        let range = part.range(layer);
        let is_divided = layer > 0 && layer < last;
        for (gpt, weights, _) in &mut models {
            let weights = weights.slice(range.clone());
            if is_divided { gpt.branch(layer, &weights)? } else { gpt.forward(layer, &weights)? }
        }
        if is_divided {
            sum(&mut models)?;
            models.iter_mut().try_for_each(|(gpt, _, _)| gpt.join(layer))?;
        }
    }
    for layer in (0..=last).rev() {
        let range = part.range(layer);
        let is_divided = layer > 0 && layer < last;
        for (gpt, weights, gradient) in &mut models {
            let (weights, mut gradient) = (weights.slice(range.clone()), gradient.slice_mut(range.clone()));
            if is_divided {
                gpt.branch_back(layer, &weights, &mut gradient)?;
            } else {
                gpt.backward(layer, &weights, &mut gradient)?;
            }
        }
        if is_divided {
            sum(&mut models)?;
            for (gpt, weights, gradient) in &mut models {
                gpt.join_back(layer, &weights.slice(range.clone()), &mut gradient.slice_mut(range.clone()))?;
            }
        }
    }
    let mut gradients = Vec::new();
    for (_, _, gradient) in &models {
        gradients.push(stream.clone_dtoh(gradient)?);
    }
    let loss = stream.clone_dtoh(&models[1].0.loss())?;
    stream.synchronize()?;
    compare(&loss, &SHAPE.merge(&gradients)?)
}

/// Calls with wrong layers and lengths are refused.
pub(super) fn refusals() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let mut gpt = Gpt::of_layers(&stream, SHAPE, 1..3, 5)?;
    let weights = stream.clone_htod(&parameters())?;
    let mut gradient = stream.alloc_zeros::<f32>(3)?;
    let refused = [
        (gpt.forward(0, &weights.slice(SHAPE.range(0))), "has layers 1..3, and 0 is not one of them"),
        (gpt.branch(5, &weights.slice(SHAPE.range(5))), "layer 5, the output, has no branch"),
        (gpt.forward(1, &weights.slice(SHAPE.range(2))), "`parameters` of layer 1, attention 0, has"),
        (
            gpt.backward(2, &weights.slice(SHAPE.range(2)), &mut gradient.as_view_mut()),
            "`gradient` of layer 2",
        ),
        (gpt.begin(&batch().sequences(1..3)), "the batch has 2 sequences of 7 tokens"),
        (Gpt::of_layers(&stream, SHAPE, 3..9, 5).map(drop), "there are no layers 3..9 of 6"),
    ];
    for (result, words) in refused {
        let text = result.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains(words), "expected {words:?}, got {text:?}");
    }
    Ok(())
}
