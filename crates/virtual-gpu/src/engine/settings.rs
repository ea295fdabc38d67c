//! A context's settings: flags, limits, and the preferred split between cache and shared memory.
//!
//! They are stored and returned. Only the sizes of the stack, the heap, and the buffer of `printf` change results. For
//! a setting that doesn't apply to the virtual GPU, it returns an error or keeps the setting at 0.

use super::{Engine, State};
use crate::device::TOTAL_MEMORY;
use crate::report::size;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// `CU_CTX_SCHED_MASK`: how a thread waits. At most one of these bits may be set.
const SCHEDULING: u32 = 0x07;
/// `CU_CTX_MAP_HOST` and `CU_CTX_LMEM_RESIZE_TO_MAX`, which have had no effect since CUDA 11.
const WITHOUT_EFFECT: u32 = 0x18;
/// `CU_CTX_COREDUMP_ENABLE` and `CU_CTX_USER_COREDUMP_ENABLE`
const CORE_DUMPS: u32 = 0x60;
/// `CU_CTX_SYNC_MEMOPS`
const SYNC_MEMOPS: u32 = 0x80;

/// The maximum amount of local memory per thread ("CUDA C++ Programming Guide", technical specifications).
const MOST_STACK: u64 = 512 << 10;

/// Which of the L1 cache and shared memory should be larger (`CUfunc_cache`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum CachePreference {
    /// No preference.
    #[default]
    None = 0,
    /// Larger shared memory.
    Shared = 1,
    /// Larger L1 cache.
    L1 = 2,
    /// Equal sizes.
    Equal = 3,
}

impl CachePreference {
    /// Returns the preference with this C value.
    ///
    /// # Errors
    /// Returns `InvalidValue` with a message that contains the number.
    pub fn from_number(number: u32) -> CudaResult<Self> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Shared,
            2 => Self::L1,
            3 => Self::Equal,
            _ => return Err(invalid(format!("{number} is not a cache configuration: it must be 0 to 3"))),
        })
    }
}

/// A context's flags, limits, and preferences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) flags: u32,
    pub(super) stack: u64,
    pub(super) printf_buffer: u64,
    pub(super) heap: u64,
    /// Whether a kernel that allocates has been launched, so that the heap's size can't change anymore.
    keeps_heap: bool,
    pending_launches: u64,
    pub(super) cache: CachePreference,
}

impl Default for Settings {
    /// Returns the settings that a driver starts with: the values in the "CUDA C++ Programming Guide" for `printf`,
    /// `malloc`, and dynamic parallelism, and a 1 KiB stack.
    fn default() -> Self {
        Self {
            flags: 0,
            stack: 1 << 10,
            printf_buffer: 1 << 20,
            heap: 8 << 20,
            keeps_heap: false,
            pending_launches: 2048,
            cache: CachePreference::None,
        }
    }
}

