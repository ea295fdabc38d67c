//! A file's names: its functions and variables, and which functions call each other.

use std::collections::{HashMap, HashSet};

use super::call_graph::{callable, code_address, recursive};
use crate::diagnostic::Diagnostic;
use crate::kernel::{AddressOf, Variable};
use crate::resolved::{ResolvedFile, ResolvedFunction};
use crate::syntax::{Variable as Declared, VariableSpace};

/// A file's names.
pub(crate) struct Index<'f, 'a> {
    pub(crate) file: &'f ResolvedFile<'a>,
    pub(crate) functions: HashMap<&'a str, &'f ResolvedFunction<'a>>,
    /// Indices into `file.functions` of the functions whose address is taken, which an indirect call can reach.
    pub(crate) callable: Vec<u32>,
    /// The names of functions that may call themselves.
    pub(crate) recursive: HashSet<&'a str>,
    pub(crate) variables: HashMap<&'a str, &'f Declared<'a>>,
    pub(crate) globals: Vec<Variable>,
    pub(crate) global_index: HashMap<&'a str, u32>,
}

impl<'f, 'a> Index<'f, 'a> {
    pub(crate) fn new(file: &'f ResolvedFile<'a>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut index = Self {
            file,
            functions: HashMap::new(),
            callable: callable(file),
            recursive: HashSet::new(),
            variables: HashMap::new(),
            globals: Vec::new(),
            global_index: HashMap::new(),
        };
        index.add_functions(diagnostics);
        index.add_variables(diagnostics);
        index.place_addresses(diagnostics);
        index.recursive = recursive(file, &index.callable);
        index
    }

    fn add_functions(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        for function in &self.file.functions {
            let known = self.functions.entry(function.name).or_insert(function);
            if known.body.is_none() {
                *known = function;
            } else if function.body.is_some() && !std::ptr::eq(*known, function) {
                let text = format!("`{}` is defined twice", function.name);
                diagnostics.push(Diagnostic::new(function.line, text));
            }
        }
    }

    fn add_variables(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        for variable in &self.file.variables {
            if self.variables.get(variable.name).is_some_and(|known| !known.is_extern) {
                let text = format!("`{}` is declared twice", variable.name);
                diagnostics.push(Diagnostic::new(variable.line, text));
                continue;
            }
            self.variables.insert(variable.name, variable);
            if !matches!(variable.space, VariableSpace::Global | VariableSpace::Const) {
                continue;
            }
            if variable.is_extern {
                let text = format!("unsupported: `{}` is defined in another module", variable.name);
                diagnostics.push(Diagnostic::new(variable.line, text));
                continue;
            }
            self.global_index.insert(variable.name, self.globals.len() as u32);
            self.globals.push(Variable {
                name: variable.name.to_owned(),
                size: variable.size.max(variable.initial.bytes.len() as u64),
                align: u64::from(variable.align),
                initial: variable.initial.bytes.clone(),
                addresses: Vec::new(),
                is_const: variable.space == VariableSpace::Const,
                is_used: false,
            });
        }
    }

    /// Returns the index of a function's definition or, if there is none, of its declaration.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        let function = *self.functions.get(name)?;
        self.file.functions.iter().position(|one| std::ptr::eq(one, function)).map(|index| index as u32)
    }

    /// Writes addresses into the initial bytes of variables.
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
