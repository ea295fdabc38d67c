//! A small GPT on one GPU, layer by layer, as the building block of a training step on several GPUs.
//!
//! Its parameters and gradients are not part of it. Each call of a layer takes them as views, so you decide where they
//! are: whole or in shards, for all layers or for some.

mod host;
mod layout;
mod text;

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};

use crate::kernels::{Heads, Kernels, Matrix, Product};

pub use host::HostGpt;
pub use layout::GptShape;
pub use text::{Batch, Text};

use layout::Kind;

/// The activations of some layers of a GPT (A. Radford and others, "Language Models are Unsupervised Multitask
/// Learners", 2019), for a fixed number of sequences. Its methods enqueue their work on its stream and do not wait.
///
/// All layers work on one buffer, the *residual*, with a row of `width` values per token. The embedding writes it.
/// Each attention and each MLP adds its branch, `second(f(first(norm(residual))))`. The output computes the loss from
/// it. The backward pass has the same buffer for the gradient of the residual.
///
/// Every method fails if the layer is not among those of this value, if a view does not have the length of the layer's
/// parameters, or with the driver's error.
#[derive(Debug)]
pub struct Gpt {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    shape: GptShape,
    layers: Range<usize>,
    sequences: usize,
    tokens: CudaSlice<u32>,
    targets: CudaSlice<u32>,
    /// The position of each token in its sequence.
    positions: CudaSlice<u32>,
    residual: CudaSlice<f32>,
    residual_gradient: CudaSlice<f32>,
    /// What a layer adds to the residual; in the backward pass, the gradient of what its norm has computed.
    partial: CudaSlice<f32>,
    /// What the layers keep for the backward pass.
    saved: Vec<Saved>,
    /// Room for gradients inside of a layer.
    wide_gradient: CudaSlice<f32>,
    inner_gradient: CudaSlice<f32>,
    scores_gradient: CudaSlice<f32>,
    losses: CudaSlice<f32>,
    loss: CudaSlice<f32>,
}

/// What a layer keeps for its backward pass. Each has a row per token, and is empty if the layer does not have it.
#[derive(Debug)]
struct Saved {
    normed: CudaSlice<f32>,
    inverse: CudaSlice<f32>,
    scaled: CudaSlice<f32>,
    /// What the first matrix computes: queries, keys, and values; hidden units before GELU; or scores of the
    /// vocabulary.
    wide: CudaSlice<f32>,
    /// The weights of an attention.
    weights: CudaSlice<f32>,
    /// What the second matrix takes.
    inner: CudaSlice<f32>,
}

/// A layer's parameters or gradients: a gain and two matrices.
struct Parts<'a> {
    gain: CudaView<'a, f32>,
    first: CudaView<'a, f32>,
    second: CudaView<'a, f32>,
}

impl Gpt {
    /// Creates a model with all layers, for this number of sequences at a time.
    ///
    /// # Errors
    /// Fails like [`of_layers`](Self::of_layers).
    pub fn new(stream: &Arc<CudaStream>, shape: GptShape, sequences: usize) -> anyhow::Result<Self> {
        Self::of_layers(stream, shape, 0..shape.layers(), sequences)
    }

    /// Creates a model with some of the layers, such as a stage of a pipeline. It has no room for the activations of
    /// other layers.
    ///
    /// # Errors
    /// Fails if there are no such layers or no sequences, or with the driver's error.
    pub fn of_layers(
        stream: &Arc<CudaStream>,
        shape: GptShape,
        layers: Range<usize>,
        sequences: usize,
    ) -> anyhow::Result<Self> {
        let Range { start, end } = layers;
        ensure!(
            start < end && end <= shape.layers(),
            "there are no layers {start}..{end} of {}",
            shape.layers()
        );
        ensure!(sequences > 0, "there must be room for at least one sequence");
        let tokens = sequences * shape.context;
        // CUDA allocates no buffer of length 0.
        let zeros = |len: usize| stream.alloc_zeros::<f32>(len.max(1));
        let widest = layers.clone().map(|layer| shape.wide(layer)).max().unwrap_or_default();
        let saved = layers.clone().map(|layer| {
            let rows = if layer == 0 { 0 } else { tokens };
            let weights = if shape.kind(layer) == Kind::Attention { shape.heads * shape.context } else { 0 };
            anyhow::Ok(Saved {
                normed: zeros(rows * shape.width)?,
                inverse: zeros(rows)?,
                scaled: zeros(rows * shape.width)?,
                wide: zeros(rows * shape.wide(layer))?,
                weights: zeros(rows * weights)?,
                inner: zeros(rows * shape.inner(layer))?,
            })
        });
        let positions: Vec<u32> = (0..tokens).map(|token| (token % shape.context) as u32).collect();
        Ok(Self {
            kernels: Kernels::load(stream.context())?,
            shape,
            layers: layers.clone(),
            sequences,
            tokens: stream.alloc_zeros(tokens)?,
            targets: stream.alloc_zeros(tokens)?,
            positions: stream.clone_htod(&positions)?,
            residual: zeros(tokens * shape.width)?,
            residual_gradient: zeros(tokens * shape.width)?,
            partial: zeros(tokens * shape.width)?,
            saved: saved.collect::<anyhow::Result<_>>()?,
            wide_gradient: zeros(tokens * widest)?,
            inner_gradient: zeros(tokens * shape.attended())?,
            scores_gradient: zeros(tokens * shape.heads * shape.context)?,
            losses: zeros(tokens)?,
            loss: zeros(1)?,
            stream: stream.clone(),
        })
    }

