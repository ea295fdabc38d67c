//! A kernel under construction: the registers, variables, labels, and instructions that it has so far.

use std::collections::HashMap;
use std::sync::Arc;

use super::index::Index;
use super::names::{Binding, Class, RegisterCount, Scopes};
use crate::diagnostic::Diagnostic;
use crate::instruction::{
    BoolOp, CompareAs, Comparison, Condition, Instruction, LongOp, Operation, Predicate, Slot, Value,
    WidenOp, WordOp,
};
use crate::kernel::{CudaLine, ThreadConstant, Uniform};
use crate::resolved::ResolvedFunction;
use crate::syntax::{Variable as Declared, VariableSpace};

/// The maximum amount of local memory per thread, as on real GPUs.
const MAX_LOCAL: u64 = 512 << 10;

/// A kernel under construction.
pub(crate) struct Lowering<'f, 'a> {
    pub(crate) index: &'f Index<'f, 'a>,
    pub(crate) scopes: Scopes<'a>,
    pub(crate) counts: RegisterCount,
    pub(crate) mentions: Mentions,
    pub(crate) code: Vec<Instruction>,
    pub(crate) lines: Vec<u32>,
    pub(crate) locations: Vec<u32>,
    pub(crate) cuda_lines: Vec<CudaLine>,
    pub(crate) line: u32,
    pub(crate) location: u32,
    pub(crate) guard: Option<Condition>,
    /// Whether the instruction that is being lowered can read special registers.
    pub(crate) reads_special_registers: bool,
    /// The carry bit of the condition code register, once an instruction uses it.
    carry: Option<Predicate>,
    /// The instruction index of each label.
    pub(crate) labels: Vec<u32>,
    /// The lists of labels that `brx.idx` names.
    pub(crate) branch_targets: HashMap<&'a str, &'f [&'a str]>,
    pub(crate) uniform_words: Uniforms,
    pub(crate) uniform_longs: Uniforms,
    pub(crate) thread_constants: Vec<(Slot, ThreadConstant)>,
    shared: HashMap<&'a str, u32>,
    pub(crate) shared_variables: Vec<(String, u32, u64)>,
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_align: u32,
    pub(crate) local_bytes: u64,
    pub(crate) calls: Vec<&'a str>,
    /// The number of calls inlined so far.
    pub(crate) inlined: usize,
    /// Whether the kernel is too long and that has been reported.
    pub(crate) gave_up: bool,
    /// Where `ret` branches to in a called function; `None` in the kernel itself.
    pub(crate) return_label: Option<u32>,
    pub(crate) subroutines: Vec<Subroutine<'f, 'a>>,
    /// The frame of the subroutine that is being lowered: the register that holds its address, and its size so far.
    pub(crate) frame: Option<(u32, u64)>,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// How often the kernel mentions each register.
#[derive(Default)]
pub(crate) struct Mentions {
    words: Vec<u32>,
    longs: Vec<u32>,
}

impl Mentions {
    fn add(&mut self, binding: Binding) {
        let (counts, index) = match binding {
            Binding::Word(index, _) => (&mut self.words, index as usize),
            Binding::Long(index, _) => (&mut self.longs, index as usize),
            _ => return,
        };
        if counts.len() <= index {
            counts.resize(index + 1, 0);
        }
        counts[index] += 1;
    }

    /// Returns whether the kernel mentions a register only once, so that it never reads what it writes there.
    pub(crate) fn is_only(&self, register: Value) -> bool {
        let (counts, slot) = match register {
            Value::Word(slot) => (&self.words, slot),
            Value::Long(slot) => (&self.longs, slot),
        };
        !slot.is_uniform() && counts.get(slot.index()) == Some(&1)
    }
}

/// A function that a kernel calls and does not inline.
#[derive(Clone, Copy)]
pub(crate) struct Subroutine<'f, 'a> {
    pub(crate) function: &'f ResolvedFunction<'a>,
    /// The label of its first instruction.
    pub(crate) entry: u32,
}

/// The uniform values, each stored once.
#[derive(Default)]
pub(crate) struct Uniforms {
    pub(crate) values: Vec<Uniform>,
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
    pub(crate) fn new(index: &'f Index<'f, 'a>) -> Self {
        let mut lowering = Self {
            index,
            scopes: Scopes::default(),
            counts: RegisterCount::default(),
            mentions: Mentions::default(),
            code: Vec::new(),
            lines: Vec::new(),
            locations: Vec::new(),
            cuda_lines: Vec::new(),
            line: 0,
            location: u32::MAX,
            guard: None,
            reads_special_registers: false,
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
            inlined: 0,
            gave_up: false,
            return_label: None,
            subroutines: Vec::new(),
            frame: None,
            diagnostics: Vec::new(),
        };
        // The first uniform value of each width is zero. It takes the place of a source that an operation doesn't need.
        lowering.uniform_word(Uniform::Constant(0));
        lowering.uniform_long(Uniform::Constant(0));
        lowering
    }

    pub(crate) fn report(&mut self, line: u32, text: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(line, text));
    }

    /// Records the source line of the following instructions.
    pub(crate) fn locate(&mut self, file: u32, line: u32) {
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

    pub(crate) fn register(&mut self, variable: &Declared<'a>) {
        self.scopes.declare(variable, Class::of(variable.kind));
    }

    /// Reports a name that is already declared in the scope.
    pub(crate) fn declare_once(&mut self, line: u32, name: &str) {
        if self.scopes.declares(name) {
            self.report(line, format!("`{name}` is declared twice"));
        }
    }

    pub(crate) fn variable(&mut self, variable: &Declared<'a>) {
        self.declare_once(variable.line, variable.name);
        match variable.space {
            VariableSpace::Register => self.register(variable),
            VariableSpace::Shared => {
                let binding = self.place_shared(variable);
                self.scopes.bind(variable.name, binding);
            }
            VariableSpace::Local | VariableSpace::Param => self.local_variable(variable),
            VariableSpace::Global | VariableSpace::Const => {
                self.report(variable.line, "unsupported: a module's variable declared inside a function");
            }
        }
    }

    /// Assigns a local variable its offset, in a subroutine's frame or in the kernel's local memory.
    fn local_variable(&mut self, variable: &Declared<'a>) {
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

    /// Assigns a shared variable its offset.
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

    /// Returns what a name refers to, in the function or otherwise in the module.
    pub(crate) fn find(&mut self, name: &'a str) -> Option<Binding> {
        if let Some(binding) = self.scopes.find(name, &mut self.counts) {
            self.mentions.add(binding);
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

    pub(crate) fn new_label(&mut self) -> u32 {
        self.labels.push(0);
        self.labels.len() as u32 - 1
    }

    /// Places a label before the next instruction.
    pub(crate) fn place_label(&mut self, label: u32) {
        self.labels[label as usize] = self.code.len() as u32;
    }

    pub(crate) fn uniform_word(&mut self, uniform: Uniform) -> Slot {
        self.uniform_words.slot(uniform)
    }

    pub(crate) fn uniform_long(&mut self, uniform: Uniform) -> Slot {
        self.uniform_longs.slot(uniform)
    }

    pub(crate) fn thread_constant(&mut self, constant: ThreadConstant) -> Slot {
        if let Some(&(slot, _)) = self.thread_constants.iter().find(|(_, known)| *known == constant) {
            return slot;
        }
        let slot = self.new_word();
        self.thread_constants.push((slot, constant));
        slot
    }

    pub(crate) fn new_word(&mut self) -> Slot {
        self.counts.words += 1;
        Slot::register(self.counts.words - 1)
    }

    pub(crate) fn new_long(&mut self) -> Slot {
        self.counts.longs += 1;
        Slot::register(self.counts.longs - 1)
    }

    pub(crate) fn new_predicate(&mut self) -> Predicate {
        Predicate(self.counts.next_predicate())
    }

    /// Returns the condition code register. There is one per thread.
    pub(crate) fn carry(&mut self) -> Predicate {
        match self.carry {
            Some(carry) => carry,
            None => *self.carry.insert(Predicate(self.counts.next_predicate())),
        }
    }

    pub(crate) fn emit(&mut self, operation: Operation) {
        self.code.push(Instruction { guard: self.guard, operation });
        self.lines.push(self.line);
        self.locations.push(self.location);
    }

    /// Emits a 32-bit operation; missing sources are zero.
    pub(crate) fn emit_word<const N: usize>(&mut self, op: WordOp, d: Slot, sources: [Slot; N]) {
        let [a, b, c] = padded(sources);
        self.emit(Operation::Word { op, d, a, b, c });
    }

    pub(crate) fn emit_long<const N: usize>(&mut self, op: LongOp, d: Slot, sources: [Slot; N]) {
        let [a, b, c] = padded(sources);
        self.emit(Operation::Long { op, d, a, b, c });
    }

    pub(crate) fn emit_widen(&mut self, op: WidenOp, d: Slot, a: Slot, b: Slot) {
        self.emit(Operation::Widen { op, d, a, b, c: unused() });
    }

    /// Branches to the returned label if the guard is false. The instructions that follow have no guard.
    pub(crate) fn skip_unless_guarded(&mut self) -> u32 {
        let end = self.new_label();
        if let Some(guard) = self.guard {
            self.guard = Some(Condition { negated: !guard.negated, ..guard });
            self.emit(Operation::Branch { target: end });
            self.guard = None;
        }
        end
    }

    /// Emits a branch for the threads in which both values are equal.
    pub(crate) fn branch_if_equal(&mut self, a: Value, b: Value, target: u32) {
        let predicate = self.new_predicate();
        self.emit(Operation::Compare {
            comparison: Comparison::Eq,
            kind: CompareAs::Unsigned,
            a,
            b,
            combine: BoolOp::First,
            c: None,
            d: Some(predicate),
            complement: None,
        });
        self.guard = Some(Condition { predicate, negated: false });
        self.emit(Operation::Branch { target });
        self.guard = None;
    }
}

/// Returns a placeholder for a source that an operation doesn't use: the first uniform value of each width, which is
/// zero.
pub(crate) fn unused() -> Slot {
    Slot::uniform(0)
}

/// Returns three sources; missing sources are [`unused`].
fn padded<const N: usize>(sources: [Slot; N]) -> [Slot; 3] {
    let mut all = [unused(); 3];
    for (slot, source) in all.iter_mut().zip(sources) {
        *slot = source;
    }
    all
}
