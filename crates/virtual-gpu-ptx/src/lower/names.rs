//! A function's scopes, and what its names refer to.

use std::collections::HashMap;

use crate::instruction::Predicate;
use crate::syntax::Variable;
use crate::types::Type;

/// The maximum nesting depth of `{` in a function; compilers nest far less.
pub(crate) const MAX_DEPTH: usize = 64;

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// A register of at most 32 bits, with its index and declared type.
    Word(u32, Type),
    /// The same with 64 bits.
    Long(u32, Type),
    Predicate(Predicate),
    /// Its offset in shared memory.
    Shared(u32),
    /// Dynamic shared memory, whose offset is known once all static variables have been placed.
    DynamicShared,
    /// Its offset in a thread's local memory.
    Local(u32),
    /// Its offset in the frame whose address is in the 64-bit register with the given index.
    Framed(u32, u32),
    /// Its offset among the kernel's parameters.
    Parameter(u32),
    /// The index of a module variable.
    Global(u32),
    /// The index into the label table.
    Label(u32),
    /// The index among the file's functions.
    Function(u32),
}

/// The register file that a type belongs to, with the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Word(Type),
    Long(Type),
    Predicate,
}

impl Class {
    pub(crate) fn of(kind: Type) -> Self {
        match kind {
            Type::Pred => Self::Predicate,
            _ if kind.bits() == 64 => Self::Long(kind),
            _ => Self::Word(kind),
        }
    }
}

/// The names declared within a pair of braces.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    names: HashMap<&'a str, Binding>,
    /// `%r<30>`: prefix, count, class.
    families: Vec<(&'a str, u32, Class)>,
    /// Whether this is a function's outermost scope. The scopes around that belong to the function's caller.
    is_function: bool,
}

/// The number of registers allocated so far.
#[derive(Debug, Default)]
pub(crate) struct RegisterCount {
    pub(crate) words: u32,
    pub(crate) longs: u32,
    pub(crate) predicates: u32,
}

impl RegisterCount {
    pub(crate) fn next_predicate(&mut self) -> u32 {
        self.predicates += 1;
        self.predicates - 1
    }

    pub(crate) fn take(&mut self, class: Class) -> Binding {
        let next = |count: &mut u32| {
            *count += 1;
            *count - 1
        };
        match class {
            Class::Word(kind) => Binding::Word(next(&mut self.words), kind),
            Class::Long(kind) => Binding::Long(next(&mut self.longs), kind),
            Class::Predicate => Binding::Predicate(Predicate(next(&mut self.predicates))),
        }
    }
}

/// The scopes around a statement, innermost last.
#[derive(Debug, Default)]
pub(crate) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
}

impl<'a> Scopes<'a> {
    pub(crate) fn depth(&self) -> usize {
        self.scopes.len()
    }

    pub(crate) fn open(&mut self, is_function: bool) {
        self.scopes.push(Scope { is_function, ..Scope::default() });
    }

    pub(crate) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Returns whether exactly this name is already declared in the innermost scope.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.scopes.last().is_some_and(|scope| {
            scope.names.contains_key(name) || scope.families.iter().any(|(prefix, ..)| *prefix == name)
        })
    }

    pub(crate) fn bind(&mut self, name: &'a str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, binding);
        }
    }

    /// Declares registers. Each register is assigned an index on first use.
    pub(crate) fn declare(&mut self, variable: &Variable<'a>, class: Class) {
        if let Some(scope) = self.scopes.last_mut() {
            // A single register is a family without a count.
            scope.families.push((variable.name, variable.count.unwrap_or(u32::MAX), class));
        }
    }

    /// Returns what `name` refers to inside the current function.
    pub(crate) fn find(&mut self, name: &'a str, registers: &mut RegisterCount) -> Option<Binding> {
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

/// Returns whether `name` is one of the registers declared as `prefix<count>`, or as `prefix` alone.
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
