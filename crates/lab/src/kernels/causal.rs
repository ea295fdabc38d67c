//! The kernels of `causal.cu`: causal attention over whole sequences. [`crate::Gpt`] calls them.

use anyhow::ensure;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{Call, elements};

/// The shape of an attention over whole sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    /// The number of tokens of all sequences.
    pub(crate) tokens: usize,
    /// The number of tokens of a sequence.
    pub(crate) context: usize,
    /// The number of heads.
    pub(crate) heads: usize,
    /// The number of values per head.
    pub(crate) width: usize,
}

/// A shape whose numbers have 32 bits.
struct Checked {
    tokens: u32,
    context: u32,
    heads: u32,
    width: u32,
    scale: f32,
}

impl Heads {
    /// The number of values of all heads of all tokens.
    fn values(self) -> usize {
        self.tokens * self.heads * self.width
    }

    /// The number of weights of all heads of all tokens.
    pub(crate) fn weights(self) -> usize {
        self.tokens * self.heads * self.context
    }

    /// Checks the lengths of buffers, each with its name and its expected length.
    fn check(self, call: &Call<'_>, buffers: &[(&str, usize, usize)]) -> anyhow::Result<Checked> {
        let Self { tokens, context, heads, width } = self;
        ensure!(
            context > 0 && tokens.is_multiple_of(context),
            "kernel `{}`: {tokens} tokens are not whole sequences of {context}",
            call.kernel
        );
        for &(name, len, expected) in buffers {
            call.expect_length(name, len, expected)?;
            call.index(name, len)?;
        }
        Ok(Checked {
            tokens: call.index("tokens", tokens)?,
            context: call.index("context", context)?,
            heads: call.index("heads", heads)?,
            width: call.index("width", width)?,
            scale: 1.0 / (width as f32).sqrt(),
        })
    }
}

impl Kernels {
    /// Computes attention: `qkv` has the queries, keys, and values of each head of each token. Keeps the weights for the
    /// backward pass.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub(crate) fn causal_attention(
        &self,
        stream: &CudaStream,
        out: &mut impl DevicePtrMut<f32>,
        weights: &mut impl DevicePtrMut<f32>,
        qkv: &impl DevicePtr<f32>,
        shape: Heads,
    ) -> anyhow::Result<()> {
        let call = self.call("causal_attention", &self.causal_attention, stream)?;
        let Checked { tokens, context, heads, width, scale } = shape.check(
            &call,
            &[
                ("out", out.len(), shape.values()),
                ("weights", weights.len(), shape.weights()),
                ("qkv", qkv.len(), 3 * shape.values()),
            ],
        )?;
        let (qkv, _read) = qkv.device_ptr(stream);
        let (out, _out_written) = out.device_ptr_mut(stream);
        let (weights, _weights_written) = weights.device_ptr_mut(stream);
        // SAFETY: the kernel is causal_attention(float*, float*, const float*, float, unsigned, unsigned, unsigned,
        // unsigned), and the lengths have been checked.
        unsafe {
            call.launch(
                elements(tokens * heads),
                &[&out, &weights, &qkv, &scale, &tokens, &context, &heads, &width],
            )
        }
    }

    /// Computes the gradient of `qkv` from that of attention's result. `scores_gradient` is room for as many values as
    /// there are weights.
    ///
    /// # Errors
    /// See [`Kernels`].
    #[expect(clippy::too_many_arguments, reason = "two kernels share these buffers")]
    pub(crate) fn causal_attention_gradient(
        &self,
        stream: &CudaStream,
        qkv_gradient: &mut impl DevicePtrMut<f32>,
        scores_gradient: &mut impl DevicePtrMut<f32>,
        out_gradient: &impl DevicePtr<f32>,
        weights: &impl DevicePtr<f32>,
        qkv: &impl DevicePtr<f32>,
        shape: Heads,
    ) -> anyhow::Result<()> {
        let call = self.call("causal_attention_gradient", &self.causal_attention_gradient, stream)?;
        let of_scores = self.call("causal_scores_gradient", &self.causal_scores_gradient, stream)?;
        let Checked { tokens, context, heads, width, scale } = shape.check(
            &call,
            &[
                ("qkv_gradient", qkv_gradient.len(), 3 * shape.values()),
                ("scores_gradient", scores_gradient.len(), shape.weights()),
                ("out_gradient", out_gradient.len(), shape.values()),
                ("weights", weights.len(), shape.weights()),
                ("qkv", qkv.len(), 3 * shape.values()),
            ],
        )?;
        let (qkv, _qkv_read) = qkv.device_ptr(stream);
        let (weights, _weights_read) = weights.device_ptr(stream);
        let (out_gradient, _out_read) = out_gradient.device_ptr(stream);
        let (scores_gradient, _scores_written) = scores_gradient.device_ptr_mut(stream);
        let (qkv_gradient, _written) = qkv_gradient.device_ptr_mut(stream);
        // SAFETY: the kernels are causal_scores_gradient(float*, const float*, const float*, const float*, unsigned,
        // unsigned, unsigned, unsigned) and causal_attention_gradient(float*, const float*, const float*, const float*,
        // const float*, float, unsigned, unsigned, unsigned, unsigned); the lengths have been checked.
        unsafe {
            of_scores.launch(
                elements(tokens * heads),
                &[&scores_gradient, &out_gradient, &weights, &qkv, &tokens, &context, &heads, &width],
            )?;
            call.launch(
                elements(tokens * heads),
                &[
                    &qkv_gradient,
                    &out_gradient,
                    &weights,
                    &scores_gradient,
                    &qkv,
                    &scale,
                    &tokens,
                    &context,
                    &heads,
                    &width,
                ],
            )
        }
    }
}
