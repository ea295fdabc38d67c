//! A GPU that runs one kernel, with helpers for memory, buffers, and launches.

use virtual_gpu_core::memory::{DeviceMemory, Written};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::texture::Objects;
use virtual_gpu_machine::{self as machine, Division, Execution, Fault, KernelHeap, Launch};
use virtual_gpu_ptx::{self as ptx, Module};

use crate::twin::{Repeated, Twin};

/// A kernel's argument or a buffer's element.
pub(crate) trait Plain: Copy {
    /// Returns its bytes in little-endian order.
    fn bytes(self) -> Vec<u8>;
    /// Reads a value from its bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($kind:ty)*) => {$(
        impl Plain for $kind {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 u128 f32 f64);

/// Builds a launch's arguments from plain values, in order.
#[macro_export]
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &[$($crate::gpu::Plain::bytes($argument)),*]
    };
}

pub(crate) struct Gpu {
    pub(crate) memory: DeviceMemory,
    pub(crate) module: Module,
    globals: Vec<u64>,
    /// The texture and surface objects that kernels may use.
    pub(crate) objects: Objects,
    pub(crate) limit: u64,
    /// The maximum number of instructions that one thread may execute.
    pub(crate) thread_limit: u64,
    pub(crate) dynamic_shared: u32,
    /// As in [`Launch`].
    pub(crate) is_lenient: bool,
    pub(crate) resident: u64,
    /// As in [`Launch`]. If the blocks of a launch are divided, they also run in order, which must have the same result.
    pub(crate) division: Division,
    pub(crate) stack: u64,
    pub(crate) print_buffer: u64,
    /// The address of a cooperative launch's barrier.
    pub(crate) workspace: u64,
    /// A real GPU that does the same, until a launch fails.
    twin: Option<Twin>,
}

impl Gpu {
    pub(crate) fn new(source: &str) -> Self {
        let module = ptx::load(source).unwrap_or_else(|error| panic!("{error}"));
        let mut gpu = Self::with(module).expect("there is room for the module's variables");
        gpu.twin = Twin::of(source);
        if let Some(twin) = &mut gpu.twin {
            for (variable, &base) in gpu.module.variables().iter().zip(&gpu.globals) {
                twin.variable(&variable.name, base);
            }
        }
        gpu
    }

    /// Returns the GPU without a real one that repeats its launches, for those whose arguments only this one can read.
    pub(crate) fn virtual_alone(mut self) -> Self {
        self.twin = None;
        self
    }

    /// Creates a GPU with a module. Returns `None` if the module's variables need too much memory.
    pub(crate) fn with(module: Module) -> Option<Self> {
        let mut memory = DeviceMemory::new(1 << 44..1 << 45, 1 << 30);
        let mut globals = Vec::new();
        for variable in module.variables() {
            let base = memory.allocate(variable.size.max(1), CallSite::unknown()).ok()?;
            globals.push(base);
        }
        for (variable, &base) in module.variables().iter().zip(&globals) {
            let (allocation, _) = memory.range_mut(base, variable.size).unwrap();
            let image = variable.image(&globals);
            allocation.bytes_mut()[..image.len()].copy_from_slice(&image);
            allocation.mark_written(0..variable.size);
        }
        Some(Self {
            memory,
            module,
            globals,
            objects: Objects::default(),
            limit: 1 << 32,
            thread_limit: 1 << 32,
            dynamic_shared: 0,
            is_lenient: false,
            resident: 264,
            division: Division { threads: 3, from: 0 },
            stack: 1 << 10,
            print_buffer: 1 << 20,
            workspace: 0,
            twin: None,
        })
    }

    pub(crate) fn buffer<T: Plain>(&mut self, values: &[T]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let base = self.unwritten(bytes.len());
        let (allocation, _) = self.memory.range_mut(base, bytes.len() as u64).unwrap();
        allocation.bytes_mut().copy_from_slice(&bytes);
        allocation.mark_written(0..bytes.len() as u64);
        if let Some(twin) = &mut self.twin {
            twin.write(base, &bytes);
        }
        base
    }

    pub(crate) fn unwritten(&mut self, bytes: usize) -> u64 {
        let base = self.memory.allocate(bytes as u64, CallSite::unknown()).unwrap();
        if let Some(twin) = &mut self.twin {
            twin.allocate(base, &seen(&self.memory, base, bytes));
        }
        base
    }

    pub(crate) fn read<T: Plain>(&self, base: u64) -> Vec<T> {
        let (allocation, _) = self.memory.range(base, 1).unwrap();
        allocation.bytes().chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
    }

