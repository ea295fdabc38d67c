//! The orders in which a kernel's branches allow instructions to run.

use virtual_gpu_ptx::instruction::{Instruction, Operation};

/// Returns the start of the straight-line code that always executes right before the instruction at `end`.
pub(crate) fn start_of_straight_line(code: &[Instruction], end: usize) -> usize {
    let is_target = |at: usize| {
        code.iter().any(|one| matches!(one.operation, Operation::Branch { target } if target as usize == at))
    };
    let goes_elsewhere = |at: usize| {
        matches!(code[at].operation, Operation::Branch { .. } | Operation::Exit | Operation::Return)
    };
    let mut start = end;
    while start > 0 && !is_target(start) && !goes_elsewhere(start - 1) {
        start -= 1;
    }
    start
}

/// Returns whether a thread can get from one instruction to another. A return from a function can lead anywhere.
pub(crate) fn leads_to(code: &[Instruction], from: usize, to: usize) -> bool {
    let mut seen = vec![false; code.len()];
    let mut left = vec![from];
    while let Some(at) = left.pop() {
        if at == to || matches!(code.get(at), Some(Instruction { operation: Operation::Return, .. })) {
            return true;
        }
        if at >= code.len() || std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let Instruction { guard, operation, .. } = &code[at];
        if let Operation::Branch { target } = operation {
            left.push(*target as usize);
        }
        let ends = matches!(operation, Operation::Branch { .. } | Operation::Exit);
        if guard.is_some() || !ends {
            left.push(at + 1);
        }
    }
    false
}
