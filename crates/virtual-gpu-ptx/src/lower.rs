//! From a file's shape to kernels: resolves names, puts called functions in place of their calls, decodes.
//! Functions that may call themselves are not put in place: see [`super::recursion`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::decode::Call;
use super::diagnostic::Diagnostic;
use super::indirect::{callable, code_address};
use super::instruction::{
    Call as Subcall, Condition, Instruction, Operation, Predicate, Slot, Space, SystemCall,
};
use super::kernel::{
    AddressOf, CudaLine, Frame, Kernel, Module, Parameter, Registers, ThreadConstant, Uniform, Variable,
};
use super::names::{Binding, Class, MAX_DEPTH, RegisterCount, Scopes};
use super::recursion::{FRAME_ALIGNMENT, Subroutine, local_address};
use super::syntax::{File, Function, Raw, Statement, Variable as Declared, VariableSpace};

/// Calls inside calls. Recursion is refused, so only a hostile text comes near.
const MAX_CALLS: usize = 32;

/// Instructions of one kernel with all its calls put in place.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// Calls put in place in one kernel.
const MAX_PLACED: usize = 1 << 14;

/// Local memory of one thread, as on real GPUs.
const MAX_LOCAL: u64 = 512 << 10;

/// Lowers everything; what can't be is added to `diagnostics`.
pub(super) fn lower(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) -> Module {
    let index = Index::new(file, diagnostics);
    let mut kernels = BTreeMap::new();
    for function in &file.functions {
        if function.body.is_none() {
            continue;
        }
        // A function is lowered on its own too: what it can't do is then listed even where nothing calls it.
        let mut lowering = Lowering::new(&index);
        let kernel = lowering.kernel(function);
        diagnostics.append(&mut lowering.diagnostics);
        if function.is_entry {
            kernels.insert(function.name.to_owned(), Arc::new(kernel));
        }
    }
    Module { target: file.target, kernels, variables: index.globals }
}

/// A file's names.
pub(super) struct Index<'f, 'a> {
    pub(super) file: &'f File<'a>,
    pub(super) functions: HashMap<&'a str, &'f Function<'a>>,
    /// Functions whose address something takes: those that an indirect call can reach. Indices into `file.functions`.
    pub(super) callable: Vec<u32>,
    /// Names of functions that may call themselves.
    pub(super) recursive: HashSet<&'a str>,
    variables: HashMap<&'a str, &'f Declared<'a>>,
    globals: Vec<Variable>,
    global_index: HashMap<&'a str, u32>,
}

impl<'f, 'a> Index<'f, 'a> {
    fn new(file: &'f File<'a>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut index = Self {
            file,
            functions: HashMap::new(),
            callable: callable(file),
            recursive: HashSet::new(),
            variables: HashMap::new(),
            globals: Vec::new(),
            global_index: HashMap::new(),
        };
        for function in &file.functions {
            let known = index.functions.entry(function.name).or_insert(function);
            if known.body.is_none() {
                *known = function;
            } else if function.body.is_some() && !std::ptr::eq(*known, function) {
                let text = format!("`{}` is defined twice", function.name);
                diagnostics.push(Diagnostic::new(function.line, text));
            }
        }
        for variable in &file.variables {
            if index.variables.get(variable.name).is_some_and(|known| !known.is_extern) {
                let text = format!("`{}` is declared twice", variable.name);
                diagnostics.push(Diagnostic::new(variable.line, text));
                continue;
            }
            index.variables.insert(variable.name, variable);
            if !matches!(variable.space, VariableSpace::Global | VariableSpace::Const) {
                continue;
            }
            if variable.is_extern {
                let text = format!("unsupported: `{}` is defined in another module", variable.name);
                diagnostics.push(Diagnostic::new(variable.line, text));
                continue;
            }
            index.global_index.insert(variable.name, index.globals.len() as u32);
            index.globals.push(Variable {
                name: variable.name.to_owned(),
                size: variable.size.max(variable.initial.bytes.len() as u64),
                align: u64::from(variable.align),
                initial: variable.initial.bytes.clone(),
                addresses: Vec::new(),
                is_const: variable.space == VariableSpace::Const,
            });
        }
        index.place_addresses(diagnostics);
        index.recursive = index.find_recursive();
        index
    }

