//! Checks and enqueues kernel launches.

use std::sync::Arc;

use super::FunctionHandle;
use super::context::ContextHandle;
use super::function::Function;
use super::module::not_a_module;
use super::work::Work;
use super::{Engine, State};
use crate::device::{MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK, MULTIPROCESSORS, SHARED_PER_BLOCK_OPT_IN};
use crate::report::size;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::texture::Objects;
use virtual_gpu_ptx::Kernel;

/// A launch's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// The number of blocks along each dimension.
    pub grid: [u32; 3],
    /// The number of threads in a block along each dimension.
    pub block: [u32; 3],
    /// The number of bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The number of blocks in a cluster along each dimension, if the launch states it.
    pub cluster: Option<[u32; 3]>,
}

impl LaunchShape {
    /// Returns the shape of a launch that states no size of a cluster.
    pub fn new(grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> Self {
        Self { grid, block, dynamic_shared, cluster: None }
    }
}

/// A launch that is waiting for its turn.
#[derive(Clone)]
pub(super) struct KernelLaunch {
    pub(super) function: FunctionHandle,
    pub(super) kernel: Arc<Kernel>,
    pub(super) shape: LaunchShape,
    /// The number of blocks in a cluster along each dimension, if the launch or the kernel states it.
    pub(super) cluster: Option<[u32; 3]>,
    pub(super) parameters: Vec<u8>,
    pub(super) globals: Arc<[u64]>,
    /// The context's texture and surface objects when the launch is enqueued.
    pub(super) objects: Arc<Objects>,
    /// The number of blocks resident on the GPU at the same time.
    pub(super) resident: u64,
    pub(super) is_cooperative: bool,
    pub(super) context: ContextHandle,
    /// The size of each thread's stack in bytes (`CU_LIMIT_STACK_SIZE`).
    pub(super) stack: u64,
    /// The size of the heap in bytes (`CU_LIMIT_MALLOC_HEAP_SIZE`).
    pub(super) heap: u64,
    /// The number of bytes of printed output that its context keeps (`CU_LIMIT_PRINTF_FIFO_SIZE`).
    pub(super) print_buffer: u64,
}

impl KernelLaunch {
    pub(super) fn name(&self) -> &str {
        self.kernel.name()
    }
}

impl Engine {
    /// `cuLaunchKernel`. `parameters` are packed as the kernel's own parameter list requires.
    pub fn launch(
        &self,
        function: FunctionHandle,
        shape: LaunchShape,
        stream: StreamHandle,
        parameters: Vec<u8>,
    ) -> CudaResult<()> {
        self.enqueue_kernel(function, shape, stream, parameters, false)
    }

    /// `cuLaunchCooperativeKernel`: all blocks run at the same time and may wait for each other.
    ///
    /// # Errors
    /// Returns `CooperativeLaunchTooLarge` if that many blocks can't be resident on the GPU at the same time.
    pub fn launch_cooperative(
        &self,
        function: FunctionHandle,
        shape: LaunchShape,
        stream: StreamHandle,
        parameters: Vec<u8>,
    ) -> CudaResult<()> {
        self.enqueue_kernel(function, shape, stream, parameters, true)
    }

