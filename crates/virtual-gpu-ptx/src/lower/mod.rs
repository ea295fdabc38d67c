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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::kernel::Module;
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
    let mut module = Module { target: file.target, kernels, variables: index.globals };
    let named: BTreeSet<u32> = module.kernels.values().flat_map(|kernel| kernel.variables()).collect();
    let used: BTreeSet<u32> = named.into_iter().flat_map(|variable| module.with_needed(variable)).collect();
    for variable in used {
        module.variables[variable as usize].is_used = true;
    }
    module
}
