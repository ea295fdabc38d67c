//! A two-layer perceptron that classifies handwritten digits: 64 pixels → hidden units with ReLU → 10 classes, softmax,
//! and cross-entropy. It runs on one GPU and is unaware of other GPUs.

mod host;
mod layout;

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

pub use host::HostPerceptron;
pub use layout::Layout;

use crate::digits::{Batch, CLASSES, DeviceSamples, PIXELS};
use crate::kernels::{Kernels, Matrix, Product};

/// The model on one GPU, with all its buffers. Nothing is allocated after [`Perceptron::new`].
///
/// All parameters lie in one flat buffer, laid out as [`Layout`] describes. Their gradients lie in another flat buffer,
/// followed by the loss, so one collective can handle them all. The methods enqueue their work on the model's stream
/// and do not wait, except [`loss`](Self::loss) and [`accuracy`](Self::accuracy), which return a number to the host.
#[derive(Debug)]
pub struct Perceptron {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    layout: Layout,
    max_batch: usize,
    parameters: CudaSlice<f32>,
    /// The gradients, one per parameter, followed by the loss.
    gradient_and_loss: CudaSlice<f32>,
    /// The hidden activations. These and the next three buffers have one row per sample.
    hidden: CudaSlice<f32>,
    hidden_gradient: CudaSlice<f32>,
    logits: CudaSlice<f32>,
    logits_gradient: CudaSlice<f32>,
    /// The losses, one per sample.
    losses: CudaSlice<f32>,
    correct: CudaSlice<u32>,
    /// The number of samples in the last forward pass.
    forwarded: Option<usize>,
}

impl Perceptron {
    /// Creates a model with `hidden` units for batches of at most `max_batch` samples on the stream's GPU. Its
    /// parameters depend only on the seed ([`Layout::initial`]).
    ///
    /// # Errors
    /// Fails if `hidden` or `max_batch` is 0, or if a driver call fails.
    pub fn new(stream: &Arc<CudaStream>, hidden: usize, max_batch: usize, seed: u64) -> anyhow::Result<Self> {
        Self::of_units(stream, hidden, 0..hidden, max_batch, seed)
    }

