//! Data Movement and Conversion Instructions: Tensor copy.

use super::memory::atomic_op;
use super::modifiers::{Modifiers, Resolution, unsupported, wrong_number};
use crate::resolved::{Form, TensorCopy};
use crate::syntax::{Operand, Written};

/// `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`, `cp.async.bulk.prefetch.tensor`
///
/// ```text
/// cp.async.bulk.tensor.dim.dst.global{.load_mode}.mbarrier::complete_tx::bytes{.multicast::cluster}{.L2::cache_hint}
///     [dstMem], [tensorMap, tensorCoords], [mbar]{, im2colOffsets}{, ctaMask}{, cache-policy};
/// .dst = { .shared::cta, .shared::cluster };      (.multicast::cluster only with .shared::cluster)
/// .load_mode = { .tile, .im2col };
///
/// cp.async.bulk.tensor.dim.global.shared::cta{.store_mode}.bulk_group{.L2::cache_hint}
///     [tensorMap, tensorCoords], [srcMem]{, cache-policy};
/// cp.reduce.async.bulk.tensor.dim.global.shared::cta.redOp{.store_mode}.bulk_group{.L2::cache_hint}
///     [tensorMap, tensorCoords], [srcMem]{, cache-policy};
/// .store_mode = { .tile, .im2col_no_offs };  .redOp = { .add, .min, .max, .inc, .dec, .and, .or, .xor };
///
/// cp.async.bulk.prefetch.tensor.dim.L2.global{.load_mode}{.L2::cache_hint}
///     [tensorMap, tensorCoords]{, im2colOffsets}{, cache-policy};
/// .dim = { .1d, .2d, .3d, .4d, .5d };
/// ```
pub(super) fn copy<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let reduces = modifiers.take("reduce");
    if !(modifiers.take("async") && modifiers.take("bulk")) {
        return modifiers.unsupported();
    }
    let prefetches = modifiers.take("prefetch");
    if !modifiers.take("tensor") {
        return modifiers.unsupported();
    }
    let Some(rank) = modifiers.choose(|name| match name.as_bytes() {
        [rank @ b'1'..=b'5', b'd'] => Some(usize::from(rank - b'0')),
        _ => None,
    }) else {
        return modifiers.unsupported();
    };
    let has_hint = modifiers.take("L2::cache_hint");
    let is_multicast = modifiers.take("multicast::cluster");
    if is_multicast && modifiers.rest.first() != Some(&"shared::cluster") {
        return unsupported(written);
    }
    let op = if reduces { modifiers.choose(|name| atomic_op(name).filter(|op| op.reduces())) } else { None };
    let modes = ["tile", "im2col", "im2col_no_offs"];
    let mode = modifiers.choose(|name| modes.into_iter().find(|mode| *mode == name)).unwrap_or("tile");
    let is_im2col = mode != "tile";
    let loads = match (modifiers.rest.as_slice(), reduces, prefetches) {
        (["shared::cta" | "shared::cluster", "global", "mbarrier::complete_tx::bytes"], false, false) => true,
        (["L2", "global"], false, true) => false,
        (["global", "shared::cta", "bulk_group"], _, false) if op.is_some() == reduces => false,
        _ => return unsupported(written),
    };
    let reads = loads || prefetches;
    let fits = match mode {
        "im2col" => reads && rank >= 3,
        "im2col_no_offs" => !reads && rank >= 3,
        _ => true,
    };
    if !fits {
        return unsupported(written);
    }
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let to = if loads { operands.next() } else { None };
    let map = operands.next();
    let from = if reads { None } else { operands.next() };
    let mbarrier = if loads { operands.next() } else { None };
    let offsets = match (reads && is_im2col).then(|| operands.next()) {
        Some(Some(Operand::Vector(offsets))) if offsets.len() == rank - 2 => offsets,
        None => Vec::new(),
        _ => return wrong_number(written),
    };
    let blocks = if is_multicast { operands.next() } else { None };
    let policy = if has_hint { operands.next() } else { None };
    let (Some(Operand::Compound { name, offset, coordinates }), None) = (map, operands.next()) else {
        return wrong_number(written);
    };
    if blocks.is_some() != is_multicast
        || policy.is_some() != has_hint
        || coordinates.len() != rank
        || mbarrier.is_some() != loads
    {
        return wrong_number(written);
    }
    if prefetches {
        return Ok(Form::Nothing);
    }
    let Some(shared) = to.or(from) else { return wrong_number(written) };
    let map = Operand::Address { name: Some(name), offset };
    let copy = TensorCopy { map, coordinates, is_im2col, offsets, shared, mbarrier, blocks, op, policy };
    Ok(Form::TensorCopy(copy))
}