/// Checks a context's flags.
///
/// # Errors
/// Returns `InvalidValue` for bits that are undefined or exclude each other, and `NotSupported` for core dumps.
pub(super) fn check_flags(flags: u32) -> CudaResult<()> {
    if flags & !(SCHEDULING | WITHOUT_EFFECT | CORE_DUMPS | SYNC_MEMOPS) != 0 {
        return Err(invalid(format!("{flags:#x} are not context flags")));
    }
    if (flags & SCHEDULING).count_ones() > 1 {
        let message =
            format!("context flags {flags:#x}: only one of SPIN, YIELD, and BLOCKING_SYNC can be set");
        return Err(invalid(message));
    }
    if flags & CORE_DUMPS != 0 {
        let message = format!("virtual GPU: context flags {flags:#x}: core dumps are not supported");
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    Ok(())
}

fn unsupported_limit(number: u32, why: &str) -> Error<CudaStatus> {
    Error::new(CudaStatus::UnsupportedLimit, format!("limit {number}: {why}"))
}

const SYNC_DEPTH: &str = "CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH exists only below compute capability 9.0";
const GRAPHICS: &str = "it exists only in contexts shared with graphics (CIG)";

impl Settings {
    fn limit(&self, number: u32) -> CudaResult<u64> {
        Ok(match number {
            0 => self.stack,
            1 => self.printf_buffer,
            2 => self.heap,
            // Only setting this limit is rejected; its default is two levels.
            3 => 2,
            4 => self.pending_launches,
            // There is no L2 cache whose fetches or persisting lines could be limited.
            5 | 6 => 0,
            7 | 9 => return Err(unsupported_limit(number, GRAPHICS)),
            // Contexts are never shared with graphics.
            8 => 0,
            _ => return Err(invalid(format!("{number} is not a limit"))),
        })
    }

    fn set_limit(&mut self, number: u32, value: u64) -> CudaResult<()> {
        match number {
            // The driver may clamp and round a value; the stack is kept aligned for any type.
            0 => self.stack = value.min(MOST_STACK).next_multiple_of(16),
            1 | 2 if value > TOTAL_MEMORY => {
                let message = format!("limit {number}: {} is more than the GPU's memory", size(value));
                return Err(Error::new(CudaStatus::OutOfMemory, message));
            }
            1 => self.printf_buffer = value,
            2 if self.keeps_heap => {
                return Err(invalid(
                    "limit 2: the heap's size can't change after the first launch of a kernel that allocates",
                ));
            }
            2 => self.heap = value,
            3 => return Err(unsupported_limit(number, SYNC_DEPTH)),
            4 => self.pending_launches = value,
            5 if value > 128 => {
                return Err(invalid(format!("limit 5: an L2 fetch of {value} bytes: it must be 0 to 128")));
            }
            // These are hints, which a driver may ignore.
            5 | 6 => {}
            7 | 8 => return Err(invalid(format!("limit {number} can only be queried"))),
            9 => return Err(unsupported_limit(number, GRAPHICS)),
            _ => return Err(invalid(format!("{number} is not a limit"))),
        }
        Ok(())
    }
}

impl Engine {
    /// `cuCtxSetFlags`: replaces the current context's flags.
    pub fn set_flags(&self, flags: u32) -> CudaResult<()> {
        self.with_settings(|settings| {
            check_flags(flags)?;
            settings.flags = flags;
            Ok(())
        })
    }

    /// `cuCtxGetFlags`.
    pub fn flags(&self) -> CudaResult<u32> {
        self.with_settings(|settings| Ok(settings.flags))
    }

    /// `cuCtxGetLimit`, by the limit's number in `cuda.h`.
    pub fn limit(&self, number: u32) -> CudaResult<u64> {
        self.with_settings(|settings| settings.limit(number))
    }

    /// `cuCtxSetLimit`.
    pub fn set_limit(&self, number: u32, value: u64) -> CudaResult<()> {
        self.with_settings(|settings| settings.set_limit(number, value))
    }

    /// `cuCtxGetCacheConfig`.
    pub fn cache_preference(&self) -> CudaResult<CachePreference> {
        self.with_settings(|settings| Ok(settings.cache))
    }

    /// `cuCtxSetCacheConfig`.
    pub fn set_cache_preference(&self, preference: CachePreference) -> CudaResult<()> {
        self.with_settings(|settings| {
            settings.cache = preference;
            Ok(())
        })
    }

    /// Returns whether the current context requires copies and memsets without a stream argument to be done when they
    /// return (`CU_CTX_SYNC_MEMOPS`).
    pub fn has_synchronous_copies(&self) -> CudaResult<bool> {
        self.with_settings(|settings| Ok(settings.flags & SYNC_MEMOPS != 0))
    }

    fn with_settings<T>(&self, change: impl FnOnce(&mut Settings) -> CudaResult<T>) -> CudaResult<T> {
        let mut state = self.state();
        let context = state.current_context()?;
        change(state.settings(context)?)
    }
}

impl State {
    /// Records that a kernel of a context has been launched that uses the context's heap.
    pub(super) fn keep_heap(&mut self, context: super::ContextHandle) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.settings.keeps_heap = true;
        }
    }

    fn settings(&mut self, context: super::ContextHandle) -> CudaResult<&mut Settings> {
        self.context(context)?;
        let entry = self.contexts.get_mut(&context);
        entry.map(|context| &mut context.settings).ok_or_else(|| CudaStatus::InvalidContext.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_exclude_each_other_or_mean_nothing_are_refused() {
        for flags in [0, 1, 2, 4, 0x08, 0x14, 0x80] {
            assert!(check_flags(flags).is_ok(), "{flags:#x}");
        }
        for (flags, status) in [
            (3, CudaStatus::InvalidValue),
            (7, CudaStatus::InvalidValue),
            (0x100, CudaStatus::InvalidValue),
            (0x20, CudaStatus::NotSupported),
        ] {
            let error = check_flags(flags).unwrap_err();
            assert_eq!(error.status, status);
            assert!(error.message.contains(&format!("{flags:#x}")), "{}", error.message);
        }
    }

    #[test]
    fn each_limit_is_stored_or_refused_with_a_reason() {
        let mut settings = Settings::default();
        settings.set_limit(0, 5000).unwrap();
        assert_eq!(settings.limit(0).unwrap(), 5008);
        settings.set_limit(0, 1 << 40).unwrap();
        assert_eq!(settings.limit(0).unwrap(), MOST_STACK);
        settings.set_limit(2, 64 << 20).unwrap();
        assert_eq!(settings.limit(2).unwrap(), 64 << 20);
        assert_eq!(settings.set_limit(1, 1 << 60).unwrap_err().status, CudaStatus::OutOfMemory);
        settings.keeps_heap = true;
        assert_eq!(settings.set_limit(2, 1 << 20).unwrap_err().status, CudaStatus::InvalidValue);
        assert_eq!(settings.limit(3).unwrap(), 2);
        assert_eq!(settings.set_limit(3, 2).unwrap_err().status, CudaStatus::UnsupportedLimit);
        assert_eq!(settings.set_limit(8, 1).unwrap_err().status, CudaStatus::InvalidValue);
        assert!(settings.limit(10).unwrap_err().message.contains("10 is not a limit"));
    }
}
