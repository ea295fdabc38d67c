//! Functions: the attributes of a module's kernels, and the program's settings for launching them.

use std::sync::Arc;

use super::cluster::ClusterSettings;
use super::module::{FunctionHandle, ModuleHandle};
use super::settings::CachePreference;
use super::{Engine, State};
use crate::device::{
    BINARY_VERSION, MAX_THREADS_PER_BLOCK, REGISTERS_PER_THREAD, SHARED_PER_BLOCK, SHARED_PER_BLOCK_OPT_IN,
};
use crate::occupancy::Usage;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_ptx::Kernel;

pub(super) struct Function {
    pub(super) module: ModuleHandle,
    pub(super) kernel: Arc<Kernel>,
    /// The number of bytes of dynamic shared memory that a launch may request.
    pub(super) max_dynamic_shared: u32,
    /// The preferred share of an SM's memory for shared memory, in percent; −1 if the program has no preference.
    carveout: i32,
    cache: CachePreference,
    pub(super) clusters: ClusterSettings,
}

impl Function {
    pub(super) fn new(module: ModuleHandle, kernel: Arc<Kernel>) -> Self {
        // A block has 48 KiB, static and dynamic together, unless the program requests more.
        let max_dynamic_shared = SHARED_PER_BLOCK.saturating_sub(kernel.shared_bytes());
        Self {
            module,
            kernel,
            max_dynamic_shared,
            carveout: -1,
            cache: CachePreference::None,
            clusters: ClusterSettings::default(),
        }
    }

    /// Returns the maximum number of threads in a block: the GPU's limit, or less if `.maxntid` or `.reqntid` sets a
    /// lower limit.
    pub(super) fn max_threads(&self) -> u32 {
        let bound = self.kernel.required_threads().or(self.kernel.max_threads());
        let product = |[x, y, z]: [u32; 3]| x.saturating_mul(y).saturating_mul(z);
        bound.map_or(MAX_THREADS_PER_BLOCK, product).min(MAX_THREADS_PER_BLOCK)
    }

    pub(super) fn invalid(&self, what: String) -> Error<CudaStatus> {
        Error::new(CudaStatus::InvalidValue, format!("kernel `{}`: {what}", self.kernel.name()))
    }

    /// Sets a `CUfunction_attribute`, by its number.
    fn set_attribute(&mut self, attribute: i32, value: i32) -> CudaResult<()> {
        match attribute {
            0..=7 | 10 => Err(self.invalid(format!("function attribute {attribute} can only be read"))),
            8 => {
                let room = SHARED_PER_BLOCK_OPT_IN.saturating_sub(self.kernel.shared_bytes());
                let bytes = u32::try_from(value).ok().filter(|&bytes| bytes <= room).ok_or_else(|| {
                    self.invalid(format!(
                        "{value} bytes of dynamic shared memory: 0 to {room} can be requested, because {} bytes are static",
                        self.kernel.shared_bytes()
                    ))
                })?;
                self.max_dynamic_shared = bytes;
                Ok(())
            }
            9 if !(-1..=100).contains(&value) => Err(self.invalid(format!(
                "{value} percent of shared memory: it must be 0 to 100, or -1 for no preference"
            ))),
            9 => {
                self.carveout = value;
                Ok(())
            }
            11..=15 => self.set_cluster_attribute(attribute, value),
            _ => Err(self.invalid(format!("{attribute} is not a function attribute"))),
        }
    }
}

impl Engine {
    /// `cuFuncGetAttribute`, by the attribute's number in `cuda.h`. The values are the kernel's own, except for the
    /// number of registers: none are allocated, and each thread is assumed to use [`REGISTERS_PER_THREAD`].
    pub fn function_attribute(&self, function: FunctionHandle, attribute: i32) -> CudaResult<i32> {
        let state = self.state();
        let entry = state.function(function)?;
        let module = state.module(entry.module)?;
        let kernel = &entry.kernel;
        let constants = || {
            let named = kernel.variables().filter_map(|index| module.variables().get(index as usize));
            named.filter(|variable| variable.is_const).map(|variable| variable.size).sum::<u64>()
        };
        Ok(match attribute {
            0 => entry.max_threads() as i32,
            1 => kernel.shared_bytes() as i32,
            2 => constants() as i32,
            3 => kernel.local_bytes() as i32,
            4 => REGISTERS_PER_THREAD as i32,
            5 => module.target() as i32,
            6 => BINARY_VERSION,
            // Nothing is compiled with `-Xptxas --dlcm=ca`.
            7 => 0,
            8 => entry.max_dynamic_shared as i32,
            9 => entry.carveout,
            10..=15 => entry.cluster_attribute(attribute),
            _ => return Err(entry.invalid(format!("{attribute} is not a function attribute"))),
        })
    }

    /// `cuFuncSetAttribute`.
    pub fn set_function_attribute(
        &self,
        function: FunctionHandle,
        attribute: i32,
        value: i32,
    ) -> CudaResult<()> {
        self.state().function_mut(function)?.set_attribute(attribute, value)
    }

    /// Returns the multiprocessor resources that a function uses, for the `cuOccupancy` functions.
    pub fn usage(&self, function: FunctionHandle) -> CudaResult<Usage> {
        self.state().usage(function)
    }

    /// Checks that a handle refers to a stream.
    ///
    /// # Errors
    /// Returns `InvalidHandle` with a message that contains the handle.
    pub fn check_stream(&self, stream: StreamHandle) -> CudaResult<()> {
        self.state().resolve_stream(stream).map(drop)
    }

    /// `cuFuncSetCacheConfig`.
    pub fn set_function_cache_preference(
        &self,
        function: FunctionHandle,
        preference: CachePreference,
    ) -> CudaResult<()> {
        self.state().function_mut(function)?.cache = preference;
        Ok(())
    }
}

impl State {
    pub(super) fn function(&self, function: FunctionHandle) -> CudaResult<&Function> {
        self.functions.get(&function).ok_or_else(|| not_a_function(function))
    }

    /// Returns the multiprocessor resources that a function uses.
    pub(super) fn usage(&self, function: FunctionHandle) -> CudaResult<Usage> {
        let entry = self.function(function)?;
        let of_context = self.context(self.context_of(entry.module)?)?.settings.cache;
        let preference = if entry.cache == CachePreference::None { of_context } else { entry.cache };
        let by_preference = match preference {
            CachePreference::None => None,
            CachePreference::Shared => Some(100),
            CachePreference::Equal => Some(50),
            CachePreference::L1 => Some(0),
        };
        Ok(Usage {
            max_threads: entry.max_threads(),
            static_shared: entry.kernel.shared_bytes(),
            max_dynamic_shared: entry.max_dynamic_shared,
            carveout: u32::try_from(entry.carveout).ok().or(by_preference),
        })
    }

    fn function_mut(&mut self, function: FunctionHandle) -> CudaResult<&mut Function> {
        self.functions.get_mut(&function).ok_or_else(|| not_a_function(function))
    }
}

fn not_a_function(function: FunctionHandle) -> Error<CudaStatus> {
    let message = format!("{:#x} is not a function, or is no longer one", function.0);
    Error::new(CudaStatus::InvalidHandle, message)
}
