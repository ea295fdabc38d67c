//! The course's kernels, each as a method that checks every length before it launches the kernel.
//!
//! Buffers are cudarc's slices or views. They go through `DevicePtr` and `DevicePtrMut`, as in cudarc's own copies and
//! collectives, so cudarc's automatic event tracking sees each use. Matrices are row-major `f32`. No method waits for
//! the GPU.

mod attention;
mod causal;
mod elementwise;
mod half;
mod launch;
mod layer;
mod loss;
mod matmul;
mod rows;
mod shape;
mod spin;
mod transformer;
mod vector;

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream};

pub(crate) use attention::Running;
pub(crate) use causal::Heads;
pub use shape::{Matrix, Product};
pub(crate) use spin::{LONG_DELAY, has_delayed};
pub use transformer::Dropout;

use launch::{Call, File};

/// The PTX of `attend` and `divide_rows`.
pub const ATTENTION: &str = include_str!("../kernels/attention.ptx");
/// The PTX of `causal_attention` and of its backward pass.
pub const CAUSAL: &str = include_str!("../kernels/causal.ptx");
/// The PTX of `fill`, `axpy`, `scale`, `sgd_step`, and `momentum_step`.
pub const ELEMENTWISE: &str = include_str!("../kernels/elementwise.ptx");
/// The PTX of `matmul`, `matmul_ta`, and `matmul_tb`.
pub const MATMUL: &str = include_str!("../kernels/matmul.ptx");
/// The PTX of `add_bias`, `column_sums`, `relu`, and `relu_gradient`.
pub const LAYER: &str = include_str!("../kernels/layer.ptx");
/// The PTX of `cross_entropy`, `cross_entropy_gradient`, `count_correct`, and `sum`.
pub const LOSS: &str = include_str!("../kernels/loss.ptx");
/// The PTX of `gather_rows`, `scatter_rows`, and `sum_rows`.
pub const ROWS: &str = include_str!("../kernels/rows.ptx");
/// The PTX of `sum_of_squares`, `maximum`, `exp_minus`, `divide`, and `count_not_finite`.
pub const VECTOR: &str = include_str!("../kernels/vector.ptx");
/// The PTX of `to_f16` and `from_f16`.
pub const HALF: &str = include_str!("../kernels/half.ptx");
/// The PTX of `rms_norm`, `dropout`, `layer_norm`, `layer_norm_gradient`, `column_dots`, `gelu`, and `gelu_gradient`.
pub const TRANSFORMER: &str = include_str!("../kernels/transformer.ptx");
/// The PTX of `spin`.
pub const SPIN: &str = include_str!("../kernels/spin.ptx");
/// The PTX of `trap`, a kernel that takes no arguments and always fails, for checks of kernel failures.
pub const TRAP: &str =
    ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry trap() {\n    trap;\n    ret;\n}\n";

/// The PTX of a different `scale`, which computes `x[i] = x[i] * factor + 1`. With it, checks can tell which kernel a
/// result comes from.
pub const SCALE_AND_ADD_ONE: &str = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 n) {
    .reg .pred %p;
    .reg .f32 %value, %factor;
    .reg .b32 %index, %n, %block, %threads, %thread;
    .reg .b64 %x, %offset;
    ld.param.u64 %x, [x];
    ld.param.f32 %factor, [factor];
    ld.param.u32 %n, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %index, %block, %threads, %thread;
    setp.ge.u32 %p, %index, %n;
    @%p bra END;
    cvta.to.global.u64 %x, %x;
    mul.wide.u32 %offset, %index, 4;
    add.s64 %x, %x, %offset;
    ld.global.f32 %value, [%x];
    fma.rn.f32 %value, %value, %factor, 0f3F800000;
    st.global.f32 [%x], %value;
END:
    ret;
}
";

/// All kernels of `kernels/`, loaded on one GPU.
///
/// Before it launches anything, every method checks its arguments. It fails if a buffer's length does not match the
/// shape, if a buffer has more elements than a kernel can index (2³² − 1), or if the stream belongs to another GPU. The
/// error names the kernel, the argument, and both lengths. A launch over zero elements does nothing.
#[derive(Debug)]
pub struct Kernels {
    context: Arc<CudaContext>,
    attend: CudaFunction,
    divide_rows: CudaFunction,
    causal_attention: CudaFunction,
    causal_scores_gradient: CudaFunction,
    causal_attention_gradient: CudaFunction,
    fill: CudaFunction,
    axpy: CudaFunction,
    scale: CudaFunction,
    sgd_step: CudaFunction,
    momentum_step: CudaFunction,
    matmul: CudaFunction,
    matmul_ta: CudaFunction,
    matmul_tb: CudaFunction,
    add_bias: CudaFunction,
    column_sums: CudaFunction,
    relu: CudaFunction,
    relu_gradient: CudaFunction,
    cross_entropy: CudaFunction,
    cross_entropy_gradient: CudaFunction,
    count_correct: CudaFunction,
    sum: CudaFunction,
    gather_rows: CudaFunction,
    scatter_rows: CudaFunction,
    sum_rows: CudaFunction,
    sum_of_squares: CudaFunction,
    maximum: CudaFunction,
    exp_minus: CudaFunction,
    divide: CudaFunction,
    count_not_finite: CudaFunction,
    to_f16: CudaFunction,
    from_f16: CudaFunction,
    rms_norm: CudaFunction,
    dropout: CudaFunction,
    layer_norm: CudaFunction,
    layer_norm_gradient: CudaFunction,
    column_dots: CudaFunction,
    gelu: CudaFunction,
    gelu_gradient: CudaFunction,
    spin: CudaFunction,
}

