//! Lowers a resolved file to kernels: names become registers and addresses, and forms become operations.

mod arithmetic;
mod bits;
mod builder;
mod bulk;
mod call_graph;
mod cluster;
mod compare;
mod control;
mod convert;
mod form;
mod function;
mod index;
mod indirect;
mod kernel;
mod mbarrier;
mod memory;
mod names;
mod operand;
mod subroutine;
mod texture;
mod transfer;
mod warp;
mod wmma;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::kernel::{Kernel, Module};
use crate::resolved::ResolvedFile;
use builder::Lowering;
use index::Index;

/// Lowers the file and adds any errors to `diagnostics`.
pub(crate) fn lower(file: &ResolvedFile<'_>, diagnostics: &mut Vec<Diagnostic>) -> Module {
    let index = Index::new(file, diagnostics);
    let mut kernels = BTreeMap::new();
    for function in &file.functions {
        if function.body.is_none() {
            continue;
        }
        // Each function is also lowered separately, so that its errors are listed even if nothing calls it.
        let mut lowering = Lowering::new(&index);
        let kernel = lowering.kernel(function);
        diagnostics.append(&mut lowering.diagnostics);
        if function.is_entry {
            kernels.insert(function.name.to_owned(), Arc::new(kernel));
        }
    }
    let mut variables = index.globals;
    let mut used: Vec<u32> = kernels.values().flat_map(|kernel: &Arc<Kernel>| kernel.variables()).collect();
    while let Some(index) = used.pop() {
        let variable = &mut variables[index as usize];
        if !std::mem::replace(&mut variable.is_used, true) {
            used.extend(variable.addresses.iter().map(|address| address.variable));
        }
    }
    Module { target: file.target, kernels, variables }
}
