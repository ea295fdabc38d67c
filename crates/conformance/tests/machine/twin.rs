//! A real GPU that repeats each launch of the machine, and whose memory must then be the same.
//!
//! `LAB_TIER=real cargo test -p conformance --test machine` runs the tests this way, on GPU 0.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

/// The most differences that one launch reports.
const SHOWN: usize = 4;

/// The size of the shared memory in bytes that a kernel may use without asking for more.
const ORDINARY_SHARED: u32 = 48 << 10;

/// The stack of a thread in bytes that a new context has at least.
const ORDINARY_STACK: u64 = 1 << 10;

/// A launch on the machine that has succeeded.
pub(crate) struct Repeated<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) arguments: &'a [Vec<u8>],
    pub(crate) dynamic_shared: u32,
    pub(crate) stack: u64,
    /// The address of a cooperative launch's barrier, or 0. The real GPU has its own.
    pub(crate) workspace: u64,
}

/// The real GPU's copy of a module and of the machine's memory.
pub(crate) struct Twin {
    _context: Arc<CudaContext>,
    module: sys::CUmodule,
    source: String,
    /// The real address and the size in bytes of each allocation, by its address on the machine.
    allocations: BTreeMap<u64, (u64, usize)>,
    differs: bool,
}

impl Twin {
    /// Loads a module on the real GPU if this run compares with one.
    pub(crate) fn of(source: &str) -> Option<Self> {
        if std::env::var("LAB_TIER").as_deref() != Ok("real") {
            return None;
        }
        let context = CudaContext::new(0).expect("LAB_TIER=real needs a GPU");
        let mut log = vec![0_u8; 8192];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let image = CString::new(source).unwrap();
        let mut module = std::ptr::null_mut();
        // SAFETY: the image and the log outlive the call, and each option has a value.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let log = String::from_utf8_lossy(&log);
        loaded.result().unwrap_or_else(|error| {
            panic!("the driver refuses the module: {error}\n{}\n{source}", log.trim_end_matches('\0'))
        });
        Some(Self {
            _context: context,
            module,
            source: source.to_owned(),
            allocations: BTreeMap::new(),
            differs: false,
        })
    }

    /// Copies a new allocation of the machine to the real GPU.
    pub(crate) fn allocate(&mut self, base: u64, bytes: &[u8]) {
        // SAFETY: nothing else uses the new memory.
        let real = unsafe { result::malloc_sync(bytes.len().max(1)) }.unwrap();
        self.allocations.insert(base, (real, bytes.len()));
        self.write(base, bytes);
    }

    /// Names the module's variable that is at an address of the machine. Local variables have no address here.
    pub(crate) fn variable(&mut self, name: &str, base: u64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the module is loaded.
        if let Ok((real, size)) = unsafe { result::module::get_global(self.module, name) } {
            self.allocations.insert(base, (real, size));
        }
    }

    /// Overwrites an allocation.
    pub(crate) fn write(&mut self, base: u64, bytes: &[u8]) {
        // SAFETY: the allocation has this size.
        unsafe { result::memcpy_htod_sync(self.allocations[&base].0, bytes) }.unwrap();
    }

    /// Translates a word of an argument if it is an address of the machine.
    fn translated(&self, word: &[u8]) -> Vec<u8> {
        let Ok(bytes) = word.try_into() else { return word.to_vec() };
        let address = u64::from_le_bytes(bytes);
        match self.allocations.range(..=address).next_back() {
            Some((base, &(real, size))) if address - base <= size as u64 => {
                (real + (address - base)).to_le_bytes().to_vec()
            }
            _ => word.to_vec(),
        }
    }

    /// Repeats a launch, and compares all memory with the machine's, which `bytes` returns for an address and a size.
    pub(crate) fn repeat(&mut self, launch: &Repeated<'_>, bytes: impl Fn(u64, usize) -> Vec<u8>) {
        let name = CString::new(launch.kernel).unwrap();
        let mut arguments: Vec<Vec<u8>> = launch
            .arguments
            .iter()
            .map(|argument| argument.chunks(8).flat_map(|word| self.translated(word)).collect())
            .collect();
        let mut arguments: Vec<*mut c_void> =
            arguments.iter_mut().map(|argument| argument.as_mut_ptr().cast()).collect();
        let [grid, block] = [launch.grid, launch.block].map(|[x, y, z]| (x, y, z));
        // SAFETY: the module is loaded, and the arguments have the sizes that the kernel's parameters have.
        let ended = unsafe {
            let function = result::module::get_function(self.module, name).unwrap();
            if launch.dynamic_shared > ORDINARY_SHARED {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, attribute, launch.dynamic_shared as i32)
                    .unwrap();
            }
            if launch.stack > ORDINARY_STACK {
                result::ctx::set_limit(sys::CUlimit::CU_LIMIT_STACK_SIZE, launch.stack as usize).unwrap();
            }
            let start = match launch.workspace {
                0 => result::launch_kernel,
                _ => result::launch_cooperative_kernel,
            };
            start(function, grid, block, launch.dynamic_shared, std::ptr::null_mut(), &mut arguments)
                .and_then(|()| result::ctx::synchronize())
        };
        ended.unwrap_or_else(|error| {
            panic!("on the real GPU, {} fails: {error}\n{}", launch.kernel, self.source)
        });
        let mut differences = Vec::new();
        for (&base, &(real, size)) in self.allocations.iter().filter(|(base, _)| **base != launch.workspace) {
            let expected = bytes(base, size);
            let mut got = vec![0_u8; size];
            // SAFETY: the allocation has this size.
            unsafe { result::memcpy_dtoh_sync(&mut got, real) }.unwrap();
            for (at, (got, expected)) in got.chunks(8).zip(expected.chunks(8)).enumerate() {
                if got != expected {
                    differences.push(format!(
                        "  {base:#x}+{}: the GPU has {}, the machine {}",
                        8 * at,
                        hex(got),
                        hex(expected)
                    ));
                }
            }
        }
        if !differences.is_empty() {
            eprintln!("{} on the real GPU: {} words differ", launch.kernel, differences.len());
            differences.iter().take(SHOWN).for_each(|difference| eprintln!("{difference}"));
            if !self.differs {
                eprintln!("{}", self.source);
            }
            self.differs = true;
        }
    }
}

/// Returns the digits of a little-endian number.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

impl Drop for Twin {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(!self.differs, "the real GPU's memory differs from the machine's");
        }
    }
}