impl Kernels {
    /// Loads every kernel on the context's GPU.
    ///
    /// # Errors
    /// Fails if the driver rejects the PTX, or if a file lacks a kernel. The error names the file and the kernel.
    pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let attention = File::load(context, "attention", ATTENTION)?;
        let causal = File::load(context, "causal", CAUSAL)?;
        let elementwise = File::load(context, "elementwise", ELEMENTWISE)?;
        let matmul = File::load(context, "matmul", MATMUL)?;
        let layer = File::load(context, "layer", LAYER)?;
        let loss = File::load(context, "loss", LOSS)?;
        let rows = File::load(context, "rows", ROWS)?;
        let vector = File::load(context, "vector", VECTOR)?;
        let half = File::load(context, "half", HALF)?;
        let transformer = File::load(context, "transformer", TRANSFORMER)?;
        let spin = File::load(context, "spin", SPIN)?;
        Ok(Self {
            context: context.clone(),
            attend: attention.kernel("attend")?,
            divide_rows: attention.kernel("divide_rows")?,
            causal_attention: causal.kernel("causal_attention")?,
            causal_scores_gradient: causal.kernel("causal_scores_gradient")?,
            causal_attention_gradient: causal.kernel("causal_attention_gradient")?,
            fill: elementwise.kernel("fill")?,
            axpy: elementwise.kernel("axpy")?,
            scale: elementwise.kernel("scale")?,
            sgd_step: elementwise.kernel("sgd_step")?,
            momentum_step: elementwise.kernel("momentum_step")?,
            matmul: matmul.kernel("matmul")?,
            matmul_ta: matmul.kernel("matmul_ta")?,
            matmul_tb: matmul.kernel("matmul_tb")?,
            add_bias: layer.kernel("add_bias")?,
            column_sums: layer.kernel("column_sums")?,
            relu: layer.kernel("relu")?,
            relu_gradient: layer.kernel("relu_gradient")?,
            cross_entropy: loss.kernel("cross_entropy")?,
            cross_entropy_gradient: loss.kernel("cross_entropy_gradient")?,
            count_correct: loss.kernel("count_correct")?,
            sum: loss.kernel("sum")?,
            gather_rows: rows.kernel("gather_rows")?,
            scatter_rows: rows.kernel("scatter_rows")?,
            sum_rows: rows.kernel("sum_rows")?,
            sum_of_squares: vector.kernel("sum_of_squares")?,
            maximum: vector.kernel("maximum")?,
            exp_minus: vector.kernel("exp_minus")?,
            divide: vector.kernel("divide")?,
            count_not_finite: vector.kernel("count_not_finite")?,
            to_f16: half.kernel("to_f16")?,
            from_f16: half.kernel("from_f16")?,
            rms_norm: transformer.kernel("rms_norm")?,
            dropout: transformer.kernel("dropout")?,
            layer_norm: transformer.kernel("layer_norm")?,
            layer_norm_gradient: transformer.kernel("layer_norm_gradient")?,
            column_dots: transformer.kernel("column_dots")?,
            gelu: transformer.kernel("gelu")?,
            gelu_gradient: transformer.kernel("gelu_gradient")?,
            spin: spin.kernel("spin")?,
        })
    }

    /// Loads every kernel, and replaces `scale` with the one in this PTX.
    ///
    /// # Errors
    /// Fails like [`Kernels::load`].
    pub fn with_scale(context: &Arc<CudaContext>, ptx: &str) -> anyhow::Result<Self> {
        let scale = File::load(context, "scale", ptx)?.kernel("scale")?;
        Ok(Self { scale, ..Self::load(context)? })
    }

    fn call<'a>(
        &self,
        kernel: &'static str,
        function: &'a CudaFunction,
        stream: &'a CudaStream,
    ) -> anyhow::Result<Call<'a>> {
        let (own, other) = (self.context.ordinal(), stream.context().ordinal());
        ensure!(own == other, "kernel `{kernel}` is loaded on GPU {own}, but its stream is on GPU {other}");
        Ok(Call { kernel, function, stream })
    }
}
