//! Data Movement and Conversion Instructions: Bulk copy.

use super::memory::{atomic_op, atomic_type};
use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{AtomicOp, AtomicType, Space};
use crate::resolved::{BulkCopy, Form};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// `cp.async.bulk`, `cp.async.bulk.prefetch`, `cp.async.bulk.commit_group`, `cp.async.bulk.wait_group`
///
/// ```text
/// cp.async.bulk.dst.global.mbarrier::complete_tx::bytes{.multicast::cluster}{.L2::cache_hint}
///     [dstMem], [srcMem], size, [mbar]{, ctaMask}{, cache-policy};
/// .dst = { .shared::cta, .shared::cluster };      (.multicast::cluster only with .shared::cluster)
/// cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes  [dstMem], [srcMem], size, [mbar];
/// cp.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}            [dstMem], [srcMem], size{, cache-policy};
///
/// cp.async.bulk.prefetch.L2.global  [srcMem], size;
/// cp.async.bulk.commit_group;       cp.async.bulk.wait_group{.read}  N;
/// ```
pub(super) fn copy<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    if !(modifiers.take("async") && modifiers.take("bulk")) {
        return modifiers.unsupported();
    }
    let has_hint = modifiers.take("L2::cache_hint");
    let is_multicast = modifiers.take("multicast::cluster");
    if is_multicast && modifiers.rest.first() != Some(&"shared::cluster") {
        return unsupported(written);
    }
    let (to_shared, source) = match modifiers.rest.as_slice() {
        ["commit_group"] if !has_hint && written.operands.is_empty() => return Ok(Form::Nothing),
        ["wait_group"] | ["wait_group", "read"] if !has_hint => {
            return match operands(written)? {
                [Operand::Integer(0..)] => Ok(Form::Nothing),
                _ => unsupported(written),
            };
        }
        ["prefetch", "L2", "global"] if !has_hint => {
            let [_, _] = operands(written)?;
            return Ok(Form::Nothing);
        }
        ["shared::cta" | "shared::cluster", "global", "mbarrier::complete_tx::bytes"] => {
            (true, Space::Global)
        }
        ["shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes"] if !has_hint && !is_multicast => {
            (true, Space::Shared)
        }
        ["global", "shared::cta", "bulk_group"] => (false, Space::Shared),
        _ => return unsupported(written),
    };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(to), Some(from), Some(bytes)) = (operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let mbarrier = if to_shared { operands.next() } else { None };
    let blocks = if is_multicast { operands.next() } else { None };
    let policy = if has_hint { operands.next() } else { None };
    let are_all = mbarrier.is_some() == to_shared
        && blocks.is_some() == is_multicast
        && policy.is_some() == has_hint
        && operands.next().is_none();
    match are_all {
        true => Ok(Form::BulkCopy(BulkCopy { to, from, source, bytes, mbarrier, blocks, policy })),
        false => wrong_number(written),
    }
}

/// `cp.reduce.async.bulk`
///
/// ```text
/// cp.reduce.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}.redOp.type
///     [dstMem], [srcMem], size{, cache-policy};
/// cp.reduce.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}.add.noftz.type  (.f16, .bf16)
/// cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.redOp.type
///     [dstMem], [srcMem], size, [mbar];
/// .redOp = { .and, .or, .xor, .add, .inc, .dec, .min, .max };
/// .type = { .f16, .bf16, .b32, .u32, .s32, .b64, .u64, .s64, .f32, .f64 };      (in shared memory no floats)
/// ```
pub(super) fn reduction<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let type_ = modifiers.kind()?;
    let has_hint = modifiers.take("L2::cache_hint");
    let op = modifiers.choose(|name| atomic_op(name).filter(|op| op.reduces()));
    let is_half = matches!(type_, Type::F16 | Type::Bf16);
    // The manual writes `.noftz` for additions only.
    if modifiers.take("noftz") != (is_half && op == Some(AtomicOp::Add)) {
        return modifiers.unsupported();
    }
    let kind = op.and_then(|op| match (op, type_) {
        (AtomicOp::Min | AtomicOp::Max, Type::F16) => Some(AtomicType::F16),
        (AtomicOp::Min | AtomicOp::Max, Type::Bf16) => Some(AtomicType::Bf16),
        _ => atomic_type(op, type_),
    });
    let in_shared = match modifiers.rest.as_slice() {
        ["reduce", "async", "bulk", "global", "shared::cta", "bulk_group"] => false,
        ["reduce", "async", "bulk", "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes"]
            if !has_hint && !type_.is_float() =>
        {
            true
        }
        _ => return modifiers.unsupported(),
    };
    let (Some(op), Some(kind)) = (op, kind) else { return modifiers.unsupported() };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(to), Some(from), Some(bytes)) = (operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let mbarrier = if in_shared { operands.next() } else { None };
    let policy = if has_hint { operands.next() } else { None };
    if mbarrier.is_some() != in_shared || policy.is_some() != has_hint || operands.next().is_some() {
        return wrong_number(written);
    }
    Ok(Form::BulkReduction { to, from, bytes, mbarrier, op, kind, policy })
}
