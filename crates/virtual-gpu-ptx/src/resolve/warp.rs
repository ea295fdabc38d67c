//! Instructions that the lanes of a warp execute together.

use super::modifiers::{Resolution, operands, unsupported};
use crate::instruction::{ShuffleMode, VoteMode, WordOp};
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

/// Data Movement and Conversion Instructions: `shfl.sync`
///
/// ```text
/// shfl.sync.mode.b32  d[|p], a, b, c, membermask;    .mode = { .up, .down, .bfly, .idx };
/// ```
pub(super) fn shfl<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let ["sync", mode, "b32"] = written.modifiers.as_slice() else { return unsupported(written) };
    let mode = match *mode {
        "up" => ShuffleMode::Up,
        "down" => ShuffleMode::Down,
        "bfly" => ShuffleMode::Butterfly,
        "idx" => ShuffleMode::Index,
        _ => return unsupported(written),
    };
    let [d, a, b, c, members] = operands(written)?;
    Ok(Form::Shuffle { mode, d, sources: [a, b, c, members] })
}

/// Parallel Synchronization and Communication Instructions: `vote.sync`
///
/// ```text
/// vote.sync.mode.pred   d, {!}a, membermask;    .mode = { .all, .any, .uni };
/// vote.sync.ballot.b32  d, {!}a, membermask;
/// ```
pub(super) fn vote<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let operands = operands(written)?;
    let mode = match written.modifiers.as_slice() {
        ["sync", "ballot", "b32"] => VoteMode::Ballot,
        ["sync", "all", "pred"] => VoteMode::All,
        ["sync", "any", "pred"] => VoteMode::Any,
        ["sync", "uni", "pred"] => VoteMode::Uniform,
        _ => return unsupported(written),
    };
    Ok(Form::Vote { mode, operands })
}

/// Parallel Synchronization and Communication Instructions: `match.sync`
///
/// ```text
/// match.any.sync.type  d, a, membermask;    match.all.sync.type  d[|p], a, membermask;    .type = { .b32, .b64 };
/// ```
pub(super) fn match_<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (all, kind) = match written.modifiers.as_slice() {
        ["any", "sync", "b32"] => (false, Type::B32),
        ["any", "sync", "b64"] => (false, Type::B64),
        ["all", "sync", "b32"] => (true, Type::B32),
        ["all", "sync", "b64"] => (true, Type::B64),
        _ => return unsupported(written),
    };
    Ok(Form::Match { all, kind, operands: operands(written)? })
}

/// Parallel Synchronization and Communication Instructions: `redux.sync`
///
/// ```text
/// redux.sync.op.type   dst, src, membermask;    .op = { .add, .min, .max };  .type = { .u32, .s32 };
/// redux.sync.op.b32    dst, src, membermask;    .op = { .and, .or, .xor };
/// ```
pub(super) fn redux<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let op = match written.modifiers.as_slice() {
        ["sync", "add", "u32" | "s32"] => WordOp::Add,
        ["sync", "min", "u32"] => WordOp::MinU,
        ["sync", "min", "s32"] => WordOp::MinS,
        ["sync", "max", "u32"] => WordOp::MaxU,
        ["sync", "max", "s32"] => WordOp::MaxS,
        ["sync", "and", "b32"] => WordOp::And,
        ["sync", "or", "b32"] => WordOp::Or,
        ["sync", "xor", "b32"] => WordOp::Xor,
        _ => return unsupported(written),
    };
    Ok(Form::Redux { op, operands: operands(written)? })
}

/// Parallel Synchronization and Communication Instructions: `elect.sync`
///
/// ```text
/// elect.sync  d|p, membermask;
/// ```
pub(super) fn elect<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let ["sync"] = written.modifiers.as_slice() else { return unsupported(written) };
    Ok(Form::Elect { operands: operands(written)? })
}

/// Parallel Synchronization and Communication Instructions: `activemask`
///
/// ```text
/// activemask.b32  d;
/// ```
pub(super) fn activemask<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match (written.modifiers.as_slice(), written.operands.len()) {
        (["b32"], 1) => {
            let [d] = operands(written)?;
            Ok(Form::ActiveMask { d })
        }
        _ => unsupported(written),
    }
}