    /// Creates one rank's part of that model, for several ranks that share its hidden layer. The part has only the
    /// hidden units `units`, with their parameters from the full model ([`Layout::of_units`]). Every part has the class
    /// biases.
    ///
    /// A part's [`forward`](Self::forward) does not compute the full model's result. Call
    /// [`forward_units`](Self::forward_units) instead, sum [`scores_mut`](Self::scores_mut) over all parts, and call
    /// [`finish_scores`](Self::finish_scores). The part's backward pass then computes its units' gradients.
    ///
    /// # Errors
    /// Fails if `units` is empty or extends beyond `hidden`, if `max_batch` is 0, or if a driver call fails.
    pub fn of_units(
        stream: &Arc<CudaStream>,
        hidden: usize,
        units: Range<usize>,
        max_batch: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let Range { start, end } = units;
        ensure!(start < end, "a perceptron must have at least one hidden unit");
        ensure!(end <= hidden, "hidden units {start}..{end} are not within the {hidden} hidden units");
        ensure!(max_batch > 0, "a batch must hold at least one sample");
        let (layout, whole) = (Layout { hidden: units.len() }, Layout { hidden });
        let (initial, hidden) = (whole.of_units(&whole.initial(seed), units), layout.hidden);
        let zeros = |len| {
            stream.alloc_zeros(len).with_context(|| format!("can't allocate {len} floats for the perceptron"))
        };
        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            layout,
            max_batch,
            parameters: stream.clone_htod(&initial)?,
            gradient_and_loss: zeros(layout.parameters() + 1)?,
            hidden: zeros(max_batch * hidden)?,
            hidden_gradient: zeros(max_batch * hidden)?,
            logits: zeros(max_batch * CLASSES)?,
            logits_gradient: zeros(max_batch * CLASSES)?,
            losses: zeros(max_batch)?,
            correct: stream.alloc_zeros(1)?,
            forwarded: None,
        })
    }

    /// Returns the stream that all of the model's work runs on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Returns the positions of the parameters and their gradients.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns all parameters.
    pub fn parameters(&self) -> CudaView<'_, f32> {
        self.parameters.as_view()
    }

    /// Returns a mutable view of all parameters.
    pub fn parameters_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.parameters.as_view_mut()
    }

    /// Returns the result of the last backward pass: the gradients in the order of the parameters, followed by the
    /// loss.
    pub fn gradient_and_loss(&self) -> CudaView<'_, f32> {
        self.gradient_and_loss.as_view()
    }

    /// Returns a mutable view of the last backward pass's result.
    pub fn gradient_and_loss_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradient_and_loss.as_view_mut()
    }

    /// Computes the class scores of each sample in the batch.
    ///
    /// # Errors
    /// Fails if the batch has more than `max_batch` samples, or if a driver call fails.
    pub fn forward(&mut self, batch: &Batch<'_>) -> anyhow::Result<()> {
        self.forward_units(batch)?;
        self.finish_scores()
    }

    /// Computes the contribution of the hidden units to the class scores of each sample. This is the first half of
    /// [`forward`](Self::forward), everything except the class biases.
    ///
    /// # Errors
    /// Fails like [`forward`](Self::forward).
    pub fn forward_units(&mut self, batch: &Batch<'_>) -> anyhow::Result<()> {
        let rows = batch.len();
        ensure!(
            rows <= self.max_batch,
            "the batch has {rows} samples, but the model has buffers for {}",
            self.max_batch
        );
        let (layout, units) = (self.layout, self.layout.hidden);
        let (kernels, stream, parameters) = (&self.kernels, &*self.stream, &self.parameters);
        self.forwarded = Some(rows);

        let mut hidden = self.hidden.slice_mut(..rows * units);
        let shape = Product { m: rows, n: units, k: PIXELS };
        kernels.matmul(stream, &mut hidden, &batch.pixels, &parameters.slice(layout.w1()), shape)?;
        let bias = parameters.slice(layout.b1());
        kernels.add_bias(stream, &mut hidden, &bias, Matrix { rows, columns: units })?;
        kernels.relu(stream, &mut hidden)?;

        let mut logits = self.logits.slice_mut(..rows * CLASSES);
        let shape = Product { m: rows, n: CLASSES, k: units };
        kernels.matmul(stream, &mut logits, &hidden, &parameters.slice(layout.w2()), shape)
    }

    /// Returns a mutable view of the last forward pass's class scores, with a row of [`CLASSES`] per sample.
    pub fn scores_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.logits.slice_mut(..self.forwarded.unwrap_or(0) * CLASSES)
    }

    /// Adds the class biases to the scores. This is the second half of [`forward`](Self::forward).
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn finish_scores(&mut self) -> anyhow::Result<()> {
        let rows = self.forwarded.unwrap_or(0);
        let mut logits = self.logits.slice_mut(..rows * CLASSES);
        let bias = self.parameters.slice(self.layout.b2());
        let shape = Matrix { rows, columns: CLASSES };
        self.kernels.add_bias(&self.stream, &mut logits, &bias, shape)
    }

    /// Computes `weight` × the gradient of the batch's mean loss, followed by `weight` × that mean loss. For an empty
    /// batch, the results are zeros. They replace the results of the last backward pass. Call it after
    /// [`forward`](Self::forward) with the same batch.
    ///
    /// # Errors
    /// Fails if the last forward pass had a different number of samples, or if a driver call fails.
    pub fn backward(&mut self, batch: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        let rows = batch.len();
        ensure!(
            self.forwarded == Some(rows),
            "backward over {rows} samples, but the last forward pass had {}",
            self.forwarded.unwrap_or(0)
        );
        let (layout, units) = (self.layout, self.layout.hidden);
        let (kernels, stream) = (&self.kernels, &*self.stream);
        let factor = if rows == 0 { 0.0 } else { weight / rows as f32 };
        let scores = Matrix { rows, columns: CLASSES };

        let logits = self.logits.slice(..rows * CLASSES);
        let mut losses = self.losses.slice_mut(..rows);
        let mut loss = self.gradient_and_loss.slice_mut(layout.parameters()..);
        kernels.cross_entropy(stream, &mut losses, &logits, &batch.labels, scores)?;
        kernels.sum(stream, &mut loss, &losses)?;
        kernels.scale(stream, &mut loss, factor)?;

        let mut of_logits = self.logits_gradient.slice_mut(..rows * CLASSES);
        kernels.cross_entropy_gradient(stream, &mut of_logits, &logits, &batch.labels, factor, scores)?;
        let hidden = self.hidden.slice(..rows * units);
        let mut of_w2 = self.gradient_and_loss.slice_mut(layout.w2());
        kernels.matmul_ta(
            stream,
            &mut of_w2,
            &hidden,
            &of_logits,
            Product { m: units, n: CLASSES, k: rows },
        )?;
        let mut of_b2 = self.gradient_and_loss.slice_mut(layout.b2());
        kernels.column_sums(stream, &mut of_b2, &of_logits, scores)?;

        let mut of_hidden = self.hidden_gradient.slice_mut(..rows * units);
        let w2 = self.parameters.slice(layout.w2());
        let shape = Product { m: rows, n: units, k: CLASSES };
        kernels.matmul_tb(stream, &mut of_hidden, &of_logits, &w2, shape)?;
        kernels.relu_gradient(stream, &mut of_hidden, &hidden)?;
        let mut of_w1 = self.gradient_and_loss.slice_mut(layout.w1());
        let shape = Product { m: PIXELS, n: units, k: rows };
        kernels.matmul_ta(stream, &mut of_w1, &batch.pixels, &of_hidden, shape)?;
        let mut of_b1 = self.gradient_and_loss.slice_mut(layout.b1());
        kernels.column_sums(stream, &mut of_b1, &of_hidden, Matrix { rows, columns: units })
    }

    /// Takes a step of gradient descent: `parameters -= learning_rate · gradient`.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn descend(&mut self, learning_rate: f32) -> anyhow::Result<()> {
        let gradient = self.gradient_and_loss.slice(..self.layout.parameters());
        self.kernels.sgd_step(&self.stream, &mut self.parameters, &gradient, learning_rate)
    }

    /// Returns the loss after the gradients, in nats. Waits for the GPU.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn loss(&self) -> anyhow::Result<f32> {
        let loss = self.stream.clone_dtoh(&self.gradient_and_loss.slice(self.layout.parameters()..))?;
        self.stream.synchronize()?;
        Ok(loss[0])
    }

    /// Returns the fraction of the samples that the model classifies correctly, or 0 if there are no samples. Waits for
    /// the GPU, and overwrites the results of the last forward pass.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn accuracy(&mut self, samples: &DeviceSamples) -> anyhow::Result<f64> {
        self.stream.memset_zeros(&mut self.correct)?;
        for start in (0..samples.len()).step_by(self.max_batch) {
            let batch = samples.batch(start..samples.len().min(start + self.max_batch))?;
            self.forward(&batch)?;
            let shape = Matrix { rows: batch.len(), columns: CLASSES };
            let logits = self.logits.slice(..batch.len() * CLASSES);
            self.kernels.count_correct(&self.stream, &mut self.correct, &logits, &batch.labels, shape)?;
        }
        let correct = self.stream.clone_dtoh(&self.correct)?;
        self.stream.synchronize()?;
        Ok(f64::from(correct[0]) / samples.len().max(1) as f64)
    }
}
