//! Linear layers on one GPU, as building blocks for a layer on several GPUs.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::{Kernels, Matrix, Product};

/// The weights and biases of a layer that computes `input · weights + bias`, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The number of inputs per sample.
    pub inputs: usize,
    /// The number of outputs per sample.
    pub outputs: usize,
    /// `inputs` × `outputs`, row-major: a row for each input, a column for each output.
    pub weights: Vec<f32>,
    /// The biases, one for each output.
    pub bias: Vec<f32>,
}

/// A layer and its gradients on one GPU. Its methods enqueue their work on its stream and do not wait.
///
/// Inputs and outputs are row-major, with one row per sample, so a buffer's length determines the number of samples.
/// Every method fails if a buffer's length is not a whole number of rows, or if two buffers have different numbers of
/// samples. Methods also return the driver's errors.
#[derive(Debug)]
pub struct Linear {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    inputs: usize,
    outputs: usize,
    weights: CudaSlice<f32>,
    bias: CudaSlice<f32>,
    weights_gradient: CudaSlice<f32>,
    bias_gradient: CudaSlice<f32>,
}

impl Linear {
    /// Creates a layer with these weights on the stream's GPU. Its gradients are 0.
    ///
    /// # Errors
    /// Fails if there are no inputs or no outputs, if the lengths don't match `inputs` and `outputs`, or with the
    /// driver's error.
    pub fn new(stream: &Arc<CudaStream>, weights: &Weights) -> anyhow::Result<Self> {
        let Weights { inputs, outputs, weights, bias } = weights;
        ensure!(
            *inputs > 0 && *outputs > 0,
            "a layer with {inputs} inputs and {outputs} outputs computes nothing"
        );
        let len = weights.len();
        ensure!(len == inputs * outputs, "{len} weights, but {inputs} inputs and {outputs} outputs");
        ensure!(bias.len() == *outputs, "{} biases, but {outputs} outputs", bias.len());
        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            inputs: *inputs,
            outputs: *outputs,
            weights: stream.clone_htod(weights)?,
            bias: stream.clone_htod(bias)?,
            weights_gradient: stream.alloc_zeros(len)?,
            bias_gradient: stream.alloc_zeros(*outputs)?,
        })
    }

    /// Computes `output = input · weights`, without the bias.
    ///
    /// # Errors
    /// See [`Linear`].
    pub fn multiply(&self, input: &CudaView<f32>, output: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let shape = Product { m: self.samples(input.len())?, n: self.outputs, k: self.inputs };
        self.kernels.matmul(&self.stream, output, input, &self.weights, shape)
    }

    /// Adds the bias to each row of `output`.
    ///
    /// # Errors
    /// See [`Linear`].
    pub fn add_bias(&self, output: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let shape = Matrix { rows: output.len() / self.outputs, columns: self.outputs };
        self.kernels.add_bias(&self.stream, output, &self.bias, shape)
    }

    /// Computes the gradient of the weights, `inputᵀ · output_gradient`, and the gradient of the bias, the sum of
    /// `output_gradient` over the samples. They replace the contents of [`weights_gradient`](Self::weights_gradient)
    /// and [`bias_gradient`](Self::bias_gradient).
    ///
    /// # Errors
    /// See [`Linear`].
    pub fn differentiate(
        &mut self,
        input: &CudaView<f32>,
        output_gradient: &CudaView<f32>,
    ) -> anyhow::Result<()> {
        let samples = self.samples(input.len())?;
        let shape = Product { m: self.inputs, n: self.outputs, k: samples };
        self.kernels.matmul_ta(&self.stream, &mut self.weights_gradient, input, output_gradient, shape)?;
        let shape = Matrix { rows: samples, columns: self.outputs };
        self.kernels.column_sums(&self.stream, &mut self.bias_gradient, output_gradient, shape)
    }

    /// Computes `input_gradient = output_gradient · weightsᵀ`.
    ///
    /// # Errors
    /// See [`Linear`].
    pub fn multiply_back(
        &self,
        output_gradient: &CudaView<f32>,
        input_gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        let shape = Product { m: self.samples(input_gradient.len())?, n: self.inputs, k: self.outputs };
        self.kernels.matmul_tb(&self.stream, input_gradient, output_gradient, &self.weights, shape)
    }

    /// Takes a step of gradient descent: `weights -= learning_rate · weights_gradient`, and the same for the bias.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn descend(&mut self, learning_rate: f32) -> anyhow::Result<()> {
        let (kernels, stream) = (&self.kernels, &*self.stream);
        kernels.sgd_step(stream, &mut self.weights, &self.weights_gradient, learning_rate)?;
        kernels.sgd_step(stream, &mut self.bias, &self.bias_gradient, learning_rate)
    }

    /// Returns the gradient of the weights, laid out like [`Weights::weights`].
    pub fn weights_gradient(&self) -> CudaView<'_, f32> {
        self.weights_gradient.as_view()
    }

    /// Returns a mutable view of the gradient of the weights.
    pub fn weights_gradient_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.weights_gradient.as_view_mut()
    }

    /// Returns the gradient of the bias, with one value per output.
    pub fn bias_gradient(&self) -> CudaView<'_, f32> {
        self.bias_gradient.as_view()
    }

    /// Returns a mutable view of the gradient of the bias.
    pub fn bias_gradient_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.bias_gradient.as_view_mut()
    }

    /// Copies the layer's current weights to host memory. Waits for the GPU.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn to_host(&self) -> anyhow::Result<Weights> {
        let (weights, bias) = (self.stream.clone_dtoh(&self.weights)?, self.stream.clone_dtoh(&self.bias)?);
        self.stream.synchronize()?;
        Ok(Weights { inputs: self.inputs, outputs: self.outputs, weights, bias })
    }

    /// Returns the number of samples in an input, or an input's gradient, with this length.
    fn samples(&self, len: usize) -> anyhow::Result<usize> {
        let inputs = self.inputs;
        ensure!(
            len.is_multiple_of(inputs),
            "{len} elements are not a whole number of rows of {inputs} inputs"
        );
        Ok(len / inputs)
    }
}

