//! Parallel Synchronization and Communication Instructions: barriers and fences.

use super::memory::scope_named;
use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{Fence, Reduction, Scope};
use crate::opcode::Opcode;
use crate::resolved::{BarrierReduction, Form};
use crate::syntax::Written;

/// `bar`, `barrier`, `bar.warp.sync`
///
/// ```text
/// barrier{.cta}.sync{.aligned}     a{, b};      bar{.cta}.sync    a{, b};
/// barrier{.cta}.arrive{.aligned}   a, b;        bar{.cta}.arrive  a, b;
/// barrier{.cta}.red.popc{.aligned}.u32   d, a{, b}, {!}c;    bar{.cta}.red.popc.u32   d, a{, b}, {!}c;
/// barrier{.cta}.red.op{.aligned}.pred    p, a{, b}, {!}c;    bar{.cta}.red.op.pred    p, a{, b}, {!}c;
/// .op = { .and, .or };
/// bar.warp.sync  membermask;
/// ```
pub(super) fn barrier<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    if let (Opcode::Bar, ["warp", "sync"]) = (opcode, written.modifiers.as_slice()) {
        let [members] = operands(written)?;
        return Ok(Form::WarpBarrier { members });
    }
    let mut modifiers = Modifiers::of(written);
    modifiers.take("cta");
    let aligned = opcode == Opcode::Bar || modifiers.take("aligned");
    let arrives_only = match modifiers.rest.as_slice() {
        ["sync"] => false,
        ["arrive"] => true,
        ["red", op, kind] => {
            let (op, kind) = (*op, *kind);
            return reduce(op, kind, aligned, written);
        }
        _ => return unsupported(written),
    };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    match (operands.next(), operands.next(), operands.next()) {
        (Some(id), threads, None) if threads.is_some() || !arrives_only => {
            Ok(Form::Barrier { id, threads, arrives_only, aligned, reduction: None })
        }
        _ => wrong_number(written),
    }
}

fn reduce<'a>(op: &str, kind: &str, aligned: bool, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let reduction = match (op, kind) {
        ("popc", "u32") => Reduction::Count,
        ("and", "pred") => Reduction::All,
        ("or", "pred") => Reduction::Any,
        _ => return unsupported(written),
    };
    let mut operands = std::mem::take(&mut written.operands);
    let condition = operands.pop();
    let mut operands = operands.into_iter();
    match (operands.next(), operands.next(), operands.next(), operands.next(), condition) {
        (Some(d), Some(id), threads, None, Some(condition)) => {
            let reduction = Some(BarrierReduction { reduction, d, condition });
            Ok(Form::Barrier { id, threads, arrives_only: false, aligned, reduction })
        }
        _ => wrong_number(written),
    }
}

/// `membar`
///
/// ```text
/// membar.level;    .level = { .cta, .gl, .sys };
/// ```
pub(super) fn membar<'a>(written: &Written<'a>) -> Resolution<Form<'a>> {
    let scope = match written.modifiers.as_slice() {
        ["cta"] => Scope::Block,
        ["gl"] => Scope::Gpu,
        ["sys"] => Scope::System,
        _ => return unsupported(written),
    };
    // The manual calls `membar` a synonym of `fence.sc`.
    Ok(Form::Fence(Fence { scope, acquires: true, releases: true, is_sequential: true, is_implied: false }))
}

/// `fence`
///
/// ```text
/// fence{.sem}.scope;    .sem = { .sc, .acq_rel, .acquire, .release };  .scope = { .cta, .cluster, .gpu, .sys };
/// fence.mbarrier_init.release.cluster;
/// fence.proxy.tensormap::generic.release.scope;
/// fence.proxy.tensormap::generic.acquire.scope  [addr], size;
/// fence.proxy.proxykind;    .proxykind = { .alias, .async, .async.global, .async.shared::{cta, cluster} };
/// ```
pub(super) fn fence<'a>(written: &Written<'a>) -> Resolution<Form<'a>> {
    let (order, scope) = match written.modifiers.as_slice() {
        // libcu++ writes the scope first, which the manual doesn't show. ptxas accepts it.
        [order @ ("sc" | "acq_rel" | "acquire" | "release"), scope]
        | [scope, order @ ("sc" | "acq_rel" | "acquire" | "release")] => (*order, *scope),
        [scope] => ("acq_rel", *scope),
        ["mbarrier_init", "release", "cluster"] => ("release", "cluster"),
        // Every access sees the same memory here.
        ["proxy", "alias" | "async"] | ["proxy", "async", "global" | "shared::cta" | "shared::cluster"] => {
            return Ok(Form::Nothing);
        }
        // The same for tensor maps, which the manual orders after `tensormap.replace` only.
        ["proxy", "tensormap::generic", "acquire" | "release", scope] if scope_named(scope).is_some() => {
            return Ok(Form::Nothing);
        }
        _ => return unsupported(written),
    };
    let Some(scope) = scope_named(scope) else { return unsupported(written) };
    let (acquires, releases) = (order != "release", order != "acquire");
    Ok(Form::Fence(Fence { scope, acquires, releases, is_sequential: order == "sc", is_implied: false }))
}
