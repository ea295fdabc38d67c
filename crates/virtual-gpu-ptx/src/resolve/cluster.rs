//! Clusters: addresses in the shared memory of other blocks, asynchronous stores to it, and the cluster's barrier.

use super::memory::{atomic_op, atomic_type};
use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{AtomicOp, ClusterBarrier};
use crate::resolved::{Form, StoreAsync};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// Data Movement and Conversion Instructions: `mapa`
///
/// ```text
/// mapa{.space}.type  d, a, b;    .space = { .shared::cluster };  .type = { .u32, .u64 };
/// ```
pub(super) fn mapa<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (kind, is_generic) = address(written)?;
    Ok(Form::MapAddress { kind, is_generic, operands: operands(written)? })
}

/// Data Movement and Conversion Instructions: `getctarank`
///
/// ```text
/// getctarank{.space}.type  d, a;    .space = { .shared::cluster };  .type = { .u32, .u64 };
/// ```
pub(super) fn getctarank<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (kind, _) = address(written)?;
    Ok(Form::BlockOfAddress { kind, operands: operands(written)? })
}

/// Returns the type of an address, and whether it is generic.
fn address(written: &Written<'_>) -> Resolution<(Type, bool)> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let is_generic = !modifiers.take("shared::cluster");
    // A generic address has 64 bits.
    if !matches!(kind, Type::U32 | Type::U64) || is_generic && kind == Type::U32 {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    Ok((kind, is_generic))
}

/// Parallel Synchronization and Communication Instructions: `barrier.cluster`
///
/// ```text
/// barrier.cluster.arrive{.sem}{.aligned};         .sem = { .release, .relaxed };
/// barrier.cluster.wait{.acquire}{.aligned};
/// ```
pub(super) fn barrier<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    modifiers.take("aligned");
    let barrier = match modifiers.rest.as_slice() {
        ["cluster", "arrive"] | ["cluster", "arrive", "release"] => ClusterBarrier::Arrive { releases: true },
        ["cluster", "arrive", "relaxed"] => ClusterBarrier::Arrive { releases: false },
        ["cluster", "wait"] | ["cluster", "wait", "acquire"] => ClusterBarrier::Wait,
        _ => return unsupported(written),
    };
    let [] = operands(written)?;
    Ok(Form::ClusterBarrier(barrier))
}

/// Data Movement and Conversion Instructions: `st.async`; Parallel Synchronization and Communication Instructions:
/// `red.async`
///
/// ```text
/// st.async{.weak}{.shared::cluster}{.mbarrier::complete_tx::bytes}{.vec}.type  [a], b, [mbar];
/// .vec = { .v2, .v4 };  .type = { .b32, .b64, .u32, .u64, .s32, .s64, .f32, .f64 };
///
/// red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.op.type  [a], b, [mbar];
/// .op.type = { .inc.u32, .dec.u32, .min.u32, .min.s32, .max.u32, .max.s32, .and.b32, .or.b32, .xor.b32, .add.u32,
///              .add.s32, .add.u64 };
/// ```
pub(super) fn store_async<'a>(written: &mut Written<'a>, reduces: bool) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    modifiers.take("async");
    modifiers.take("shared::cluster");
    let completes = modifiers.take("mbarrier::complete_tx::bytes");
    let op = if reduces { modifiers.choose(|name| atomic_op(name).filter(|op| op.reduces())) } else { None };
    let count = modifiers.choose(|name| match name {
        "v2" if !reduces => Some(2),
        "v4" if !reduces => Some(4),
        _ => None,
    });
    let is_number =
        matches!(kind.bits(), 32 | 64) && (!kind.is_float() || matches!(kind, Type::F32 | Type::F64));
    let (reduction, is_allowed) = match op {
        _ if reduces => {
            let kinds = |op| match op {
                AtomicOp::Add => matches!(kind, Type::U32 | Type::S32 | Type::U64),
                _ => kind.bits() == 32 && !kind.is_float(),
            };
            let found = op.filter(|&op| kinds(op)).and_then(|op| Some((op, atomic_type(op, kind)?)));
            (found, completes && found.is_some() && modifiers.take("relaxed") && modifiers.take("cluster"))
        }
        _ => {
            modifiers.take("weak");
            (None, is_number)
        }
    };
    if !is_allowed {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    let [address, value, mbarrier] = operands(written)?;
    let values = match value {
        Operand::Vector(values) => values,
        single => vec![single],
    };
    match values.len() == count.unwrap_or(1) {
        true => Ok(Form::StoreAsync(StoreAsync { kind, values, address, mbarrier, reduction })),
        false => wrong_number(written),
    }
}
