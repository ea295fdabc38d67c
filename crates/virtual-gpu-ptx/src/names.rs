//! What names in a function stand for.

use std::collections::HashMap;

use super::instruction::Predicate;
use super::syntax::Variable;

/// Nested `{` in a function; no compiler comes near.
pub(super) const MAX_DEPTH: usize = 64;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// A register of at most 32 bits, with its index and width.
    Word(u32, u8),
    Long(u32),
    Predicate(Predicate),
    /// Its offset in shared memory.
    Shared(u32),
    /// Dynamic shared memory; its offset is known when all static variables are.
    DynamicShared,
    /// Its offset in a thread's local memory.
    Local(u32),
    /// Its offset in the frame whose address is in the 64-bit register of that index.
    Framed(u32, u32),
    /// Its offset among the kernel's parameters.
    Parameter(u32),
    /// Index of a module variable.
    Global(u32),
    /// Index into the label table.
    Label(u32),
    /// Index among the file's functions.
    Function(u32),
}

/// Which register file a type belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Word(u8),
    Long,
    Predicate,
}

impl Class {
    pub(super) fn of(kind: &str) -> Option<Self> {
        Some(match kind {
            "pred" => Self::Predicate,
            "b8" | "u8" | "s8" => Self::Word(8),
            "b16" | "u16" | "s16" | "f16" | "bf16" => Self::Word(16),
            "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Self::Word(32),
            "b64" | "u64" | "s64" | "f64" => Self::Long,
            _ => return None,
        })
    }
}

/// The names declared between one pair of braces.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    names: HashMap<&'a str, Binding>,
    /// `%r<30>`: prefix, count, class.
    families: Vec<(&'a str, u32, Class)>,
    /// A function's outermost scope: what lies outside belongs to its caller.
    is_function: bool,
}

/// Registers handed out so far.
#[derive(Debug, Default)]
pub(super) struct RegisterCount {
    pub(super) words: u32,
    pub(super) longs: u32,
    pub(super) predicates: u32,
}

impl RegisterCount {
    pub(super) fn next_predicate(&mut self) -> u32 {
        self.predicates += 1;
        self.predicates - 1
    }

    pub(super) fn take(&mut self, class: Class) -> Binding {
        let next = |count: &mut u32| {
            *count += 1;
            *count - 1
        };
        match class {
            Class::Word(bits) => Binding::Word(next(&mut self.words), bits),
            Class::Long => Binding::Long(next(&mut self.longs)),
            Class::Predicate => Binding::Predicate(Predicate(next(&mut self.predicates))),
        }
    }
}

/// The scopes around a statement, innermost last.
#[derive(Debug, Default)]
pub(super) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
}

impl<'a> Scopes<'a> {
    pub(super) fn depth(&self) -> usize {
        self.scopes.len()
    }

    pub(super) fn open(&mut self, is_function: bool) {
        self.scopes.push(Scope { is_function, ..Scope::default() });
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Whether the innermost scope already declares that very name.
    pub(super) fn declares(&self, name: &str) -> bool {
        self.scopes.last().is_some_and(|scope| {
            scope.names.contains_key(name) || scope.families.iter().any(|(prefix, ..)| *prefix == name)
        })
    }

    pub(super) fn bind(&mut self, name: &'a str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, binding);
        }
    }

    /// Declares registers; they get an index when they are first used.
    pub(super) fn declare(&mut self, variable: &Variable<'a>, class: Class) {
        if let Some(scope) = self.scopes.last_mut() {
            // A single register is a family of one, told by its missing count.
            scope.families.push((variable.name, variable.count.unwrap_or(u32::MAX), class));
        }
    }

    /// What `name` stands for inside the current function.
    pub(super) fn find(&mut self, name: &'a str, registers: &mut RegisterCount) -> Option<Binding> {
        for scope in self.scopes.iter_mut().rev() {
            if let Some(&binding) = scope.names.get(name) {
                return Some(binding);
            }
            let class = scope
                .families
                .iter()
                .rev()
                .find_map(|&(prefix, count, class)| (belongs_to(name, prefix, count)).then_some(class));
            if let Some(class) = class {
                let binding = registers.take(class);
                scope.names.insert(name, binding);
                return Some(binding);
            }
            if scope.is_function {
                return None;
            }
        }
        None
    }
}

/// Whether `name` is one of the registers declared as `prefix<count>`, or as `prefix` alone.
fn belongs_to(name: &str, prefix: &str, count: u32) -> bool {
    match name.strip_prefix(prefix) {
        Some("") => count == u32::MAX,
        Some(digits) if count != u32::MAX && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let is_canonical = digits == "0" || !digits.starts_with('0');
            is_canonical && digits.parse::<u32>().is_ok_and(|index| index < count)
        }
        _ => false,
    }
}