    /// Returns the shape that the model was created with.
    pub fn shape(&self) -> GptShape {
        self.shape
    }

    /// Returns the stream that all of the model's work runs on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Returns all kernels of the course, loaded on the model's GPU.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Copies the sequences for the next passes to the GPU.
    ///
    /// # Errors
    /// Fails if the batch does not have as many sequences as the model has room for, or as many tokens per sequence.
    /// Also see [`Gpt`].
    pub fn begin(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let (sequences, context) = (self.sequences, self.shape.context);
        ensure!(
            batch.len() == sequences && batch.context == context,
            "the batch has {} sequences of {} tokens, but the model was created for {sequences} of {context}",
            batch.len(),
            batch.context
        );
        self.stream.memcpy_htod(&batch.tokens, &mut self.tokens)?;
        self.stream.memcpy_htod(&batch.targets, &mut self.targets)?;
        Ok(())
    }

    /// Runs a layer forward: [`branch`](Self::branch) and [`join`](Self::join), the embedding, or the output, which
    /// computes the loss.
    ///
    /// # Errors
    /// See [`Gpt`].
    pub fn forward(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        match self.shape.kind(layer) {
            Kind::Embedding => self.embed(parameters),
            Kind::Output => self.score(layer, parameters),
            Kind::Attention | Kind::Mlp => {
                self.branch(layer, parameters)?;
                self.join(layer)
            }
        }
    }

    /// Computes what an attention or an MLP adds to the residual, in [`partial_mut`](Self::partial_mut). If this model
    /// is one rank's part ([`GptShape::part`]), the sum over all ranks is what the whole layer adds.
    ///
    /// # Errors
    /// Fails if the layer is the embedding or the output. Also see [`Gpt`].
    pub fn branch(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        let kind = self.inner_kind(layer)?;
        self.widen(layer, parameters)?;
        let (rows, heads) = (self.rows(), self.heads());
        let (k, n) = (self.shape.inner(layer), self.shape.width);
        let parts = self.parts(layer, parameters)?;
        let saved = &mut self.saved[layer - self.layers.start];
        match kind {
            Kind::Attention => self.kernels.causal_attention(
                &self.stream,
                &mut saved.inner,
                &mut saved.weights,
                &saved.wide,
                heads,
            )?,
            _ => self.kernels.gelu(&self.stream, &mut saved.inner, &saved.wide)?,
        }
        let shape = Product { m: rows, n, k };
        self.kernels.matmul(&self.stream, &mut self.partial, &saved.inner, &parts.second, shape)
    }

    /// Adds [`partial_mut`](Self::partial_mut) to the residual: the second half of [`forward`](Self::forward).
    ///
    /// # Errors
    /// Fails if the layer is the embedding or the output. Also see [`Gpt`].
    pub fn join(&mut self, layer: usize) -> anyhow::Result<()> {
        self.inner_kind(layer)?;
        self.kernels.axpy(&self.stream, &mut self.residual, &self.partial, 1.0)
    }

    /// Runs a layer backward: [`branch_back`](Self::branch_back) and [`join_back`](Self::join_back), or the embedding.
    /// The output begins the backward pass. Overwrites `gradient`, which is as long as `parameters`, with the gradient
    /// of the mean loss of the batch.
    ///
    /// # Errors
    /// See [`Gpt`].
    pub fn backward(
        &mut self,
        layer: usize,
        parameters: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        if self.shape.kind(layer) == Kind::Embedding {
            return self.embed_back(gradient);
        }
        self.branch_back(layer, parameters, gradient)?;
        self.join_back(layer, parameters, gradient)
    }