    pub(crate) fn launch(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &[Vec<u8>],
    ) -> Result<Execution, Box<Fault>> {
        let name = kernel;
        let kernel = self.module.kernel(name).expect("the kernel exists").clone();
        assert_eq!(arguments.len(), kernel.parameters().len());
        let mut parameters = vec![0; kernel.parameter_bytes()];
        for (parameter, bytes) in kernel.parameters().iter().zip(arguments) {
            let start = parameter.offset as usize;
            parameters[start..start + parameter.size as usize].copy_from_slice(bytes);
        }
        let launch = Launch {
            grid,
            block,
            cluster: kernel.cluster().required.unwrap_or([1; 3]),
            is_explicit_cluster: kernel.cluster().required.is_some(),
            dynamic_shared: self.dynamic_shared,
            parameters: &parameters,
            globals: &self.globals,
            objects: &self.objects,
            start_ns: 1_000_000,
            division: self.division,
            resident: self.resident,
            workspace: self.workspace,
            stack: self.stack,
            heap: KernelHeap::default(),
            print_buffer: self.print_buffer,
            watch_shared: true,
            is_lenient: self.is_lenient,
            instruction_limit: self.limit,
            thread_limit: self.thread_limit,
        };
        let is_divided = self.division.threads > 1 && grid != [1; 3];
        let before = if is_divided { contents(&self.memory) } else { Vec::new() };
        let ended = machine::run(&kernel, &launch, &mut self.memory);
        if is_divided && ended.as_ref().map_or(true, |it| it.is_divided) {
            let after = contents(&self.memory);
            // A kernel that allocates memory is never divided, and would get other addresses.
            if after.len() == before.len() {
                restore(&mut self.memory, before);
                let launch = Launch { division: Division::NONE, ..launch };
                let mut in_order = machine::run(&kernel, &launch, &mut self.memory);
                if let (Ok(ended), Ok(in_order)) = (&ended, &mut in_order) {
                    in_order.is_divided = ended.is_divided;
                }
                assert_eq!(
                    format!("{ended:#?}"),
                    format!("{in_order:#?}"),
                    "the blocks ran divided, and in order"
                );
                assert!(is_same(&after, &contents(&self.memory)), "the blocks left other bytes in order");
            }
        }
        if ended.is_err() {
            self.twin = None;
        }
        if let Some(twin) = &mut self.twin {
            let repeated = Repeated {
                kernel: name,
                grid,
                block,
                arguments,
                dynamic_shared: self.dynamic_shared,
                stack: self.stack,
                workspace: self.workspace,
            };
            twin.repeat(&repeated, |base, size| seen(&self.memory, base, size));
        }
        ended
    }

    /// Runs a launch that must not fail.
    pub(crate) fn run(&mut self, kernel: &str, grid: u32, block: u32, arguments: &[Vec<u8>]) -> Execution {
        self.launch(kernel, [grid, 1, 1], [block, 1, 1], arguments).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Runs a launch that must fail.
    pub(crate) fn fault(&mut self, kernel: &str, grid: u32, block: u32, arguments: &[Vec<u8>]) -> Box<Fault> {
        self.launch(kernel, [grid, 1, 1], [block, 1, 1], arguments).expect_err("this launch has a fault")
    }
}

/// All allocations' slots and bytes, and which of the bytes have been written.
type Contents = Vec<(usize, Vec<u8>, Written)>;

fn contents(memory: &DeviceMemory) -> Contents {
    let mut all = Vec::new();
    for slot in 0..1 << 10 {
        if let Some(allocation) = memory.in_slot(slot) {
            let (bytes, written) = allocation.parts();
            all.push((slot, bytes.to_vec(), written.clone()));
        }
    }
    all
}

fn restore(memory: &mut DeviceMemory, contents: Contents) {
    for (slot, bytes, written) in contents {
        let (to, record) = memory.in_slot_mut(slot).expect("it is there").parts_mut();
        to.copy_from_slice(&bytes);
        *record = written;
    }
}

fn is_same(one: &Contents, other: &Contents) -> bool {
    let mut pairs = one.iter().zip(other);
    one.len() == other.len()
        && pairs.all(|((_, bytes, written), (_, others, record))| {
            bytes == others && (0..bytes.len() as u64).all(|at| written.covers(at, 1) == record.covers(at, 1))
        })
}

/// Returns an allocation's bytes as a reader sees them.
fn seen(memory: &DeviceMemory, base: u64, size: usize) -> Vec<u8> {
    let (allocation, _) = memory.range(base, size as u64).unwrap();
    allocation.seen(0..size as u64).into_owned()
}

/// Generates random-looking numbers, which are the same on every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        // This is xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns floats in -1..1.
    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}
