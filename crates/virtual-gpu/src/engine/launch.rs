//! Modules, functions and kernel launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::ContextHandle;
use super::function::Function;
use super::kernel_report::{assertion_lines, fault_report, race_report, status_of, unwritten_report};
use super::run::Turn;
use super::stream::Work;
use super::touched::{Done, Outcome, Touched};
use super::{Engine, Failure, State, lock};
use crate::config::Checks;
use crate::device::{MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK, MULTIPROCESSORS, SHARED_PER_BLOCK_OPT_IN};
use crate::order::Touch;
use crate::report::{Report, size};
use crate::time::Cost;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_machine::{Access, FaultKind, Launch};
use virtual_gpu_ptx::Kernel;

/// A `CUmodule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleHandle(pub u64);

/// A `CUfunction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionHandle(pub u64);

/// Instructions that the threads of a launch may take together, so that a kernel without end ends: about a minute of one
/// core.
const INSTRUCTION_LIMIT: u64 = 1 << 36;

/// Instructions that one thread may take: some ten seconds of one core for a thread that runs alone.
const THREAD_LIMIT: u64 = 1 << 28;

pub(super) struct LoadedModule {
    pub(super) context: ContextHandle,
    module: Arc<virtual_gpu_ptx::Module>,
    /// Device address of each of the module's variables.
    pub(super) globals: Arc<[u64]>,
    functions: BTreeMap<String, FunctionHandle>,
}

/// A launch's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks, by dimension.
    pub grid: [u32; 3],
    /// Threads of a block, by dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
}

/// A launch that waits for its turn.
#[derive(Clone)]
pub(crate) struct KernelLaunch {
    kernel: Arc<Kernel>,
    shape: LaunchShape,
    parameters: Vec<u8>,
    globals: Arc<[u64]>,
    /// Blocks that the GPU holds at a time.
    resident: u64,
    is_cooperative: bool,
    context: ContextHandle,
    /// Bytes of each thread's stack (`CU_LIMIT_STACK_SIZE`).
    stack: u64,
    /// Bytes that its context keeps of what kernels print (`CU_LIMIT_PRINTF_FIFO_SIZE`).
    print_buffer: u64,
}

impl KernelLaunch {
    pub(super) fn name(&self) -> &str {
        self.kernel.name()
    }
}

impl Engine {
    /// Says whose an address is that a kernel used, and that lies in no memory of its GPU.
    fn whose(&self, report: Report, address: u64) -> Report {
        if self.state().is_pinned(address) {
            return report.fact("it is pinned host memory, which the virtual GPU's kernels can't access");
        }
        let Some(device) = self.device_of(address).filter(|&device| device != self.managed()) else {
            return report.fact(format!("{address:#x} lies in no buffer of a GPU: is it a host pointer?"));
        };
        let report = match self.memory(device).range(address, 1) {
            Ok((allocation, _)) => report.before_at(
                format!("it is in the buffer of {} on GPU {device} allocated", size(allocation.size())),
                allocation.call_site(),
            ),
            Err(_) => report.fact(format!("{address:#x} is an address of GPU {device}")),
        };
        report.help("a kernel uses its own GPU's memory: copy the data there first")
    }

    /// `cuModuleLoadData` of PTX text, into the current context.
    ///
    /// # Errors
    /// `InvalidPtx` with every line that can't be run.
    pub fn load_module(&self, text: &str) -> CudaResult<ModuleHandle> {
        self.flush_current();
        let (context, device) = {
            let mut state = self.state();
            let context = state.current_context()?;
            state.check_usable(context)?;
            (context, state.device_of_context(context)?)
        };
        let module = self.parse(text)?;
        let mut globals = Vec::new();
        {
            let mut memory = self.memory(device);
            for variable in module.variables() {
                let address = memory.allocate(variable.size.max(1), CallSite::here()).map_err(|_| {
                    Error::new(
                        CudaStatus::OutOfMemory,
                        format!("no room for the variable `{}`", variable.name),
                    )
                })?;
                globals.push(address);
            }
            for (variable, &address) in module.variables().iter().zip(&globals) {
                if let Ok((allocation, offset)) = memory.range_mut(address, variable.size.max(1)) {
                    let image = variable.image(&globals);
                    allocation.bytes_mut()[offset as usize..][..image.len()].copy_from_slice(&image);
                    allocation.mark_written(0..variable.size.max(1));
                }
            }
        }
        let mut state = self.state();
        let handle = ModuleHandle(state.new_handle());
        let module = LoadedModule { context, module, globals: globals.into(), functions: BTreeMap::new() };
        state.modules.insert(handle, module);
        Ok(handle)
    }