    /// Computes the gradient of a layer's matrices, and the gradient of what its norm has computed, in
    /// [`partial_mut`](Self::partial_mut). If this model is one rank's part, the sum over all ranks is the gradient of
    /// what the norm has computed.
    ///
    /// # Errors
    /// Fails if the layer is the embedding. Also see [`Gpt`].
    pub fn branch_back(
        &mut self,
        layer: usize,
        parameters: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        ensure!(layer > 0, "layer 0, the embedding, has no branch");
        let (rows, width) = (self.rows(), self.shape.width);
        let (wide, inner, heads) = (self.shape.wide(layer), self.shape.inner(layer), self.heads());
        let parts = self.parts(layer, parameters)?;
        let [gain, first, _] = self.shape.lens(layer);
        self.expect(layer, "gradient", gradient.len())?;
        let saved = &self.saved[layer - self.layers.start];
        let (kernels, stream) = (&self.kernels, &*self.stream);
        let mut of_wide = self.wide_gradient.slice_mut(..rows * wide);
        if self.shape.kind(layer) == Kind::Output {
            // The output is the last layer, so the gradient of the residual starts here.
            let (factor, shape) = (1.0 / rows as f32, Matrix { rows, columns: wide });
            self.stream.memset_zeros(&mut self.residual_gradient)?;
            kernels.cross_entropy_gradient(
                stream,
                &mut of_wide,
                &saved.wide,
                &self.targets,
                factor,
                shape,
            )?;
        } else {
            let of_output = &self.residual_gradient;
            let mut of_second = gradient.slice_mut(gain + first..);
            let shape = Product { m: inner, n: width, k: rows };
            kernels.matmul_ta(stream, &mut of_second, &saved.inner, of_output, shape)?;
            let shape = Product { m: rows, n: inner, k: width };
            if self.shape.kind(layer) == Kind::Mlp {
                kernels.matmul_tb(stream, &mut of_wide, of_output, &parts.second, shape)?;
                kernels.gelu_gradient(stream, &mut of_wide, &saved.wide)?;
            } else {
                let mut of_inner = self.inner_gradient.slice_mut(..rows * inner);
                kernels.matmul_tb(stream, &mut of_inner, of_output, &parts.second, shape)?;
                let (scores, weights) = (&mut self.scores_gradient, &saved.weights);
                kernels.causal_attention_gradient(
                    stream,
                    &mut of_wide,
                    scores,
                    &of_inner,
                    weights,
                    &saved.wide,
                    heads,
                )?;
            }
        }
        let mut of_first = gradient.slice_mut(gain..gain + first);
        let shape = Product { m: width, n: wide, k: rows };
        kernels.matmul_ta(stream, &mut of_first, &saved.scaled, &of_wide, shape)?;
        let shape = Product { m: rows, n: width, k: wide };
        kernels.matmul_tb(stream, &mut self.partial, &of_wide, &parts.first, shape)
    }

    /// Runs the norm backward: computes the gradient of its gain, and adds that of its input to the gradient of the
    /// residual. This is the second half of [`backward`](Self::backward).
    ///
    /// # Errors
    /// Fails if the layer is the embedding. Also see [`Gpt`].
    pub fn join_back(
        &mut self,
        layer: usize,
        parameters: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        ensure!(layer > 0, "layer 0, the embedding, has no norm");
        let shape = Matrix { rows: self.rows(), columns: self.shape.width };
        let parts = self.parts(layer, parameters)?;
        self.expect(layer, "gradient", gradient.len())?;
        let Saved { normed, inverse, .. } = &self.saved[layer - self.layers.start];
        let (kernels, stream) = (&self.kernels, &*self.stream);
        let mut of_gain = gradient.slice_mut(..self.shape.width);
        kernels.column_dots(stream, &mut of_gain, &self.partial, normed, shape)?;
        let of_input = &mut self.residual_gradient;
        kernels.layer_norm_gradient(stream, of_input, &self.partial, normed, inverse, &parts.gain, shape)
    }

