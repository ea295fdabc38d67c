//! A perceptron of two layers that tells handwritten digits apart: 64 pixels → hidden units with ReLU → 10 classes,
//! softmax and cross-entropy. It lives on one GPU, and knows nothing of others.

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

/// The model on one GPU, with all its buffers: nothing is allocated after [`Perceptron::new`].
///
/// All parameters lie in one flat buffer, laid out as [`Layout`] says; so do their gradients, and behind the gradients
/// lies the loss. One collective then does for all of them. Everything is enqueued on the model's stream and waits for
/// nothing, except [`loss`](Self::loss) and [`accuracy`](Self::accuracy), which hand a number to the host.
#[derive(Debug)]
pub struct Perceptron {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    layout: Layout,
    max_batch: usize,
    parameters: CudaSlice<f32>,
    /// As many gradients as parameters, then the loss.
    gradient_and_loss: CudaSlice<f32>,
    /// Hidden activations, one row per sample, and below the same for their gradient and for the logits.
    hidden: CudaSlice<f32>,
    hidden_gradient: CudaSlice<f32>,
    logits: CudaSlice<f32>,
    logits_gradient: CudaSlice<f32>,
    /// One loss per sample.
    losses: CudaSlice<f32>,
    correct: CudaSlice<u32>,
    /// Samples of the last forward pass.
    forwarded: Option<usize>,
}

impl Perceptron {
    /// A model with `hidden` units for batches of at most `max_batch` samples, on the stream's GPU. Its parameters depend
    /// on the seed alone ([`Layout::initial`]).
    ///
    /// # Errors
    /// `hidden` or `max_batch` is 0, or what the driver answers.
    pub fn new(stream: &Arc<CudaStream>, hidden: usize, max_batch: usize, seed: u64) -> anyhow::Result<Self> {
        Self::of_units(stream, hidden, 0..hidden, max_batch, seed)
    }

    /// One rank's part of that model, where several share its hidden layer: only the hidden units `units`. Its parameters
    /// are theirs in the whole model ([`Layout::of_units`]); the biases of the classes, every part has.
    ///
    /// A part's [`forward`](Self::forward) computes something else than the whole model's. In its place come
    /// [`forward_units`](Self::forward_units), the sum of [`scores_mut`](Self::scores_mut) over all parts, and
    /// [`finish_scores`](Self::finish_scores). The backward pass of the part is then that of its units.
    ///
    /// # Errors
    /// `units` is empty or reaches beyond `hidden`, `max_batch` is 0, or what the driver answers.
    pub fn of_units(
        stream: &Arc<CudaStream>,
        hidden: usize,
        units: Range<usize>,
        max_batch: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let Range { start, end } = units;
        ensure!(start < end, "a perceptron has at least one hidden unit");
        ensure!(end <= hidden, "hidden units {start}..{end} of {hidden}");
        ensure!(max_batch > 0, "a batch holds at least one sample");
        let (layout, whole) = (Layout { hidden: units.len() }, Layout { hidden });
        let (initial, hidden) = (whole.of_units(&whole.initial(seed), units), layout.hidden);
        let zeros = |len| stream.alloc_zeros(len).with_context(|| format!("{len} floats for the perceptron"));
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

    /// The stream that all work of this model is on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Where each parameter and its gradient lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All parameters.
    pub fn parameters(&self) -> CudaView<'_, f32> {
        self.parameters.as_view()
    }

    /// All parameters, to be changed.
    pub fn parameters_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.parameters.as_view_mut()
    }

    /// What the last backward pass wrote: as many gradients as parameters, in their order, then the loss.
    pub fn gradient_and_loss(&self) -> CudaView<'_, f32> {
        self.gradient_and_loss.as_view()
    }

    /// What the last backward pass wrote, to be changed.
    pub fn gradient_and_loss_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.gradient_and_loss.as_view_mut()
    }

    /// Computes the classes' scores for each sample of the batch.
    ///
    /// # Errors
    /// More samples than `max_batch`, or what the driver answers.
    pub fn forward(&mut self, batch: &Batch<'_>) -> anyhow::Result<()> {
        self.forward_units(batch)?;
        self.finish_scores()
    }

    /// Computes what the hidden units add to the classes' scores for each sample of the batch: the first half of
    /// [`forward`](Self::forward), all but the classes' biases.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_units(&mut self, batch: &Batch<'_>) -> anyhow::Result<()> {
        let rows = batch.len();
        ensure!(
            rows <= self.max_batch,
            "a batch of {rows} samples, but the model has buffers for {}",
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

    /// The classes' scores for each sample of the last forward pass, to be changed: a row of [`CLASSES`] per sample.
    pub fn scores_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.logits.slice_mut(..self.forwarded.unwrap_or(0) * CLASSES)
    }

    /// Adds the classes' biases to their scores: the second half of [`forward`](Self::forward).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn finish_scores(&mut self) -> anyhow::Result<()> {
        let rows = self.forwarded.unwrap_or(0);
        let mut logits = self.logits.slice_mut(..rows * CLASSES);
        let bias = self.parameters.slice(self.layout.b2());
        let shape = Matrix { rows, columns: CLASSES };
        self.kernels.add_bias(&self.stream, &mut logits, &bias, shape)
    }

    /// Computes `weight` × the gradient of the batch's mean loss, and behind it `weight` × that mean loss; over no
    /// samples, zeros. Replaces what was there. Comes after [`forward`](Self::forward) with the same batch.
    ///
    /// # Errors
    /// The last forward pass had another number of samples, or what the driver answers.
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

    /// Gradient descent: `parameters -= learning_rate · gradient`.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn descend(&mut self, learning_rate: f32) -> anyhow::Result<()> {
        let gradient = self.gradient_and_loss.slice(..self.layout.parameters());
        self.kernels.sgd_step(&self.stream, &mut self.parameters, &gradient, learning_rate)
    }

    /// The loss that lies behind the gradients, in nats. Waits for the GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn loss(&self) -> anyhow::Result<f32> {
        let loss = self.stream.clone_dtoh(&self.gradient_and_loss.slice(self.layout.parameters()..))?;
        self.stream.synchronize()?;
        Ok(loss[0])
    }

    /// Share of the samples that the model classifies right, 0 of none. Waits for the GPU, and replaces what the last
    /// forward pass left.
    ///
    /// # Errors
    /// What the driver answers.
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
