//! A deep network for data parallelism: many layers, many gradients, each ready at its own time.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::{Kernels, Matrix, Product};
use crate::random::SplitMix64;

/// A model on one GPU, as data parallelism sees it. It has several parameters (a layer's weights are one, its biases another),
/// numbered in the order of the forward pass. The gradients of all of them lie in one flat buffer.
pub trait Trainable {
    /// The stream that it computes on.
    fn stream(&self) -> &Arc<CudaStream>;

    /// Where the gradient of each parameter lies in the flat buffer: one behind the other, without gaps.
    fn layout(&self) -> &[Range<usize>];

    /// The gradients of all parameters.
    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32>;

    /// Enqueues the backward pass over this rank's part of the batch. Calls `ready(parameter, gradients)` right behind the work
    /// that writes the gradient of that parameter into the flat buffer `gradients`; the last parameter's comes first. A parameter
    /// that this part of the batch does not use is left out, and nothing is written for it. Returns at once.
    ///
    /// # Errors
    /// Those of `ready`, and what the driver answers.
    fn backward(
        &mut self,
        ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Enqueues a step of the optimizer, with the gradients as they are in the stream then. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    fn descend(&mut self) -> anyhow::Result<()>;
}

/// How large a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Inputs of each layer, and its outputs.
    pub width: usize,
    /// Layers, each with `width` × `width` weights and `width` biases.
    pub layers: usize,
    /// Parameters that the weights of a layer come in, each with as many of the rows: like the matrices of a transformer's
    /// heads. Their gradients are computed together.
    pub heads: usize,
    /// Samples of a rank in each batch.
    pub rows: usize,
}

impl NetworkShape {
    /// Where the weights of a layer lie in the flat buffer, row-major.
    fn weights(self, layer: usize) -> Range<usize> {
        let start = layer * (self.width + 1) * self.width;
        start..start + self.width * self.width
    }

    /// Where its biases do.
    fn biases(self, layer: usize) -> Range<usize> {
        let start = self.weights(layer).end;
        start..start + self.width
    }
}

/// Equal layers, `x → relu(x · w + b)`, the last one without ReLU. It learns to give certain targets, by mean squared error.
#[derive(Debug)]
pub struct Network {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    shape: NetworkShape,
    learning_rate: f32,
    layout: Vec<Range<usize>>,
    parameters: CudaSlice<f32>,
    gradients: CudaSlice<f32>,
    /// The inputs, and each layer's outputs.
    activations: Vec<CudaSlice<f32>>,
    targets: CudaSlice<f32>,
    /// The gradient of a layer's outputs, and of its inputs: the two take turns.
    of_outputs: CudaSlice<f32>,
    of_inputs: CudaSlice<f32>,
}