    /// Reads a PTX text. Every rank loads the same ones, so the last few are kept.
    fn parse(&self, text: &str) -> CudaResult<Arc<virtual_gpu_ptx::Module>> {
        const KEPT: usize = 32;
        // Held while reading: ranks that come with the same text meanwhile find it read.
        let mut parsed = lock(&self.parsed);
        if let Some((_, module)) = parsed.iter().find(|(known, _)| **known == *text) {
            return Ok(module.clone());
        }
        let module = virtual_gpu_ptx::load(text)
            .map_err(|error| Error::new(CudaStatus::InvalidPtx, error.to_string()))?;
        let module = Arc::new(module);
        if parsed.len() == KEPT {
            parsed.pop_front();
        }
        parsed.push_back((text.into(), module.clone()));
        Ok(module)
    }

    /// `cuModuleUnload`.
    pub fn unload_module(&self, module: ModuleHandle) -> CudaResult<()> {
        self.flush_current();
        let mut state = self.state();
        let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
        let device = state.device_of_context(entry.context)?;
        let addresses = state.remove_module(module);
        drop(state);
        let mut memory = self.memory(device);
        for address in addresses {
            let _ = memory.free(address, CallSite::here());
        }
        Ok(())
    }

    /// `cuModuleGetFunction`.
    ///
    /// # Errors
    /// `NotFound`, naming the kernel that was asked for and those that there are.
    pub fn function(&self, module: ModuleHandle, name: &str) -> CudaResult<FunctionHandle> {
        let mut state = self.state();
        let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
        if let Some(&function) = entry.functions.get(name) {
            return Ok(function);
        }
        let Some(kernel) = entry.module.kernel(name).cloned() else {
            let known: Vec<_> = entry.module.kernel_names().map(|name| format!("`{name}`")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("the module has no kernel `{name}`; it has {known}");
            return Err(Error::new(CudaStatus::NotFound, message));
        };
        let function = FunctionHandle(state.new_handle());
        state.functions.insert(function, Function::new(module, kernel));
        if let Some(entry) = state.modules.get_mut(&module) {
            entry.functions.insert(name.to_owned(), function);
        }
        Ok(function)
    }

    /// `cuModuleGetGlobal`: address and size of a module's `.global` or `.const` variable.
    ///
    /// # Errors
    /// `NotFound`, naming the variable that was asked for and those that there are.
    pub fn global(&self, module: ModuleHandle, name: &str) -> CudaResult<(u64, u64)> {
        let state = self.state();
        let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
        let variables = entry.module.variables();
        let found = variables.iter().zip(entry.globals.iter()).find(|(variable, _)| variable.name == name);
        let Some((variable, &address)) = found else {
            let known: Vec<_> = variables.iter().map(|variable| format!("`{}`", variable.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("the module has no variable `{name}`; it has {known}");
            return Err(Error::new(CudaStatus::NotFound, message));
        };
        Ok((address, variable.size))
    }

    /// The kernel behind a function, by which a launch's parameters are read.
    pub fn kernel(&self, function: FunctionHandle) -> CudaResult<Arc<Kernel>> {
        Ok(self.state().function(function)?.kernel.clone())
    }

    /// `cuLaunchKernel`. `parameters` are packed as the kernel's own list says.
    pub fn launch(
        &self,
        function: FunctionHandle,
        shape: LaunchShape,
        stream: StreamHandle,
        parameters: Vec<u8>,
    ) -> CudaResult<()> {
        self.enqueue_kernel(function, shape, stream, parameters, false)
    }

    /// `cuLaunchCooperativeKernel`: all blocks run at the same time, and may wait for one another.
    ///
    /// # Errors
    /// `CooperativeLaunchTooLarge` where the GPU does not hold so many blocks.
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
        let entry = state.function(function)?;
        check_shape(entry, &shape)?;
        let threads = shape.block.into_iter().product();
        let by_multiprocessor = state.usage(function)?.blocks(threads, u64::from(shape.dynamic_shared));
        let resident = u64::from(by_multiprocessor) * u64::from(MULTIPROCESSORS);
        if is_cooperative {
            check_fits(&entry.kernel, &shape, resident)?;
        }
        let module = state.modules.get(&entry.module).ok_or_else(|| not_a_module(entry.module))?;
        let of_stream = state.last_of(stream)?.0;
        if module.context != of_stream {
            let (own, other) = (state.describe(module.context), state.describe(of_stream));
            let name = entry.kernel.name();
            let message = format!("kernel `{name}` was loaded on {own}, the stream is on {other}");
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        let launch = KernelLaunch {
            kernel: entry.kernel.clone(),
            shape,
            parameters,
            globals: module.globals.clone(),
            resident,
            is_cooperative,
            context: of_stream,
            stack: state.context(of_stream)?.settings.stack,
            print_buffer: state.context(of_stream)?.settings.printf_buffer,
        };
        self.submit_in(state, stream, Work::Kernel(Box::new(launch)), CallSite::here())
    }

    pub(super) fn run_kernel(&self, launch: &KernelLaunch, turn: &Turn) -> Outcome {
        let &Turn { device, ref call_site, place, start_ns } = turn;
        let KernelLaunch { kernel, shape, parameters, globals, resident, .. } = launch;
        let mut memory = self.memory_as_of(device, place);
        let workspace = if launch.is_cooperative { Some(new_workspace(&mut memory)?) } else { None };
        let to_run = Launch {
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared,
            parameters,
            globals,
            start_ns,
            resident: *resident,
            workspace: workspace.unwrap_or(0),
            stack: launch.stack,
            print_buffer: launch.print_buffer,
            watch_shared: self.config().checks != Checks::Off,
            instruction_limit: INSTRUCTION_LIMIT,
            thread_limit: THREAD_LIMIT,
        };
        // Locked behind every GPU's memory, so that two kernels can't wait for each other's.
        let mut managed =
            Some(self.memory_as_of(self.managed(), place)).filter(|managed| !managed.is_empty());
        if let Some(managed) = &mut managed {
            memory.borrow(managed);
        }
        let mut ran = virtual_gpu_machine::run(kernel, &to_run, &mut memory);
        let touched =
            ran.as_mut().map(|done| self.touched(device, &memory, std::mem::take(&mut done.touched)));
        let touched = touched.unwrap_or_default();
        let unwritten = ran.as_ref().ok().and_then(|done| done.unwritten.as_ref());
        let unwritten = unwritten.map(|read| unwritten_report(read, &memory, call_site));
        if let Some(managed) = &mut managed {
            memory.give_back(managed);
        }
        if let Some(workspace) = workspace {
            let _ = memory.free(workspace, CallSite::unknown());
        }
        drop((memory, managed));
        let printed = match &mut ran {
            Ok(execution) => std::mem::take(&mut execution.printed),
            Err(fault) => std::mem::take(&mut fault.printed),
        };
        if !printed.is_empty() {
            self.state().add_printed(launch.context, printed, launch.print_buffer);
        }
        let execution = match ran {
            Ok(execution) => execution,
            Err(fault) => {
                if let FaultKind::Assert(assertion) = &fault.kind {
                    crate::report::print(assertion_lines(assertion, fault.at.block).trim_end());
                }
                let report = fault_report(&fault, call_site, |report, address| self.whose(report, address));
                return Err(Failure::announce(status_of(&fault), &report));
            }
        };
        let race = execution.race.as_ref().map(|race| race_report(race, call_site));
        for report in [race, unwritten].into_iter().flatten().filter(|_| self.config().checks != Checks::Off)
        {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            if self.config().checks == Checks::Error {
                return Err(failure);
            }
        }
        let [x, y, z] = shape.grid.map(u64::from);
        let cost = Cost::Kernel {
            blocks: x * y * z,
            resident: *resident / u64::from(MULTIPROCESSORS),
            instructions: execution.instructions,
            bytes: execution.bytes_read + execution.bytes_written,
            longest_thread: execution.longest_thread,
        };
        Ok(Done { touched, cost })
    }

    /// What a kernel touched, by allocation.
    fn touched(
        &self,
        device: usize,
        memory: &DeviceMemory,
        all: Vec<virtual_gpu_machine::Touched>,
    ) -> Vec<Touched> {
        let mut by_allocation: Vec<Touched> = Vec::new();
        for virtual_gpu_machine::Touched { allocation, ranges, access } in all {
            let touch = Touch { ranges, writes: access != Access::Read, atomic: access == Access::Atomic };
            match by_allocation.iter_mut().find(|known| known.allocation == allocation) {
                Some(known) => known.touches.push(touch),
                None => {
                    let Some(allocation) = memory.allocations().find(|known| known.id() == allocation) else {
                        continue;
                    };
                    let device = if allocation.id().is_managed() { self.managed() } else { device };
                    let (size, call_site) = (allocation.size(), allocation.call_site().clone());
                    let (allocation, touches) = (allocation.id(), vec![touch]);
                    by_allocation.push(Touched { device, allocation, size, call_site, touches });
                }
            }
        }
        by_allocation
    }
}

impl State {
    /// The PTX of a module.
    pub(super) fn module(&self, module: ModuleHandle) -> CudaResult<&virtual_gpu_ptx::Module> {
        Ok(&self.modules.get(&module).ok_or_else(|| not_a_module(module))?.module)
    }

    /// The context that a module was loaded into.
    pub(super) fn context_of(&self, module: ModuleHandle) -> CudaResult<ContextHandle> {
        Ok(self.modules.get(&module).ok_or_else(|| not_a_module(module))?.context)
    }

    /// Forgets a module with its functions; returns the addresses of its variables.
    pub(super) fn remove_module(&mut self, module: ModuleHandle) -> Vec<u64> {
        self.functions.retain(|_, function| function.module != module);
        self.modules.remove(&module).map_or_else(Vec::new, |module| module.globals.to_vec())
    }
}

/// What of a block's shape the kernel was not compiled for (`__launch_bounds__`, `__block_size__`).
fn check_bounds(kernel: &Kernel, block: [u32; 3]) -> Result<(), String> {
    let [x, y, z] = block;
    let threads = u64::from(x * y * z);
    if let Some([a, b, c]) = kernel.required_threads().filter(|&required| required != block) {
        return Err(format!(
            "a block of {x} x {y} x {z} threads: the kernel wants {a} x {b} x {c} (.reqntid)"
        ));
    }
    let most = kernel.max_threads().map(|bound| bound.into_iter().map(u64::from).product::<u64>());
    match most.filter(|&most| threads > most) {
        Some(most) => Err(format!("{threads} threads in a block: the kernel allows {most} (.maxntid)")),
        None => Ok(()),
    }
}

/// Refuses a launch that no GPU of this kind can do, naming the figure and the limit.
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
            "{x} x {y} x {z} = {threads} threads in a block: at most {MAX_THREADS_PER_BLOCK} fit"
        ));
    }
    check_bounds(kernel, shape.block).or_else(refuse)?;
    if shape.dynamic_shared > function.max_dynamic_shared {
        let (asked, limit) = (shape.dynamic_shared, function.max_dynamic_shared);
        return refuse(format!(
            "{asked} bytes of dynamic shared memory: {limit} are allowed; \
             set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES for more"
        ));
    }
    let shared = u64::from(shape.dynamic_shared) + u64::from(kernel.shared_bytes());
    if shared > u64::from(SHARED_PER_BLOCK_OPT_IN) {
        return refuse(format!(
            "{} of shared memory: a block has {SHARED_PER_BLOCK_OPT_IN} bytes",
            size(shared)
        ));
    }
    Ok(())
}

