//! The statements of a function. A called function is inlined, unless it may call itself: see [`super::subroutine`].

use super::builder::Lowering;
use super::names::{Binding, MAX_DEPTH};
use super::operand::Lowered;
use crate::diagnostic::ONLY_DECLARED;
use crate::instruction::{Condition, Operation, Slot};
use crate::resolved::{Call, Form, Resolved, ResolvedFunction, ResolvedStatement};
use crate::syntax::Statement;

/// The maximum depth of nested calls. Recursive functions are not inlined, so only hostile PTX comes close.
const MAX_CALLS: usize = 32;

/// The maximum number of instructions in a kernel, including its inlined functions.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// The maximum number of calls that are inlined into a kernel.
const MAX_INLINED: usize = 1 << 14;

impl<'f, 'a> Lowering<'f, 'a> {
    /// Lowers a function's statements into the current scope.
    pub(crate) fn body(&mut self, function: &'f ResolvedFunction<'a>) {
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
            if self.code.len() > MAX_INSTRUCTIONS || self.inlined > MAX_INLINED {
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
                Statement::Instruction(instruction) => self.instruction(instruction),
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

    /// Returns the labels of each scope, in the order in which the scopes open. Every label gets a new index.
    fn label_scopes(&mut self, statements: &[ResolvedStatement<'a>]) -> Vec<Vec<(&'a str, u32)>> {
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

    fn instruction(&mut self, instruction: &'f Resolved<'a>) {
        let Resolved { written, form } = instruction;
        self.line = written.line;
        let outcome = match written.guard {
            None => Ok(None),
            Some((name, negated)) => match self.find(name) {
                Some(Binding::Predicate(predicate)) => Ok(Some(Condition { predicate, negated })),
                _ => Err(format!("`{name}` is not a predicate")),
            },
        };
        let outcome = outcome.and_then(|guard| {
            self.guard = guard;
            match form {
                Err(text) => Err(text.clone()),
                Ok(Form::Call(call)) => self.call(call),
                Ok(Form::Return) => {
                    match self.return_label {
                        Some(target) => self.emit(Operation::Branch { target }),
                        None => self.emit(Operation::Exit),
                    }
                    Ok(())
                }
                Ok(form) => self.form(written, form),
            }
        });
        if let Err(text) = outcome {
            self.report(written.line, text);
        }
    }

    /// Lowers a direct call or a call through a register.
    fn call(&mut self, call: &Call<'a>) -> Lowered {
        if let Some(Binding::Long(register, _)) = self.find(call.name) {
            return self.indirect_call(Slot::register(register), call, Self::direct_call);
        }
        let Some(&function) = self.index.functions.get(call.name) else {
            return Err(format!(
                "unsupported: call to `{}`, which is not a function in this module",
                call.name
            ));
        };
        if function.body.is_none() && self.system_call(call)? {
            return Ok(());
        }
        self.direct_call(function, call)
    }

    /// Inlines a called function, unless it may call itself. Its parameters are the caller's argument variables.
    fn direct_call(&mut self, function: &'f ResolvedFunction<'a>, call: &Call<'a>) -> Lowered {
        if function.body.is_none() {
            return Err(format!("unsupported: call to `{}`, {ONLY_DECLARED}", function.name));
        }
        if function.is_entry {
            return Err(format!("`{}` is a kernel, and kernels can't be called", function.name));
        }
        if self.index.recursive.contains(function.name) {
            return self.call_subroutine(function, call);
        }
        if self.calls.len() >= MAX_CALLS {
            return Err("calls nest too deeply".to_owned());
        }
        self.inlined += 1;
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
}
