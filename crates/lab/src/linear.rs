//! Linear layers on one GPU, in pieces: what a layer on several GPUs is made of.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::{Kernels, Matrix, Product};

/// Weights and biases of a layer that computes `input · weights + bias`, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Values that go in, per sample.
    pub inputs: usize,
    /// Values that come out, per sample.
    pub outputs: usize,
    /// `inputs` × `outputs`, row-major: a row for each input, a column for each output.
    pub weights: Vec<f32>,
    /// One for each output.
    pub bias: Vec<f32>,
}

/// A layer on one GPU, with its gradients. Everything is enqueued on its stream, and waits for nothing.
///
/// Inputs and outputs are row-major, one row per sample: how many samples there are, a buffer's length says. Every method
/// fails where a buffer is no whole number of rows, or where two buffers differ in their samples; or with what the driver
/// answers.
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
    /// The layer with these weights, on the stream's GPU. Its gradients are 0.
    ///
    /// # Errors
    /// There is no input or no output, the lengths are not what `inputs` and `outputs` say, or what the driver answers.
    pub fn new(stream: &Arc<CudaStream>, weights: &Weights) -> anyhow::Result<Self> {
        let Weights { inputs, outputs, weights, bias } = weights;
        ensure!(
            *inputs > 0 && *outputs > 0,
            "a layer of {inputs} inputs and {outputs} outputs computes nothing"
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

    /// `output = input · weights`, without the bias.
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

    /// Computes the gradients of the weights, `inputᵀ · output_gradient`, and of the bias, the sum over the samples of
    /// `output_gradient`. They replace what [`weights_gradient`](Self::weights_gradient) and
    /// [`bias_gradient`](Self::bias_gradient) held.
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

    /// `input_gradient = output_gradient · weightsᵀ`.
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

    /// Gradient descent: `weights -= learning_rate · weights_gradient`, and the same for the bias.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn descend(&mut self, learning_rate: f32) -> anyhow::Result<()> {
        let (kernels, stream) = (&self.kernels, &*self.stream);
        kernels.sgd_step(stream, &mut self.weights, &self.weights_gradient, learning_rate)?;
        kernels.sgd_step(stream, &mut self.bias, &self.bias_gradient, learning_rate)
    }

    /// The gradient of the weights, laid out as [`Weights::weights`].
    pub fn weights_gradient(&self) -> CudaView<'_, f32> {
        self.weights_gradient.as_view()
    }

    /// The same, to be changed.
    pub fn weights_gradient_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.weights_gradient.as_view_mut()
    }

    /// The gradient of the bias, one for each output.
    pub fn bias_gradient(&self) -> CudaView<'_, f32> {
        self.bias_gradient.as_view()
    }

    /// The same, to be changed.
    pub fn bias_gradient_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.bias_gradient.as_view_mut()
    }

    /// The layer's weights as they are now, in host memory. Waits for the GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn to_host(&self) -> anyhow::Result<Weights> {
        let (weights, bias) = (self.stream.clone_dtoh(&self.weights)?, self.stream.clone_dtoh(&self.bias)?);
        self.stream.synchronize()?;
        Ok(Weights { inputs: self.inputs, outputs: self.outputs, weights, bias })
    }

    /// How many samples an input, or its gradient, of this length has.
    fn samples(&self, len: usize) -> anyhow::Result<usize> {
        let inputs = self.inputs;
        ensure!(len.is_multiple_of(inputs), "{len} elements are no whole number of rows of {inputs} inputs");
        Ok(len / inputs)
    }
}

/// Two layers of one GPU, or one rank's parts of two layers, with ReLU between them and the buffers that this takes.
#[derive(Debug)]
pub struct Mlp {
    /// The layer from the input to the hidden units.
    pub first: Linear,
    /// The layer from the hidden units to the output.
    pub second: Linear,
    /// The hidden units' values, one row per sample.
    pub hidden: CudaSlice<f32>,
    /// The gradient of these values.
    pub hidden_gradient: CudaSlice<f32>,
}

impl Mlp {
    /// Two layers for `samples` samples at a time, on the stream's GPU.
    ///
    /// # Errors
    /// As [`Linear::new`]; or `first` has not as many outputs as `second` has inputs, or there are no samples.
    pub fn new(
        stream: &Arc<CudaStream>,
        first: &Weights,
        second: &Weights,
        samples: usize,
    ) -> anyhow::Result<Self> {
        let (units, inputs) = (first.outputs, second.inputs);
        ensure!(
            units == inputs,
            "the first layer has {units} outputs, but the second one has {inputs} inputs"
        );
        ensure!(samples > 0, "there must be room for at least one sample");
        Ok(Self {
            first: Linear::new(stream, first)?,
            second: Linear::new(stream, second)?,
            hidden: stream.alloc_zeros(samples * units)?,
            hidden_gradient: stream.alloc_zeros(samples * units)?,
        })
    }

    /// ReLU over the hidden units' values, in place.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn relu(&mut self) -> anyhow::Result<()> {
        self.first.kernels.relu(&self.first.stream, &mut self.hidden)
    }

    /// ReLU's slope, 0 or 1, times the gradient of the hidden units' values, in place.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn relu_gradient(&mut self) -> anyhow::Result<()> {
        self.first.kernels.relu_gradient(&self.first.stream, &mut self.hidden_gradient, &self.hidden)
    }
}
