//! Data Movement and Conversion Instructions: Bulk copy.

use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::resolved::Form;
use crate::syntax::{Operand, Written};

/// `cp.async.bulk`, `cp.async.bulk.prefetch`, `cp.async.bulk.commit_group`, `cp.async.bulk.wait_group`. A block is a
/// cluster of its own, so `.shared::cluster` is its own shared memory.
///
/// ```text
/// cp.async.bulk.dst.global.mbarrier::complete_tx::bytes{.L2::cache_hint}  [dstMem], [srcMem], size, [mbar]{, cache-policy};
/// .dst = { .shared::cta, .shared::cluster };
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
    let to_shared = match modifiers.rest.as_slice() {
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
        ["shared::cta" | "shared::cluster", "global", "mbarrier::complete_tx::bytes"] => true,
        ["global", "shared::cta", "bulk_group"] => false,
        _ => return unsupported(written),
    };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(to), Some(from), Some(bytes)) = (operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let mbarrier = if to_shared { operands.next() } else { None };
    let policy = if has_hint { operands.next() } else { None };
    if mbarrier.is_some() != to_shared || policy.is_some() != has_hint || operands.next().is_some() {
        return wrong_number(written);
    }
    Ok(Form::BulkCopy { to, from, bytes, mbarrier, policy })
}
