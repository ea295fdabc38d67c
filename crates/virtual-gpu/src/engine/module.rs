//! Modules: parsed PTX, its functions, and its global variables.

use super::Engine;
use super::State;
use super::context::ContextHandle;
use super::function::Function;
use super::lock;
use std::sync::Arc;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaResult;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_core::status::Error;
use virtual_gpu_ptx::{Kernel, Variable};

/// A `CUmodule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleHandle(pub u64);

/// A `CUfunction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionHandle(pub u64);

pub(super) struct LoadedModule {
    pub(super) context: ContextHandle,
    module: Arc<virtual_gpu_ptx::Module>,
    /// The device address of each of the module's variables. Those that no kernel uses are not in memory before the program asks for
    /// one of them.
    pub(super) globals: Arc<[u64]>,
    /// The functions that the program has asked for, by name.
    functions: Vec<(String, FunctionHandle)>,
}

impl LoadedModule {
    /// Returns a variable's index among the module's variables.
    fn index_of(&self, name: &str) -> CudaResult<usize> {
        let variables = self.module.variables();
        variables.iter().position(|variable| variable.name == name).ok_or_else(|| {
            let known: Vec<_> = variables.iter().map(|variable| format!("`{}`", variable.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("the module has no variable `{name}`; it has {known}");
            Error::new(CudaStatus::NotFound, message)
        })
    }
}

/// The address of a variable that is not in memory. No allocation has it.
const NOT_PLACED: u64 = 0;

impl Engine {
    /// `cuModuleLoadData`: loads PTX text into the current context.
    ///
    /// # Errors
    /// Returns `InvalidPtx` with every line that can't be run, and `InvalidImage` for a text that is no PTX.
    pub fn load_module(&self, text: &str) -> CudaResult<ModuleHandle> {
        self.flush_current();
        let (context, device) = {
            let mut state = self.state();
            let context = state.current_context()?;
            state.check_usable(context)?;
            (context, state.device_of_context(context)?)
        };
        let module = self.parse(text)?;
        let mut globals = vec![NOT_PLACED; module.variables().len()];
        self.place_variables(device, &module, |variable| variable.is_used, &mut globals)?;
        let mut state = self.state();
        let handle = ModuleHandle(state.new_handle());
        let module = LoadedModule { context, module, globals: globals.into(), functions: Vec::new() };
        state.modules.insert(handle, module);
        if let Some(context) = state.contexts.get_mut(&context) {
            context.modules.push(handle);
        }
        Ok(handle)
    }

    /// Parses a PTX text. Every rank loads the same texts, so the last few modules are kept.
    fn parse(&self, text: &str) -> CudaResult<Arc<virtual_gpu_ptx::Module>> {
        const KEPT: usize = 32;
        // Hold the lock while parsing, so that ranks that load the same text in the meantime find it already parsed.
        let mut parsed = lock(&self.parsed);
        if let Some((_, module)) = parsed.iter().find(|(known, _)| **known == *text) {
            return Ok(module.clone());
        }
        let module = virtual_gpu_ptx::load(text).map_err(|error| refused(&error))?;
        let module = Arc::new(module);
        if parsed.len() == KEPT {
            parsed.pop_front();
        }
        parsed.push_back((text.into(), module.clone()));
        Ok(module)
    }

    /// Checks a PTX text that is linked with others, which may define the functions that it calls.
    ///
    /// # Errors
    /// Fails like [`Self::kernel_names`].
    pub fn check_part(&self, text: &str) -> CudaResult<()> {
        let problems = virtual_gpu_ptx::load(text).err().and_then(virtual_gpu_ptx::LoadError::of_a_part);
        problems.map_or(Ok(()), |error| Err(refused(&error)))
    }

    /// Returns the names of the kernels in a PTX text, in the order of the alphabet.
    ///
    /// # Errors
    /// Returns `InvalidPtx` with every line that can't be run, and `InvalidImage` for a text that is no PTX.
    pub fn kernel_names(&self, text: &str) -> CudaResult<Vec<String>> {
        Ok(self.parse(text)?.kernel_names().map(str::to_owned).collect())
    }

    /// `cuModuleUnload`.
    pub fn unload_module(&self, module: ModuleHandle) -> CudaResult<()> {
        self.flush_current();
        let mut state = self.state();
        let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
        let device = state.device_of_context(entry.context)?;
        let addresses = state.remove_module(module);
        drop(state);
        self.free_variables(device, addresses);
        Ok(())
    }

    /// `cuModuleGetFunction`.
    ///
    /// # Errors
    /// Returns `NotFound` with a message that names the requested kernel and the kernels that exist.
    pub fn function(&self, module: ModuleHandle, name: &str) -> CudaResult<FunctionHandle> {
        let mut state = self.state();
        let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
        if let Some(&(_, function)) = entry.functions.iter().find(|(known, _)| known == name) {
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
            entry.functions.push((name.to_owned(), function));
        }
        Ok(function)
    }

    /// Returns all functions of a module, in the order of their names.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if there is no such module.
    pub fn functions_of(&self, module: ModuleHandle) -> CudaResult<Vec<FunctionHandle>> {
        let names: Vec<String> = self.state().module(module)?.kernel_names().map(str::to_owned).collect();
        names.iter().map(|name| self.function(module, name)).collect()
    }

    /// `cuFuncGetModule`
    pub fn module_of(&self, function: FunctionHandle) -> CudaResult<ModuleHandle> {
        Ok(self.state().function(function)?.module)
    }

    /// `cuModuleGetGlobal`: returns the address and size of a module's `.global` or `.const` variable.
    ///
    /// # Errors
    /// Returns `NotFound` with a message that names the requested variable and the variables that exist.
    pub fn global(&self, module: ModuleHandle, name: &str) -> CudaResult<(u64, u64)> {
        loop {
            let (device, loaded, before) = {
                let state = self.state();
                let entry = state.modules.get(&module).ok_or_else(|| not_a_module(module))?;
                let index = entry.index_of(name)?;
                if entry.globals[index] != NOT_PLACED {
                    return Ok((entry.globals[index], entry.module.variables()[index].size));
                }
                (state.device_of_context(entry.context)?, entry.module.clone(), entry.globals.clone())
            };
            // A running kernel may have locked the memory, so the state is not locked here.
            let mut globals = before.to_vec();
            let placed = self.place_variables(device, &loaded, |_| true, &mut globals)?;
            if let Some(entry) = self.state().modules.get_mut(&module)
                && Arc::ptr_eq(&entry.globals, &before)
            {
                entry.globals = globals.into();
                continue;
            }
            // Meanwhile, another thread has asked for a variable, or has unloaded the module.
            self.free_variables(device, placed);
        }
    }

    /// Allocates and initializes those of a module's variables that `selects` accepts and that are not in memory yet, and adds their
    /// addresses to `globals`. Returns the new addresses.
    ///
    /// # Errors
    /// Returns `OutOfMemory`, and allocates nothing, if there is no room for one of them.
    fn place_variables(
        &self,
        device: usize,
        module: &virtual_gpu_ptx::Module,
        selects: impl Fn(&Variable) -> bool,
        globals: &mut [u64],
    ) -> CudaResult<Vec<u64>> {
        let mut memory = self.memory(device);
        let mut placed: Vec<(&Variable, u64)> = Vec::new();
        for (variable, global) in module.variables().iter().zip(&mut *globals) {
            if *global != NOT_PLACED || !selects(variable) {
                continue;
            }
            let Ok(address) = memory.allocate(variable.size.max(1), CallSite::here()) else {
                drop(memory);
                self.free_variables(device, placed.into_iter().map(|(_, address)| address));
                let message = format!("no room for the variable `{}`", variable.name);
                return Err(Error::new(CudaStatus::OutOfMemory, message));
            };
            *global = address;
            placed.push((variable, address));
        }
        for &(variable, address) in &placed {
            if let Ok((allocation, offset)) = memory.range_mut(address, variable.size.max(1)) {
                let image = variable.image(globals);
                allocation.bytes_mut()[offset as usize..][..image.len()].copy_from_slice(&image);
                allocation.mark_written(0..variable.size.max(1));
            }
        }
        Ok(placed.into_iter().map(|(_, address)| address).collect())
    }

    fn free_variables(&self, device: usize, addresses: impl IntoIterator<Item = u64>) {
        let mut memory = self.memory(device);
        for address in addresses {
            let _ = memory.free(address, CallSite::here());
        }
    }

    /// Returns a function's kernel, which describes a launch's parameters.
    pub fn kernel(&self, function: FunctionHandle) -> CudaResult<Arc<Kernel>> {
        Ok(self.state().function(function)?.kernel.clone())
    }
}

/// Returns the driver's error. It refuses a text that is no PTX before it compiles anything.
fn refused(error: &virtual_gpu_ptx::LoadError) -> Error<CudaStatus> {
    let status = if error.is_ptx() { CudaStatus::InvalidPtx } else { CudaStatus::InvalidImage };
    Error::new(status, error.to_string())
}

impl State {
    /// Returns a module's PTX.
    pub(super) fn module(&self, module: ModuleHandle) -> CudaResult<&virtual_gpu_ptx::Module> {
        Ok(&self.modules.get(&module).ok_or_else(|| not_a_module(module))?.module)
    }

    /// Returns the context that a module was loaded into.
    pub(super) fn context_of(&self, module: ModuleHandle) -> CudaResult<ContextHandle> {
        Ok(self.modules.get(&module).ok_or_else(|| not_a_module(module))?.context)
    }

    /// Forgets a module and its functions; returns the addresses of its variables in memory.
    pub(super) fn remove_module(&mut self, module: ModuleHandle) -> Vec<u64> {
        let Some(LoadedModule { context, functions, globals, .. }) = self.modules.remove(&module) else {
            return Vec::new();
        };
        for (_, function) in functions {
            self.functions.remove(&function);
        }
        if let Some(context) = self.contexts.get_mut(&context) {
            context.modules.retain(|&other| other != module);
        }
        globals.iter().copied().filter(|&address| address != NOT_PLACED).collect()
    }
}

pub(super) fn not_a_module(module: ModuleHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not a module, or is no longer one", module.0))
}