    /// The index of a function's definition, or else of its declaration.
    fn function(&self, name: &str) -> Option<u32> {
        let function = *self.functions.get(name)?;
        self.file.functions.iter().position(|one| std::ptr::eq(one, function)).map(|index| index as u32)
    }

    /// Puts addresses into the first bytes of variables.
    fn place_addresses(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        for variable in self.variables.values() {
            let Some(&index) = self.global_index.get(variable.name) else { continue };
            for &(at, name, offset) in &variable.initial.addresses {
                if let Some(&variable) = self.global_index.get(name) {
                    self.globals[index as usize].addresses.push(AddressOf { at, variable, offset });
                } else if let Some(function) = self.function(name) {
                    let address = code_address(function).wrapping_add_signed(offset);
                    self.globals[index as usize].initial[at as usize..][..8]
                        .copy_from_slice(&address.to_le_bytes());
                } else {
                    let text = format!("unsupported: the address of `{name}` as an initial value");
                    diagnostics.push(Diagnostic::new(variable.line, text));
                }
            }
        }
    }
}

/// A kernel in the making.
pub(super) struct Lowering<'f, 'a> {
    pub(super) index: &'f Index<'f, 'a>,
    pub(super) scopes: Scopes<'a>,
    pub(super) counts: RegisterCount,
    code: Vec<Instruction>,
    lines: Vec<u32>,
    locations: Vec<u32>,
    cuda_lines: Vec<CudaLine>,
    pub(super) line: u32,
    location: u32,
    pub(super) guard: Option<Condition>,
    /// The carry of `add.cc` and its kin, once something uses it.
    carry: Option<Predicate>,
    /// Instruction index of each label.
    labels: Vec<u32>,
    /// The lists of labels that `brx.idx` names.
    pub(super) branch_targets: HashMap<&'a str, &'f [&'a str]>,
    uniform_words: Uniforms,
    uniform_longs: Uniforms,
    thread_constants: Vec<(Slot, ThreadConstant)>,
    shared: HashMap<&'a str, u32>,
    shared_variables: Vec<(String, u32, u64)>,
    shared_bytes: u32,
    dynamic_align: u32,
    local_bytes: u64,
    pub(super) calls: Vec<&'a str>,
    /// Calls that were put in place so far.
    placed: usize,
    /// Too long to go on; that was reported.
    pub(super) gave_up: bool,
    /// Where `ret` goes in a called function; `None` in the kernel itself.
    pub(super) return_label: Option<u32>,
    pub(super) subroutines: Vec<Subroutine<'f, 'a>>,
    /// The frame of the subroutine that is being lowered: the register with its address, and its bytes so far.
    pub(super) frame: Option<(u32, u64)>,
    diagnostics: Vec<Diagnostic>,
}

/// Uniform values, each kept once.
#[derive(Default)]
struct Uniforms {
    values: Vec<Uniform>,
    known: HashMap<Uniform, Slot>,
}

impl Uniforms {
    fn slot(&mut self, uniform: Uniform) -> Slot {
        *self.known.entry(uniform).or_insert_with(|| {
            self.values.push(uniform);
            Slot::uniform(self.values.len() as u32 - 1)
        })
    }
}

impl<'f, 'a> Lowering<'f, 'a> {
    fn new(index: &'f Index<'f, 'a>) -> Self {
        let mut lowering = Self {
            index,
            scopes: Scopes::default(),
            counts: RegisterCount::default(),
            code: Vec::new(),
            lines: Vec::new(),
            locations: Vec::new(),
            cuda_lines: Vec::new(),
            line: 0,
            location: u32::MAX,
            guard: None,
            carry: None,
            labels: Vec::new(),
            branch_targets: HashMap::new(),
            uniform_words: Uniforms::default(),
            uniform_longs: Uniforms::default(),
            thread_constants: Vec::new(),
            shared: HashMap::new(),
            shared_variables: Vec::new(),
            shared_bytes: 0,
            dynamic_align: 1,
            local_bytes: 0,
            calls: Vec::new(),
            placed: 0,
            gave_up: false,
            return_label: None,
            subroutines: Vec::new(),
            frame: None,
            diagnostics: Vec::new(),
        };
        // The first uniform value of each width is zero: the source that an operation doesn't use.
        lowering.uniform_word(Uniform::Constant(0));
        lowering.uniform_long(Uniform::Constant(0));
        lowering
    }

