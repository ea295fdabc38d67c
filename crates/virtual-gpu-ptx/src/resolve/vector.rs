//! Parallel Synchronization and Communication Instructions: `atom`, `red` on vectors.

use super::memory::semantics;
use super::modifiers::{Modifiers, Resolution, unsupported, wrong_number};
use crate::instruction::{AtomicOp, AtomicType, Space};
use crate::resolved::{AtomicVector, Form};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// Returns the number of elements that an instruction names.
pub(super) fn elements(written: &Written<'_>) -> Option<usize> {
    written.modifiers.iter().find_map(|name| match *name {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    })
}

/// `atom`, `red`, with vectors
///
/// ```text
/// atom{.sem}{.scope}{.global}.add.vec_32_bit.f32                   d, [a], b;
/// atom{.sem}{.scope}{.global}.op.noftz.vec_16_bit.half_word_type   d, [a], b;
/// atom{.sem}{.scope}{.global}.op.noftz.vec_32_bit.packed_type      d, [a], b;
/// .sem = { .relaxed, .acquire, .release, .acq_rel };  .scope = { .cta, .cluster, .gpu, .sys };
/// .op = { .add, .min, .max };  .half_word_type = { .f16, .bf16 };  .packed_type = { .f16x2, .bf16x2 };
/// .vec_16_bit = { .v2, .v4, .v8 };  .vec_32_bit = { .v2, .v4 };
///
/// red{.sem}{.scope}{.global}.add.vec_32_bit.f32                    [a], b;    (the others the same)
/// .sem = { .relaxed, .release };
/// ```
///
/// The manual's examples have the vector and the type before the operation.
pub(super) fn atomic<'a>(written: &mut Written<'a>, returns: bool) -> Resolution<Form<'a>> {
    let Some(count) = elements(written) else { return unsupported(written) };
    let mut modifiers = Modifiers::of(written);
    modifiers.choose(|name| matches!(name, "v2" | "v4" | "v8").then_some(()));
    let semantics = semantics(&mut modifiers, returns);
    let space = if modifiers.take("global") { Space::Global } else { Space::Generic };
    let op = modifiers.choose(|name| match name {
        "add" => Some(AtomicOp::Add),
        "min" => Some(AtomicOp::Min),
        "max" => Some(AtomicOp::Max),
        _ => None,
    });
    let kind = modifiers.choose(|name| match name {
        "f32" => Some((Type::F32, AtomicType::F32)),
        "f16" => Some((Type::F16, AtomicType::F16)),
        "bf16" => Some((Type::Bf16, AtomicType::Bf16)),
        "f16x2" => Some((Type::F16x2, AtomicType::F16x2)),
        "bf16x2" => Some((Type::Bf16x2, AtomicType::Bf16x2)),
        _ => None,
    });
    let (Some(op), Some((kind, atomic_type))) = (op, kind) else { return unsupported(written) };
    let is_half = kind != Type::F32;
    if modifiers.take("noftz") != is_half
        || !is_half && op != AtomicOp::Add
        || count == 8 && kind.bits() != 16
    {
        return unsupported(written);
    }
    modifiers.finish()?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let d = if returns { operands.next() } else { None };
    let (Some(address), Some(a), None) = (operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let parts = |operand| match operand {
        Operand::Vector(parts) if parts.len() == count => Ok(parts),
        _ => Err(format!("`{}` takes {count} registers in braces", written.name())),
    };
    let (d, a) = (d.map(parts).transpose()?, parts(a)?);
    Ok(Form::AtomicVector(AtomicVector { op, atomic_type, kind, space, semantics, d, address, a }))
}
