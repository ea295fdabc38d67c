//! Finds which functions call each other, and which can be called through a register.

use std::collections::{HashMap, HashSet};

use crate::resolved::{Form, Resolved, ResolvedFile, ResolvedFunction};
use crate::syntax::{Operand, Statement};
use crate::window;

/// Returns the address of the file's `index`th function.
pub(crate) fn code_address(index: u32) -> u64 {
    window::CODE + 16 * u64::from(index)
}

/// Returns the functions with a body whose address is taken: in a variable's initial value, or in a `mov`.
pub(crate) fn callable(file: &ResolvedFile<'_>) -> Vec<u32> {
    let mut named = HashSet::new();
    for variable in &file.variables {
        named.extend(variable.initial.addresses.iter().map(|&(_, name, _)| name));
    }
    for statement in file.functions.iter().flat_map(|function| function.body.iter().flatten()) {
        if let Statement::Instruction(Resolved {
            form: Ok(Form::Move { a: Operand::Name { name, .. }, .. }),
            ..
        }) = statement
        {
            named.insert(name);
        }
    }
    let functions = file.functions.iter().enumerate();
    functions
        .filter(|(_, one)| !one.is_entry && one.body.is_some() && named.contains(one.name))
        .map(|(index, _)| index as u32)
        .collect()
}

/// Returns the functions that may call themselves: the functions on a call cycle or between two cycles. They are what
/// remains after repeatedly removing functions that call no other function and functions that no other function calls.
pub(crate) fn recursive<'a>(file: &ResolvedFile<'a>, callable: &[u32]) -> HashSet<&'a str> {
    let functions: Vec<&ResolvedFunction<'a>> =
        file.functions.iter().filter(|function| function.body.is_some()).collect();
    let numbers: HashMap<&str, usize> =
        functions.iter().enumerate().map(|(number, function)| (function.name, number)).collect();
    let by_pointer: Vec<usize> = (callable.iter())
        .filter_map(|&index| numbers.get(file.functions[index as usize].name).copied())
        .collect();
    // A call through a register can reach any function whose address is taken. One additional node represents all such
    // calls.
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
    functions.iter().zip(is_left).filter_map(|(function, is_left)| is_left.then_some(function.name)).collect()
}

/// Returns the indices of the functions that a function calls, without duplicates.
fn callees(function: &ResolvedFunction<'_>, numbers: &HashMap<&str, usize>, pointer: usize) -> Vec<usize> {
    let mut callees = Vec::new();
    for statement in function.body.iter().flatten() {
        if let Statement::Instruction(Resolved { form: Ok(Form::Call(call)), .. }) = statement {
            callees.push(numbers.get(call.name).copied().unwrap_or(pointer));
        }
    }
    callees.sort_unstable();
    callees.dedup();
    callees
}

/// Repeatedly removes nodes that have no edge to a remaining node.
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