    fn enqueue_kernel(
        &self,
        function: FunctionHandle,
        shape: LaunchShape,
        stream: StreamHandle,
        parameters: Vec<u8>,
        is_cooperative: bool,
    ) -> CudaResult<()> {
        self.flush_current();
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let launch = state.kernel_launch(function, shape, parameters, is_cooperative)?;
        let of_stream = state.last_of(stream)?.0;
        if launch.context != of_stream {
            let (own, other) = (state.describe(launch.context), state.describe(of_stream));
            let name = launch.name();
            let message = format!("kernel `{name}` was loaded on {own}, but the stream is on {other}");
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        self.submit_in(state, stream, Work::Kernel(Box::new(launch)), CallSite::here())
    }
}

impl State {
    /// Checks a launch in the context of the function's module.
    pub(super) fn kernel_launch(
        &mut self,
        function: FunctionHandle,
        shape: LaunchShape,
        parameters: Vec<u8>,
        is_cooperative: bool,
    ) -> CudaResult<KernelLaunch> {
        let entry = self.function(function)?;
        check_shape(entry, &shape)?;
        let cluster = entry.cluster(&shape)?;
        let threads = shape.block.into_iter().product();
        let by_multiprocessor = self.usage(function)?.blocks(threads, u64::from(shape.dynamic_shared));
        let resident = u64::from(by_multiprocessor) * u64::from(MULTIPROCESSORS);
        if is_cooperative {
            check_fits(&entry.kernel, &shape, resident)?;
        }
        let module = self.modules.get(&entry.module).ok_or_else(|| not_a_module(entry.module))?;
        let context = module.context;
        let settings = &self.context(context)?.settings;
        let launch = KernelLaunch {
            function,
            kernel: entry.kernel.clone(),
            shape,
            cluster,
            parameters,
            globals: module.globals.clone(),
            objects: Arc::default(),
            resident,
            is_cooperative,
            context,
            stack: settings.stack,
            heap: settings.heap,
            print_buffer: settings.printf_buffer,
        };
        if launch.kernel.uses_heap() {
            self.keep_heap(context);
        }
        Ok(launch)
    }
}

/// Rejects a block shape that the kernel was not compiled for (`__launch_bounds__`, `__block_size__`).
fn check_bounds(kernel: &Kernel, block: [u32; 3]) -> Result<(), String> {
    let [x, y, z] = block;
    let threads = u64::from(x * y * z);
    if let Some([a, b, c]) = kernel.required_threads().filter(|&required| required != block) {
        return Err(format!(
            "a block of {x} x {y} x {z} threads: the kernel requires {a} x {b} x {c} (.reqntid)"
        ));
    }
    let most = kernel.max_threads().map(|bound| bound.into_iter().map(u64::from).product::<u64>());
    match most.filter(|&most| threads > most) {
        Some(most) => {
            Err(format!("{threads} threads in a block: the kernel allows at most {most} (.maxntid)"))
        }
        None => Ok(()),
    }
}

/// Rejects a launch that exceeds what this kind of GPU supports. The error states the value and the limit.
fn check_shape(function: &Function, shape: &LaunchShape) -> CudaResult<()> {
    let kernel = &function.kernel;
    let refuse = |what: String| {
        Err(Error::new(CudaStatus::InvalidValue, format!("launch of `{}`: {what}", kernel.name())))
    };
    for (name, dims, limits) in [("grid", shape.grid, MAX_GRID), ("block", shape.block, MAX_BLOCK)] {
        for ((axis, size), limit) in ["x", "y", "z"].into_iter().zip(dims).zip(limits) {
            if size == 0 || size > limit {
                return refuse(format!("{name} dimension {axis} is {size}: it must be 1 to {limit}"));
            }
        }
    }
    let [x, y, z] = shape.block;
    let threads = x * y * z;
    if threads > MAX_THREADS_PER_BLOCK {
        return refuse(format!(
            "{x} x {y} x {z} = {threads} threads in a block: at most {MAX_THREADS_PER_BLOCK} are allowed"
        ));
    }
    check_bounds(kernel, shape.block).or_else(refuse)?;
    if shape.dynamic_shared > function.max_dynamic_shared {
        let (asked, limit) = (shape.dynamic_shared, function.max_dynamic_shared);
        return refuse(format!(
            "{asked} bytes of dynamic shared memory: at most {limit} are allowed; \
             set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES for more"
        ));
    }
    let shared = u64::from(shape.dynamic_shared) + u64::from(kernel.shared_bytes());
    if shared > u64::from(SHARED_PER_BLOCK_OPT_IN) {
        return refuse(format!(
            "{} of shared memory: a block can have at most {SHARED_PER_BLOCK_OPT_IN} bytes",
            size(shared)
        ));
    }
    Ok(())
}

/// Rejects a cooperative launch whose blocks don't all fit at the same time.
fn check_fits(kernel: &Kernel, shape: &LaunchShape, resident: u64) -> CudaResult<()> {
    let [x, y, z] = shape.grid;
    let blocks = shape.grid.into_iter().map(u64::from).product::<u64>();
    if blocks <= resident {
        return Ok(());
    }
    let message = format!(
        "cooperative launch of `{}`: {x} x {y} x {z} = {blocks} blocks, but only {resident} fit on the GPU at the same time \
         ({MULTIPROCESSORS} multiprocessors with {} each)",
        kernel.name(),
        resident / u64::from(MULTIPROCESSORS)
    );
    Err(Error::new(CudaStatus::CooperativeLaunchTooLarge, message))
}