impl Network {
    /// A network whose values depend on `seed` alone, and whose samples on `seed_of_samples`, on the stream's GPU. Nothing
    /// is allocated afterwards.
    ///
    /// # Errors
    /// The shape has a 0, or what the driver answers.
    pub fn new(
        stream: &Arc<CudaStream>,
        shape: NetworkShape,
        learning_rate: f32,
        seed: u64,
        seed_of_samples: u64,
    ) -> anyhow::Result<Self> {
        let NetworkShape { width, layers, heads, rows } = shape;
        ensure!(width > 0 && layers > 0 && heads > 0 && rows > 0, "{shape:?}: a network has none of them 0");
        ensure!(width.is_multiple_of(heads), "{shape:?}: the width doesn't divide by the heads");
        let mut layout = Vec::new();
        for layer in 0..layers {
            let (weights, biases) = (shape.weights(layer), shape.biases(layer));
            let head = weights.len() / heads;
            layout.extend(weights.step_by(head).map(|start| start..start + head));
            layout.push(biases);
        }
        let elements = layers * (width + 1) * width;
        let (mut random, mut samples) = (SplitMix64::new(seed), SplitMix64::new(seed_of_samples));
        let bound = (6.0 / width as f32).sqrt();
        let parameters: Vec<f32> = (0..elements).map(|_| random.uniform(-bound, bound)).collect();
        let mut sample = || -> Vec<f32> { (0..rows * width).map(|_| samples.uniform(-1.0, 1.0)).collect() };
        let (inputs, targets) = (stream.clone_htod(&sample())?, stream.clone_htod(&sample())?);
        let zeros = |len| stream.alloc_zeros(len).with_context(|| format!("{len} floats for the network"));
        let mut activations = vec![inputs];
        for _ in 0..layers {
            activations.push(zeros(rows * width)?);
        }
        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            shape,
            learning_rate,
            layout,
            parameters: stream.clone_htod(&parameters)?,
            gradients: zeros(elements)?,
            activations,
            targets,
            of_outputs: zeros(rows * width)?,
            of_inputs: zeros(rows * width)?,
        })
    }

    /// All parameters.
    pub fn parameters(&self) -> CudaView<'_, f32> {
        self.parameters.as_view()
    }

    /// Computes every layer's outputs. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn forward(&mut self) -> anyhow::Result<()> {
        let NetworkShape { width, layers, rows, .. } = self.shape;
        let mut activations = std::mem::take(&mut self.activations);
        let (kernels, stream, parameters) = (&self.kernels, &*self.stream, &self.parameters);
        for layer in 0..layers {
            let weights = parameters.slice(self.shape.weights(layer));
            let biases = parameters.slice(self.shape.biases(layer));
            let [inputs, outputs] = &mut activations[layer..layer + 2] else {
                unreachable!("a window of two")
            };
            kernels.matmul(stream, outputs, inputs, &weights, Product { m: rows, n: width, k: width })?;
            kernels.add_bias(stream, outputs, &biases, Matrix { rows, columns: width })?;
            if layer + 1 < layers {
                kernels.relu(stream, outputs)?;
            }
        }
        self.activations = activations;
        Ok(())
    }
}

impl Trainable for Network {
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn layout(&self) -> &[Range<usize>] {
        &self.layout
    }

    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradients.as_view_mut()
    }

    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let NetworkShape { width, layers, heads, rows } = self.shape;
        let Self { stream, kernels, parameters, activations, targets, of_outputs, of_inputs, .. } = self;
        let mut gradients = self.gradients.as_view_mut();
        // The mean of (output − target)² has the gradient 2 · (output − target) / elements.
        stream.memcpy_dtod(&activations[layers], of_outputs)?;
        kernels.axpy(stream, of_outputs, targets, -1.0)?;
        kernels.scale(stream, of_outputs, 2.0 / (rows * width) as f32)?;
        for layer in (0..layers).rev() {
            let first = layer * (heads + 1);
            if layer + 1 < layers {
                kernels.relu_gradient(stream, of_outputs, &activations[layer + 1])?;
            }
            let mut of_biases = gradients.slice_mut(self.shape.biases(layer));
            kernels.column_sums(stream, &mut of_biases, of_outputs, Matrix { rows, columns: width })?;
            ready(first + heads, &mut gradients)?;
            let mut of_weights = gradients.slice_mut(self.shape.weights(layer));
            let shape = Product { m: width, n: width, k: rows };
            kernels.matmul_ta(stream, &mut of_weights, &activations[layer], of_outputs, shape)?;
            for head in (first..first + heads).rev() {
                ready(head, &mut gradients)?;
            }
            if layer > 0 {
                let weights = parameters.slice(self.shape.weights(layer));
                let shape = Product { m: rows, n: width, k: width };
                kernels.matmul_tb(stream, of_inputs, of_outputs, &weights, shape)?;
                std::mem::swap(of_inputs, of_outputs);
            }
        }
        Ok(())
    }

    fn descend(&mut self) -> anyhow::Result<()> {
        self.kernels.sgd_step(&self.stream, &mut self.parameters, &self.gradients, self.learning_rate)
    }
}