    fn report(&mut self, line: u32, text: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(line, text));
    }

    fn kernel(&mut self, function: &'f Function<'a>) -> Kernel {
        self.scopes.open(true);
        let mut parameters = Vec::new();
        let mut end = 0_u64;
        for parameter in function.parameters.iter().chain(&function.returns) {
            let offset = end.next_multiple_of(u64::from(parameter.align));
            end = offset + parameter.size;
            if end > u64::from(u16::MAX) {
                self.report(parameter.line, "more than 64 KiB of parameters");
                end = 0;
            }
            let (offset, size) = (offset as u32, parameter.size as u32);
            parameters.push(Parameter { offset, size, align: parameter.align });
            if !function.is_entry {
                self.variable(parameter);
            } else if parameter.space == VariableSpace::Param {
                self.scopes.bind(parameter.name, Binding::Parameter(offset));
            } else {
                self.register(parameter);
            }
        }
        self.body(function);
        self.scopes.close();
        self.line = function.line;
        self.guard = None;
        self.emit(Operation::Exit);
        let frames = self.lower_subroutines();
        self.resolve_branches();
        self.finish(function, parameters, end as u32, frames)
    }

    fn finish(
        &mut self,
        function: &Function<'a>,
        parameters: Vec<Parameter>,
        bytes: u32,
        frames: Vec<Frame>,
    ) -> Kernel {
        let dynamic_shared_offset = self.shared_bytes.next_multiple_of(self.dynamic_align);
        let mut uniform_words = std::mem::take(&mut self.uniform_words.values);
        let mut uniform_longs = std::mem::take(&mut self.uniform_longs.values);
        for uniform in uniform_words.iter_mut().chain(&mut uniform_longs) {
            if let Uniform::DynamicStart { offset } = *uniform {
                *uniform = Uniform::Constant((i64::from(dynamic_shared_offset) + offset) as u64);
            }
        }
        Kernel {
            name: function.name.to_owned(),
            parameters,
            parameter_bytes: bytes,
            shared_bytes: self.shared_bytes,
            dynamic_shared_offset,
            shared_variables: std::mem::take(&mut self.shared_variables),
            shared_unit: self.code.iter().filter_map(shared_bytes).min().unwrap_or(4),
            has_partial_barriers: self.code.iter().any(orders_parts),
            local_bytes: self.local_bytes.next_multiple_of(if frames.is_empty() {
                8
            } else {
                FRAME_ALIGNMENT
            }) as u32,
            max_threads: function.max_threads,
            required_threads: function.required_threads,
            code: std::mem::take(&mut self.code),
            lines: std::mem::take(&mut self.lines),
            locations: std::mem::take(&mut self.locations),
            cuda_lines: std::mem::take(&mut self.cuda_lines),
            registers: Registers {
                words: self.counts.words,
                longs: self.counts.longs,
                predicates: self.counts.predicates,
                uniform_words,
                uniform_longs,
                thread_constants: std::mem::take(&mut self.thread_constants),
            },
            frames,
        }
    }

    /// Lowers a function's statements into the current scope.
    pub(super) fn body(&mut self, function: &'f Function<'a>) {
        let Some(statements) = &function.body else { return };
        let labels = self.label_scopes(statements);
        let mut next_scope = 0;
        let mut bind_labels = |lowering: &mut Self| {
            for &(name, label) in labels.get(next_scope).into_iter().flatten() {
                lowering.declare_once(function.line, name);
                lowering.scopes.bind(name, Binding::Label(label));
            }
            next_scope += 1;
        };
        let depth = self.scopes.depth();
        bind_labels(self);
        self.calls.push(function.name);
        for statement in statements {
            if self.gave_up {
                break;
            }
            if self.code.len() > MAX_INSTRUCTIONS || self.placed > MAX_PLACED {
                self.report(function.line, format!("`{}` is too long", function.name));
                self.gave_up = true;
            }
            match statement {
                Statement::Open if self.scopes.depth() > MAX_DEPTH * (MAX_CALLS + 1) => {
                    self.report(function.line, format!("`{}` nests too deeply", function.name));
                    break;
                }
                Statement::Open => {
                    self.scopes.open(false);
                    bind_labels(self);
                }
                Statement::Close => self.scopes.close(),
                Statement::Label(name) => {
                    if let Some(Binding::Label(label)) = self.scopes.find(name, &mut self.counts) {
                        self.labels[label as usize] = self.code.len() as u32;
                    }
                }
                Statement::Variable(variable) => self.variable(variable),
                Statement::Location { file, line } => self.locate(*file, *line),
                Statement::Instruction(raw) => self.instruction(raw),
                Statement::BranchTargets { name, labels } => {
                    self.branch_targets.insert(name, labels);
                }
            }
        }
        while self.scopes.depth() > depth {
            self.scopes.close();
        }
        self.calls.pop();
    }