/// Two layers on one GPU, or one rank's parts of two layers, with ReLU between them and the buffers for it.
#[derive(Debug)]
pub struct Mlp {
    /// The layer from the input to the hidden units.
    pub first: Linear,
    /// The layer from the hidden units to the output.
    pub second: Linear,
    /// The values of the hidden units, one row per sample.
    pub hidden: CudaSlice<f32>,
    /// The gradient of these values.
    pub hidden_gradient: CudaSlice<f32>,
}

impl Mlp {
    /// Creates two layers for `samples` samples at a time on the stream's GPU.
    ///
    /// # Errors
    /// Fails like [`Linear::new`]. Also fails if `second` does not have as many inputs as `first` has outputs, or if
    /// `samples` is 0.
    pub fn new(
        stream: &Arc<CudaStream>,
        first: &Weights,
        second: &Weights,
        samples: usize,
    ) -> anyhow::Result<Self> {
        let (units, inputs) = (first.outputs, second.inputs);
        ensure!(
            units == inputs,
            "the first layer has {units} outputs, but the second layer has {inputs} inputs"
        );
        ensure!(samples > 0, "there must be room for at least one sample");
        Ok(Self {
            first: Linear::new(stream, first)?,
            second: Linear::new(stream, second)?,
            hidden: stream.alloc_zeros(samples * units)?,
            hidden_gradient: stream.alloc_zeros(samples * units)?,
        })
    }

    /// Applies ReLU to the values of the hidden units, in place.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn relu(&mut self) -> anyhow::Result<()> {
        self.first.kernels.relu(&self.first.stream, &mut self.hidden)
    }

    /// Multiplies the gradient of the hidden units' values by ReLU's slope, 0 or 1, in place.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn relu_gradient(&mut self) -> anyhow::Result<()> {
        self.first.kernels.relu_gradient(&self.first.stream, &mut self.hidden_gradient, &self.hidden)
    }
}
