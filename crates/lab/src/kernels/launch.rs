//! Loads kernels, checks their arguments, and launches them.

use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
    CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, LaunchArgs,
    LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use super::shape::Matrix;

/// Threads per block for kernels in which each thread handles one element or one row. Reductions rely on this number.
const THREADS: u32 = 256;

/// A loaded PTX file.
pub(super) struct File {
    name: &'static str,
    module: Arc<CudaModule>,
}

impl File {
    pub(super) fn load(context: &Arc<CudaContext>, name: &'static str, ptx: &str) -> anyhow::Result<Self> {
        let loaded = context.load_module(Ptx::from_src(ptx));
        let module = loaded.map_err(|error| match error.0 {
            CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
                anyhow::Error::new(error).context(format!("the driver can't load kernels/{name}.ptx"))
            }
            // Other errors are not about the file. Most often, earlier work has failed.
            _ => error.into(),
        })?;
        Ok(Self { name, module })
    }

    pub(super) fn kernel(&self, kernel: &str) -> anyhow::Result<CudaFunction> {
        let found = self.module.load_function(kernel);
        found.with_context(|| format!("kernels/{}.ptx has no kernel `{kernel}`", self.name))
    }
}

/// A kernel about to be launched. Its checks name the kernel.
pub(super) struct Call<'a> {
    pub(super) kernel: &'static str,
    pub(super) function: &'a CudaFunction,
    pub(super) stream: &'a CudaStream,
}

/// A kernel's argument: a device address or a number.
pub(super) trait Argument {
    fn push<'a>(&'a self, launch: &mut LaunchArgs<'a>);
}

impl<T: DeviceRepr> Argument for T {
    fn push<'a>(&'a self, launch: &mut LaunchArgs<'a>) {
        launch.arg(self);
    }
}

impl Call<'_> {
    /// Converts a length to 32 bits, because the kernels index with 32 bits.
    pub(super) fn index(&self, argument: &str, length: usize) -> anyhow::Result<u32> {
        let kernel = self.kernel;
        u32::try_from(length).ok().with_context(|| {
            format!(
                "kernel `{kernel}`: `{argument}` has {length} elements, but at most {} are possible",
                u32::MAX
            )
        })
    }

    pub(super) fn expect_length(&self, argument: &str, actual: usize, expected: usize) -> anyhow::Result<()> {
        let kernel = self.kernel;
        ensure!(
            actual == expected,
            "kernel `{kernel}`: `{argument}` has {actual} elements, expected {expected}"
        );
        Ok(())
    }

    /// Checks a matrix's length, and returns its rows and columns in 32 bits. Their product also fits in 32 bits.
    pub(super) fn expect_matrix(
        &self,
        argument: &str,
        actual: usize,
        shape: Matrix,
    ) -> anyhow::Result<(u32, u32)> {
        let Matrix { rows, columns } = shape;
        let (kernel, expected) = (self.kernel, rows.checked_mul(columns));
        ensure!(
            expected == Some(actual),
            "kernel `{kernel}`: `{argument}` has {actual} elements, expected {rows} × {columns}"
        );
        self.index(argument, actual)?;
        Ok((self.index("rows", rows)?, self.index("columns", columns)?))
    }

    pub(super) fn expect_scores(
        &self,
        logits: usize,
        labels: usize,
        shape: Matrix,
    ) -> anyhow::Result<(u32, u32)> {
        ensure!(
            shape.columns > 0,
            "kernel `{}`: `logits` has no columns, but there must be at least one class",
            self.kernel
        );
        self.expect_length("labels", labels, shape.rows)?;
        self.expect_matrix("logits", logits, shape)
    }

    /// Launches the kernel, unless its grid is empty.
    ///
    /// # Safety
    /// The arguments must match the kernel's in type and order, and each buffer must hold all elements that the kernel
    /// accesses.
    pub(super) unsafe fn launch(
        &self,
        shape: LaunchConfig,
        arguments: &[&dyn Argument],
    ) -> anyhow::Result<()> {
        let (x, y, z) = shape.grid_dim;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        let mut launch = self.stream.launch_builder(self.function);
        for argument in arguments {
            argument.push(&mut launch);
        }
        // SAFETY: the caller promises the same.
        let launched = unsafe { launch.launch(shape) };
        launched
            .map(|_| ())
            .with_context(|| format!("kernel `{}` on GPU {}", self.kernel, self.stream.context().ordinal()))
    }
}

/// Returns a launch shape with one thread per element.
pub(super) fn elements(n: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// Launches a reduction of a vector to one number. `name` is the argument that receives the number.
pub(super) fn reduction(
    call: &Call<'_>,
    name: &str,
    result: &mut impl DevicePtrMut<f32>,
    x: &impl DevicePtr<f32>,
) -> anyhow::Result<()> {
    let n = call.index("x", x.len())?;
    call.expect_length(name, result.len(), 1)?;
    let (x, _read) = x.device_ptr(call.stream);
    let (result, _written) = result.device_ptr_mut(call.stream);
    // SAFETY: every reduction is (float*, const float*, unsigned), for one block of 256 threads; the buffers hold 1 and
    // n elements.
    unsafe { call.launch(elements(1), &[&result, &x, &n]) }
}
