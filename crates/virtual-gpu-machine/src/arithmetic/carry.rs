//! Multi-word arithmetic, thread by thread.

use crate::mask::{WIDTH, bits};
use crate::registers::Files;
use virtual_gpu_ptx::instruction::{Carry, CarryOp, Value};

/// Executes `add.cc` to `madc` in the threads of `mask`.
pub(crate) fn execute(what: Carry, files: &mut Files, mask: &[u16]) {
    for (chunk, &active) in mask.iter().enumerate() {
        let mut carries = 0;
        for i in bits(active) {
            let thread = chunk * WIDTH + i;
            let carry_in = what
                .carry_in
                .is_some_and(|carry| files.predicates[files.predicate(carry) + chunk] & 1 << i != 0);
            let sources = what.sources.map(|source| match source {
                Value::Word(slot) => u64::from(files.word_of(slot, thread)),
                Value::Long(slot) => files.long_of(slot, thread),
            });
            let width = if matches!(what.d, Value::Long(_)) { 64 } else { 32 };
            let (result, carry) = scalar(what.op, width, sources, carry_in);
            match what.d {
                Value::Word(slot) => files.set_word(slot, thread, result as u32),
                Value::Long(slot) => files.set_long(slot, thread, result),
            }
            carries |= u16::from(carry) << i;
        }
        if let Some(carry) = what.carry_out {
            files.set_predicate(carry, chunk, carries, active);
        }
    }
}

/// Returns the low bits of the result, and the carry or, for a subtraction, the borrow.
fn scalar(op: CarryOp, width: u32, [a, b, c]: [u64; 3], carry_in: bool) -> (u64, bool) {
    let (a, b, c, carry_in) = (u128::from(a), u128::from(b), u128::from(c), u128::from(carry_in));
    let ones = u128::MAX >> (128 - width);
    let signed = |value: u128| (value << (128 - width)) as i128 >> (128 - width);
    let sum = match op {
        CarryOp::Add => a + b + carry_in,
        CarryOp::Sub => a.wrapping_sub(b).wrapping_sub(carry_in),
        CarryOp::MadLow => ((a * b) & ones) + c + carry_in,
        CarryOp::MadHighU => ((a * b) >> width) + c + carry_in,
        CarryOp::MadHighS => (((signed(a) * signed(b)) >> width) as u128 & ones) + c + carry_in,
    };
    ((sum & ones) as u64, (sum >> width) & 1 == 1)
}