    /// Returns the mean loss of the batch, one number, which the output computes.
    pub fn loss(&self) -> CudaView<'_, f32> {
        self.loss.as_view()
    }

    /// Returns a mutable view of the mean loss.
    pub fn loss_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.loss.as_view_mut()
    }

    /// Returns the residual after the layer that ran last, with a row per token.
    pub fn residual(&self) -> CudaView<'_, f32> {
        self.residual.as_view()
    }

    /// Returns a mutable view of the residual.
    pub fn residual_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.residual.as_view_mut()
    }

    /// Returns the gradient of the residual before the layer that ran backward last.
    pub fn residual_gradient(&self) -> CudaView<'_, f32> {
        self.residual_gradient.as_view()
    }

    /// Returns a mutable view of the gradient of the residual.
    pub fn residual_gradient_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.residual_gradient.as_view_mut()
    }

    /// Returns a mutable view of what [`branch`](Self::branch) or [`branch_back`](Self::branch_back) has computed,
    /// with a row per token.
    pub fn partial_mut(&mut self) -> CudaViewMut<'_, f32> {
        self.partial.as_view_mut()
    }

    /// Computes the embedding of the tokens and of their positions.
    fn embed(&mut self, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        let [tokens, _, _] = self.shape.lens(0);
        let (kernels, stream, width) = (&self.kernels, &*self.stream, self.shape.width);
        self.expect(0, "parameters", parameters.len())?;
        let (of_tokens, of_positions) = (parameters.slice(..tokens), parameters.slice(tokens..));
        kernels.gather_rows(stream, &mut self.residual, &of_tokens, &self.tokens, width)?;
        kernels.gather_rows(stream, &mut self.partial, &of_positions, &self.positions, width)?;
        kernels.axpy(stream, &mut self.residual, &self.partial, 1.0)
    }

    fn embed_back(&mut self, gradient: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        let [tokens, _, _] = self.shape.lens(0);
        let (kernels, stream, width) = (&self.kernels, &*self.stream, self.shape.width);
        self.expect(0, "gradient", gradient.len())?;
        let of_residual = &self.residual_gradient;
        kernels.sum_rows(stream, &mut gradient.slice_mut(..tokens), of_residual, &self.tokens, width)?;
        kernels.sum_rows(stream, &mut gradient.slice_mut(tokens..), of_residual, &self.positions, width)
    }

    /// Computes the scores of the vocabulary for each token, and the mean loss.
    fn score(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        self.widen(layer, parameters)?;
        let (rows, columns) = (self.rows(), self.shape.vocabulary);
        let logits = &self.saved[layer - self.layers.start].wide;
        let (kernels, stream) = (&self.kernels, &*self.stream);
        kernels.cross_entropy(stream, &mut self.losses, logits, &self.targets, Matrix { rows, columns })?;
        kernels.sum(stream, &mut self.loss, &self.losses)?;
        kernels.scale(stream, &mut self.loss, 1.0 / rows as f32)
    }

    /// Computes the norm and the first matrix of a layer.
    fn widen(&mut self, layer: usize, parameters: &CudaView<f32>) -> anyhow::Result<()> {
        let (rows, width, wide) = (self.rows(), self.shape.width, self.shape.wide(layer));
        let parts = self.parts(layer, parameters)?;
        let Saved { normed, inverse, scaled, wide: result, .. } = &mut self.saved[layer - self.layers.start];
        let (kernels, stream) = (&self.kernels, &*self.stream);
        let shape = Matrix { rows, columns: width };
        kernels.layer_norm(stream, scaled, normed, inverse, &self.residual, &parts.gain, shape)?;
        kernels.matmul(stream, result, scaled, &parts.first, Product { m: rows, n: wide, k: width })
    }

    fn inner_kind(&self, layer: usize) -> anyhow::Result<Kind> {
        let kind = self.shape.kind(layer);
        let is_inner = matches!(kind, Kind::Attention | Kind::Mlp);
        ensure!(is_inner, "layer {layer}, the {}, has no branch", self.shape.name(layer));
        Ok(kind)
    }

    /// Returns the number of tokens.
    fn rows(&self) -> usize {
        self.sequences * self.shape.context
    }

    fn heads(&self) -> Heads {
        let GptShape { context, heads, head_width: width, .. } = self.shape;
        Heads { tokens: self.rows(), context, heads, width }
    }

    /// Divides a layer's parameters.
    fn parts<'a>(&self, layer: usize, parameters: &CudaView<'a, f32>) -> anyhow::Result<Parts<'a>> {
        self.expect(layer, "parameters", parameters.len())?;
        let [gain, first, _] = self.shape.lens(layer);
        let (gain_part, rest) = parameters.try_split_at(gain).context("a gain")?;
        let (first, second) = rest.try_split_at(first).context("a matrix")?;
        Ok(Parts { gain: gain_part, first, second })
    }

    /// Checks that a layer is one of this model's, and the length of a view of its parameters or gradients.
    fn expect(&self, layer: usize, view: &str, len: usize) -> anyhow::Result<()> {
        let Range { start, end } = self.layers;
        ensure!(
            self.layers.contains(&layer),
            "the model has layers {start}..{end}, and {layer} is not one of them"
        );
        let (name, expected) = (self.shape.name(layer), self.shape.range(layer).len());
        ensure!(
            len == expected,
            "`{view}` of layer {layer}, {name}, has {len} elements, expected {expected}"
        );
        Ok(())
    }
}