    /// The labels of each scope, in the order in which the scopes open. Every one gets a new index.
    fn label_scopes(&mut self, statements: &[Statement<'a>]) -> Vec<Vec<(&'a str, u32)>> {
        let mut scopes = vec![Vec::new()];
        let mut open = vec![0];
        for statement in statements {
            match statement {
                Statement::Open => {
                    open.push(scopes.len());
                    scopes.push(Vec::new());
                }
                Statement::Close => drop(open.pop()),
                Statement::Label(name) => {
                    let scope = open.last().copied().unwrap_or(0);
                    scopes[scope].push((*name, self.new_label()));
                }
                _ => {}
            }
        }
        scopes
    }

    pub(super) fn new_label(&mut self) -> u32 {
        self.labels.push(0);
        self.labels.len() as u32 - 1
    }

    /// The label stands here.
    pub(super) fn place_label(&mut self, label: u32) {
        self.labels[label as usize] = self.code.len() as u32;
    }

    fn locate(&mut self, file: u32, line: u32) {
        let Some(&(_, name)) = self.index.file.sources.iter().find(|&&(index, _)| index == file) else {
            return;
        };
        if self.cuda_lines.last().is_none_or(|last| last.line != line || &*last.file != name) {
            let file = match self.cuda_lines.iter().rev().find(|known| &*known.file == name) {
                Some(known) => Arc::clone(&known.file),
                None => Arc::from(name),
            };
            self.cuda_lines.push(CudaLine { file, line });
        }
        self.location = self.cuda_lines.len() as u32 - 1;
    }

    fn register(&mut self, variable: &Declared<'a>) {
        match Class::of(variable.kind) {
            Some(class) => self.scopes.declare(variable, class),
            None => self.report(variable.line, format!("unsupported register type `.{}`", variable.kind)),
        }
    }

    /// A scope has each name once.
    fn declare_once(&mut self, line: u32, name: &str) {
        if self.scopes.declares(name) {
            self.report(line, format!("`{name}` is declared twice"));
        }
    }

    pub(super) fn variable(&mut self, variable: &Declared<'a>) {
        self.declare_once(variable.line, variable.name);
        match variable.space {
            VariableSpace::Register => self.register(variable),
            VariableSpace::Shared => {
                let binding = self.place_shared(variable);
                self.scopes.bind(variable.name, binding);
            }
            VariableSpace::Local | VariableSpace::Param => {
                let (frame, bytes) = match &mut self.frame {
                    Some((frame, bytes)) => (Some(*frame), bytes),
                    None => (None, &mut self.local_bytes),
                };
                let offset = bytes.next_multiple_of(u64::from(variable.align));
                *bytes = offset.saturating_add(variable.size);
                if *bytes > MAX_LOCAL {
                    *bytes = 0;
                    self.report(variable.line, "more than 512 KiB of local memory");
                }
                let offset = offset as u32;
                let local = frame.map_or(Binding::Local(offset), |frame| Binding::Framed(frame, offset));
                self.scopes.bind(variable.name, local);
            }
            VariableSpace::Global | VariableSpace::Const => {
                self.report(variable.line, "unsupported: a module's variable declared inside a function");
            }
        }
    }

    /// Gives a shared variable its place, once.
    fn place_shared(&mut self, variable: &Declared<'a>) -> Binding {
        if variable.is_unsized {
            self.dynamic_align = self.dynamic_align.max(variable.align);
            return Binding::DynamicShared;
        }
        let offset = u64::from(self.shared_bytes.next_multiple_of(variable.align));
        let end = offset + variable.size;
        match u32::try_from(end) {
            Ok(end) if end <= 1 << 24 => self.shared_bytes = end,
            _ => self.report(variable.line, format!("`{}` is too large for shared memory", variable.name)),
        }
        self.shared_variables.push((variable.name.to_owned(), offset as u32, variable.size));
        Binding::Shared(offset as u32)
    }

    /// What a name stands for: in the function, else in the module.
    pub(super) fn find(&mut self, name: &'a str) -> Option<Binding> {
        if let Some(binding) = self.scopes.find(name, &mut self.counts) {
            return Some(binding);
        }
        if let Some(&index) = self.index.global_index.get(name) {
            return Some(Binding::Global(index));
        }
        if let Some(function) = self.index.function(name) {
            return Some(Binding::Function(function));
        }
        let variable = *self.index.variables.get(name)?;
        if variable.space != VariableSpace::Shared {
            return None;
        }
        if let Some(&offset) = self.shared.get(name) {
            return Some(Binding::Shared(offset));
        }
        let binding = self.place_shared(variable);
        if let Binding::Shared(offset) = binding {
            self.shared.insert(name, offset);
        }
        Some(binding)
    }

    pub(super) fn uniform_word(&mut self, uniform: Uniform) -> Slot {
        self.uniform_words.slot(uniform)
    }

    pub(super) fn uniform_long(&mut self, uniform: Uniform) -> Slot {
        self.uniform_longs.slot(uniform)
    }

    pub(super) fn thread_constant(&mut self, constant: ThreadConstant) -> Slot {
        if let Some(&(slot, _)) = self.thread_constants.iter().find(|(_, known)| *known == constant) {
            return slot;
        }
        let slot = self.new_word();
        self.thread_constants.push((slot, constant));
        slot
    }

    pub(super) fn new_word(&mut self) -> Slot {
        self.counts.words += 1;
        Slot::register(self.counts.words - 1)
    }

    pub(super) fn new_long(&mut self) -> Slot {
        self.counts.longs += 1;
        Slot::register(self.counts.longs - 1)
    }

    pub(super) fn new_predicate(&mut self) -> Predicate {
        Predicate(self.counts.next_predicate())
    }

    /// The condition code register. There is one per thread.
    pub(super) fn carry(&mut self) -> Predicate {
        match self.carry {
            Some(carry) => carry,
            None => *self.carry.insert(Predicate(self.counts.next_predicate())),
        }
    }

    pub(super) fn emit(&mut self, operation: Operation) {
        self.code.push(Instruction { guard: self.guard, operation });
        self.lines.push(self.line);
        self.locations.push(self.location);
    }

    fn instruction(&mut self, raw: &'f Raw<'a>) {
        self.line = raw.line;
        let outcome = match raw.guard {
            None => Ok(None),
            Some((name, negated)) => match self.find(name) {
                Some(Binding::Predicate(predicate)) => Ok(Some(Condition { predicate, negated })),
                _ => Err(format!("`{name}` is no predicate")),
            },
        };
        let outcome = outcome.and_then(|guard| {
            self.guard = guard;
            match raw.opcode {
                "call" => self.call(raw),
                "ret" => {
                    match self.return_label {
                        Some(target) => self.emit(Operation::Branch { target }),
                        None => self.emit(Operation::Exit),
                    }
                    Ok(())
                }
                _ => self.decode(raw),
            }
        });
        if let Err(text) = outcome {
            self.report(raw.line, text);
        }
    }

    /// Puts the called function in place of the call. Its parameters are the caller's argument variables.
    fn call(&mut self, raw: &'f Raw<'a>) -> Result<(), String> {
        let call = super::decode::call_parts(raw)?;
        if let Some(Binding::Long(register)) = self.find(call.name) {
            return self.indirect_call(Slot::register(register), &call);
        }
        let Some(&function) = self.index.functions.get(call.name) else {
            return Err(format!("unsupported: call of `{}`, which is no function of this module", call.name));
        };
        if function.body.is_none() && self.system_call(&call)? {
            return Ok(());
        }
        self.place(function, &call)
    }

    /// Puts a function in place of a call of it.
    pub(super) fn place(&mut self, function: &'f Function<'a>, call: &Call<'_, 'a>) -> Result<(), String> {
        if function.body.is_none() {
            return Err(format!("unsupported: call of `{}`, which is only declared here", function.name));
        }
        if function.is_entry {
            return Err(format!("`{}` is a kernel, which nothing can call", function.name));
        }
        if self.index.recursive.contains(function.name) {
            return self.call_subroutine(function, call);
        }
        if self.calls.len() >= MAX_CALLS {
            return Err("calls nest too deeply".to_owned());
        }
        self.placed += 1;
        let bindings = self.match_arguments(function, call)?;
        let end = self.skip_unless_guarded();
        let outer = self.return_label.replace(end);
        let location = self.location;
        self.scopes.open(true);
        for (name, binding) in bindings {
            self.scopes.bind(name, binding);
        }
        self.body(function);
        self.scopes.close();
        self.return_label = outer;
        self.location = location;
        self.place_label(end);
        Ok(())
    }

    /// The function's results and parameters, with the variables that the call has for them.
    pub(super) fn match_arguments(
        &mut self,
        function: &'f Function<'a>,
        call: &Call<'_, 'a>,
    ) -> Result<Vec<(&'a str, Binding)>, String> {
        let formal = function.returns.iter().chain(&function.parameters);
        if function.returns.len() != call.returns.len() || function.parameters.len() != call.arguments.len() {
            return Err(format!("`{}` is called with the wrong number of arguments", function.name));
        }
        let mut bindings = Vec::new();
        for (formal, actual) in formal.zip(call.returns.iter().chain(call.arguments)) {
            match self.find(actual) {
                Some(local @ (Binding::Local(_) | Binding::Framed(..)))
                    if formal.space == VariableSpace::Param =>
                {
                    bindings.push((formal.name, local));
                }
                _ => return Err(format!("unsupported: `{actual}` is no `.param` variable")),
            }
        }
        Ok(bindings)
    }

    /// A call of what the driver brings; false where it brings nothing of that name and shape.
    fn system_call(&mut self, call: &super::decode::Call<'_, 'a>) -> Result<bool, String> {
        let mut places = Vec::new();
        for actual in call.arguments.iter().chain(call.returns) {
            match self.find(actual) {
                Some(local @ (Binding::Local(_) | Binding::Framed(..))) => places.push(local_address(local)),
                _ => return Err(format!("unsupported: `{actual}` is no `.param` variable")),
            }
        }
        let call = match (call.name, call.returns.len(), places.as_slice()) {
            ("vprintf", 1, &[format, arguments, result]) => SystemCall::Print { format, arguments, result },
            ("__assertfail", 0, &[message, file, line, function, _]) => {
                SystemCall::AssertFail { message, file, line, function }
            }
            _ => return Ok(false),
        };
        self.emit(Operation::System(call.into()));
        Ok(true)
    }

    /// Turns label indices into instruction indices.
    fn resolve_branches(&mut self) {
        for instruction in &mut self.code {
            if let Operation::Branch { target } | Operation::Call(Subcall { target, .. }) =
                &mut instruction.operation
            {
                *target = self.labels[*target as usize];
            }
        }
    }
}

/// Bytes of an instruction's elements, where it may access shared memory.
fn shared_bytes(instruction: &Instruction) -> Option<u8> {
    let (space, bytes) = match &instruction.operation {
        Operation::Load(access) | Operation::Store(access) => (access.space, access.bytes),
        Operation::Atomic(atomic) => (atomic.space, atomic.kind.bytes()),
        Operation::CopyToShared { bytes, .. } => (Space::Shared, *bytes),
        Operation::LoadMatrices(load) => (load.space, 16),
        _ => return None,
    };
    matches!(space, Space::Shared | Space::Generic).then_some(bytes)
}

/// Whether an instruction orders some threads of a block and not all, beyond their warp.
fn orders_parts(instruction: &Instruction) -> bool {
    match &instruction.operation {
        Operation::Barrier(barrier) => barrier.threads.is_some() || barrier.arrives_only,
        Operation::Fence => true,
        _ => false,
    }
}