/// Refuses a cooperative launch whose blocks don't all fit at the same time.
fn check_fits(kernel: &Kernel, shape: &LaunchShape, resident: u64) -> CudaResult<()> {
    let [x, y, z] = shape.grid;
    let blocks = shape.grid.into_iter().map(u64::from).product::<u64>();
    if blocks <= resident {
        return Ok(());
    }
    let message = format!(
        "cooperative launch of `{}`: {x} x {y} x {z} = {blocks} blocks: {resident} of them fit on the GPU at a time \
         ({MULTIPROCESSORS} multiprocessors with {} each)",
        kernel.name(),
        resident / u64::from(MULTIPROCESSORS)
    );
    Err(Error::new(CudaStatus::CooperativeLaunchTooLarge, message))
}

/// What `cooperative_groups` calls `grid_workspace`: its size, and the grid's barrier, which begins at 0.
fn new_workspace(memory: &mut DeviceMemory) -> Result<u64, Failure> {
    const SIZE: u64 = 8;
    let no_room = || {
        let report = Report::new("no room for the barrier of a cooperative launch");
        Failure::announce(CudaStatus::OutOfMemory, &report)
    };
    let address = memory.allocate(SIZE, CallSite::unknown()).map_err(|_| no_room())?;
    if let Ok((allocation, _)) = memory.range_mut(address, SIZE) {
        allocation.bytes_mut()[..4].copy_from_slice(&(SIZE as u32).to_le_bytes());
        allocation.mark_written(0..SIZE);
    }
    Ok(address)
}

fn not_a_module(module: ModuleHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not a module, or no longer one", module.0))
}
