//! A deep network for data parallelism, with many layers whose gradients are ready at different times.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::{Kernels, Matrix, Product};
use crate::random::SplitMix64;

/// A model on one GPU, as seen by data parallelism. Its parameters are numbered in the order of the forward pass; a
/// layer's weights are one parameter, and its biases another. The gradients of all parameters lie in one flat buffer.
pub trait Trainable {
    /// Returns the stream that the model computes on.
    fn stream(&self) -> &Arc<CudaStream>;

    /// Returns the range of each parameter's gradient in the flat buffer. The ranges are consecutive, without gaps.
    fn layout(&self) -> &[Range<usize>];

    /// Returns the gradients of all parameters.
    fn gradients_mut(&mut self) -> CudaViewMut<'_, f32>;

    /// Enqueues the backward pass over this rank's part of the batch. Right after enqueuing the work that writes a
    /// parameter's gradient to the flat buffer `gradients`, it calls `ready(parameter, gradients)`, starting with the
    /// last parameter. For a parameter that this part of the batch does not use, it neither writes anything nor calls
    /// `ready`. Returns at once.
    ///
    /// # Errors
    /// Returns any error from `ready` or the driver.
    fn backward(
        &mut self,
        ready: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Enqueues an optimizer step, which uses the gradients at that point in the stream. Returns at once.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    fn descend(&mut self) -> anyhow::Result<()>;
}

/// The size of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// The number of inputs of each layer, and the number of outputs.
    pub width: usize,
    /// The number of layers, each with `width` × `width` weights and `width` biases.
    pub layers: usize,
    /// The number of parameters that a layer's weights are divided into, like the matrices of a transformer's heads.
    /// All have the same number of rows, and their gradients are computed together.
    pub heads: usize,
    /// The number of samples per rank in each batch.
    pub rows: usize,
}

impl NetworkShape {
    /// Returns the range of a layer's weights in the flat buffer, row-major.
    fn weights(self, layer: usize) -> Range<usize> {
        let start = layer * (self.width + 1) * self.width;
        start..start + self.width * self.width
    }

    /// Returns the range of a layer's biases in the flat buffer.
    fn biases(self, layer: usize) -> Range<usize> {
        let start = self.weights(layer).end;
        start..start + self.width
    }
}

/// A network of identical layers, `x → relu(x · w + b)`. The last layer has no ReLU. It is trained on given targets
/// with the mean squared error.
#[derive(Debug)]
pub struct Network {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    shape: NetworkShape,
    learning_rate: f32,
    layout: Vec<Range<usize>>,
    parameters: CudaSlice<f32>,
    gradients: CudaSlice<f32>,
    /// The inputs, followed by the outputs of each layer.
    activations: Vec<CudaSlice<f32>>,
    targets: CudaSlice<f32>,
    /// The gradient of a layer's outputs. It is swapped with `of_inputs` after each layer.
    of_outputs: CudaSlice<f32>,
    /// The gradient of a layer's inputs.
    of_inputs: CudaSlice<f32>,
}

impl Network {
    /// Creates a network on the stream's GPU. Its parameters depend only on `seed`, and its samples only on
    /// `seed_of_samples`. All memory is allocated here.
    ///
    /// # Errors
    /// Fails if the shape contains a 0, if the width is not divisible by `heads`, or if a driver call fails.
    pub fn new(
        stream: &Arc<CudaStream>,
        shape: NetworkShape,
        learning_rate: f32,
        seed: u64,
        seed_of_samples: u64,
    ) -> anyhow::Result<Self> {
        let NetworkShape { width, layers, heads, rows } = shape;
        ensure!(width > 0 && layers > 0 && heads > 0 && rows > 0, "{shape:?}: every size must be above 0");
        ensure!(width.is_multiple_of(heads), "{shape:?}: the width is not divisible by the number of heads");
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
        let zeros = |len| {
            stream.alloc_zeros(len).with_context(|| format!("can't allocate {len} floats for the network"))
        };
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

    /// Returns all parameters.
    pub fn parameters(&self) -> CudaView<'_, f32> {
        self.parameters.as_view()
    }

    /// Enqueues the work that computes every layer's outputs. Returns at once.
    ///
    /// # Errors
    /// Fails if a driver call fails.
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
        // The gradient of the mean of (output − target)² is 2 · (output − target) / elements.
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
