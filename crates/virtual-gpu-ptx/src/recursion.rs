//! Functions that may call themselves, directly or through others. They can't be put in place of their calls: each is
//! lowered once, behind the kernel, and really called. Their variables lie in a frame on the thread's stack.

use std::collections::{HashMap, HashSet};

use super::decode::{Call, call_parts};
use super::instruction::{Address, Operation, Slot, Value};
use super::kernel::Frame;
use super::lower::{Index, Lowering};
use super::names::Binding;
use super::syntax::{Function, Statement};

/// Bytes that a frame's size is a multiple of, and its least size. A frame here has the function's variables, parameters
/// among them; a compiler has parameters in registers, and in the frame registers and the address to return to.
pub(super) const FRAME_ALIGNMENT: u64 = 16;

/// A function that a kernel calls.
#[derive(Clone, Copy)]
pub(super) struct Subroutine<'f, 'a> {
    function: &'f Function<'a>,
    /// The label of its first instruction.
    entry: u32,
}

/// Where a variable in local memory lies.
pub(super) fn local_address(binding: Binding) -> Address {
    match binding {
        Binding::Framed(frame, offset) => {
            Address { base: Value::Long(Slot::register(frame)), offset: offset.into() }
        }
        Binding::Local(offset) => Address { base: Value::Long(Slot::uniform(0)), offset: offset.into() },
        _ => Address { base: Value::Long(Slot::uniform(0)), offset: 0 },
    }
}

impl<'a> Index<'_, 'a> {
    /// What is left of all functions, once those that call none of the rest are gone, and those that none of the rest
    /// calls: whatever lies on a circle of calls, or between two.
    pub(super) fn find_recursive(&self) -> HashSet<&'a str> {
        let functions: Vec<&Function<'a>> =
            self.file.functions.iter().filter(|function| function.body.is_some()).collect();
        let numbers: HashMap<&str, usize> =
            functions.iter().enumerate().map(|(number, function)| (function.name, number)).collect();
        let by_pointer: Vec<usize> = (self.callable.iter())
            .filter_map(|&index| numbers.get(self.file.functions[index as usize].name).copied())
            .collect();
        // A call through a register may reach whatever has its address taken. All those calls go through one more node.
        let pointer = functions.len();
        let mut calls: Vec<Vec<usize>> =
            functions.iter().map(|function| callees(function, &numbers, pointer)).collect();
        calls.push(by_pointer);
        let mut called_by = vec![Vec::new(); calls.len()];
        for (caller, callees) in calls.iter().enumerate() {
            callees.iter().for_each(|&callee| called_by[callee].push(caller));
        }
        let mut is_left = vec![true; calls.len()];
        remove_ends(&calls, &called_by, &mut is_left);
        remove_ends(&called_by, &calls, &mut is_left);
        functions
            .iter()
            .zip(is_left)
            .filter_map(|(function, is_left)| is_left.then_some(function.name))
            .collect()
    }
}

/// The numbers of the functions that a function calls, each once.
fn callees(function: &Function<'_>, numbers: &HashMap<&str, usize>, pointer: usize) -> Vec<usize> {
    let mut callees = Vec::new();
    for statement in function.body.iter().flatten() {
        if let Statement::Instruction(raw) = statement
            && raw.opcode == "call"
            && let Ok(call) = call_parts(raw)
        {
            callees.push(numbers.get(call.name).copied().unwrap_or(pointer));
        }
    }
    callees.sort_unstable();
    callees.dedup();
    callees
}

/// Removes, again and again, what has no arrow to anything that is left.
fn remove_ends(arrows: &[Vec<usize>], backwards: &[Vec<usize>], is_left: &mut [bool]) {
    let mut counts: Vec<usize> =
        arrows.iter().map(|targets| targets.iter().filter(|&&target| is_left[target]).count()).collect();
    let mut ends: Vec<usize> = (0..arrows.len()).filter(|&node| is_left[node] && counts[node] == 0).collect();
    while let Some(node) = ends.pop() {
        is_left[node] = false;
        for &source in &backwards[node] {
            counts[source] = counts[source].saturating_sub(1);
            if counts[source] == 0 && is_left[source] {
                ends.push(source);
            }
        }
    }
}

impl<'f, 'a> Lowering<'f, 'a> {
    /// A call of a function that may call itself.
    pub(super) fn call_subroutine(
        &mut self,
        function: &'f Function<'a>,
        call: &Call<'_, 'a>,
    ) -> Result<(), String> {
        let mut places = Vec::new();
        for (_, binding) in self.match_arguments(function, call)? {
            places.push(local_address(binding));
        }
        let known = self.subroutines.iter().position(|known| known.function.name == function.name);
        let number = known.unwrap_or_else(|| {
            let entry = self.new_label();
            self.subroutines.push(Subroutine { function, entry });
            self.subroutines.len() - 1
        });
        let arguments = places.split_off(function.returns.len());
        self.emit(Operation::Call(super::instruction::Call {
            frame: number as u32,
            target: self.subroutines[number].entry,
            arguments: arguments.into(),
            results: places.into(),
        }));
        Ok(())
    }

    /// Lowers what is called, and what that calls.
    pub(super) fn lower_subroutines(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(&Subroutine { function, entry }) = self.subroutines.get(frames.len())
            && !self.gave_up
        {
            frames.push(self.subroutine(function, entry));
        }
        frames
    }

    fn subroutine(&mut self, function: &'f Function<'a>, entry: u32) -> Frame {
        self.place_label(entry);
        let (words, longs, predicates) = (self.counts.words, self.counts.longs, self.counts.predicates);
        let base = self.new_long();
        self.frame = Some((base.index() as u32, 0));
        self.scopes.open(true);
        let place = |lowering: &mut Self, formal: &super::syntax::Variable<'a>| {
            lowering.variable(formal);
            match lowering.find(formal.name) {
                Some(Binding::Framed(_, offset)) => (offset, formal.size as u32),
                _ => (0, 0),
            }
        };
        let results = function.returns.iter().map(|formal| place(self, formal)).collect();
        let parameters = function.parameters.iter().map(|formal| place(self, formal)).collect();
        let end = self.new_label();
        self.return_label = Some(end);
        self.body(function);
        self.return_label = None;
        self.scopes.close();
        self.line = function.line;
        self.guard = None;
        self.place_label(end);
        self.emit(Operation::Return);
        let variables = self.frame.take().map_or(0, |(_, bytes)| bytes);
        Frame {
            words: words..self.counts.words,
            longs: longs..self.counts.longs,
            predicates: predicates..self.counts.predicates,
            base,
            bytes: variables.next_multiple_of(FRAME_ALIGNMENT).max(FRAME_ALIGNMENT) as u32,
            parameters,
            results,
        }
    }
}
