//! Parallel Synchronization and Communication Instructions: `mbarrier`.

use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{NarrowOp, Space};
use crate::resolved::{Form, MbarrierOperands};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// `mbarrier`
///
/// ```text
/// mbarrier.init{.shared{::cta}}.b64   [addr], count;
/// mbarrier.inval{.shared{::cta}}.b64  [addr];
/// mbarrier.expect_tx{.relaxed.scope}{.space}.b64    [addr], txCount;
/// mbarrier.complete_tx{.relaxed.scope}{.space}.b64  [addr], txCount;
/// .space = { .shared{::cta}, .shared::cluster };  .scope = { .cta, .cluster };
///
/// mbarrier.arrive{.sem.scope}{.shared{::cta}}.b64                   state, [addr]{, count};
/// mbarrier.arrive{.sem.scope}{.shared::cluster}.b64                 _, [addr]{, count};
/// mbarrier.arrive.expect_tx{.sem.scope}{.shared{::cta}}.b64         state, [addr], txCount;
/// mbarrier.arrive.expect_tx{.sem.scope}{.shared::cluster}.b64       _, [addr], txCount;
/// mbarrier.arrive.noComplete{.release.cta}{.shared{::cta}}.b64      state, [addr], count;
/// .sem = { .release, .relaxed };  .scope = { .cta, .cluster };      (arrive_drop the same)
///
/// mbarrier.test_wait{.sem.scope}{.shared{::cta}}.b64         waitComplete, [addr], state;
/// mbarrier.test_wait.parity{.sem.scope}{.shared{::cta}}.b64  waitComplete, [addr], phaseParity;
/// mbarrier.try_wait{.sem.scope}{.shared{::cta}}.b64          waitComplete, [addr], state{, suspendTimeHint};
/// mbarrier.try_wait.parity{.sem.scope}{.shared{::cta}}.b64   waitComplete, [addr], phaseParity{, suspendTimeHint};
/// .sem = { .acquire, .relaxed };  .scope = { .cta, .cluster };
///
/// mbarrier.pending_count.b64  count, state;
/// ```
pub(super) fn mbarrier<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    if modifiers.rest.len() < 2 || modifiers.rest.pop() != Some("b64") {
        return unsupported(written);
    }
    match modifiers.rest.remove(0) {
        "init" => {
            let (space, _) = only_space(modifiers, false)?;
            let [address, count] = operands(written)?;
            Ok(Form::Mbarrier { op: MbarrierOperands::Init { count }, space, address })
        }
        "inval" => {
            let (space, _) = only_space(modifiers, false)?;
            let [address] = operands(written)?;
            Ok(Form::Mbarrier { op: MbarrierOperands::Invalidate, space, address })
        }
        name @ ("expect_tx" | "complete_tx") => {
            ordering(&mut modifiers, None)?;
            let (space, _) = only_space(modifiers, true)?;
            let [address, transactions] = operands(written)?;
            let op = match name {
                "expect_tx" => MbarrierOperands::Expect { transactions },
                _ => MbarrierOperands::Complete { transactions },
            };
            Ok(Form::Mbarrier { op, space, address })
        }
        "arrive" => arrive(written, false),
        "arrive_drop" => arrive(written, true),
        "test_wait" => test(written, false),
        "try_wait" => test(written, true),
        "pending_count" => {
            modifiers.finish()?;
            let [d, a] = operands(written)?;
            // The lower half of a state is the pending count.
            Ok(Form::Narrow { op: NarrowOp::Low, kind: Type::B64, d, a })
        }
        _ => unsupported(written),
    }
}

fn arrive<'a>(written: &mut Written<'a>, drops: bool) -> Resolution<Form<'a>> {
    let mut modifiers = after_name(written);
    let (expects, completes) = (modifiers.take("expect_tx"), !modifiers.take("noComplete"));
    if !completes && (expects || modifiers.rest.iter().any(|name| matches!(*name, "relaxed" | "cluster"))) {
        return modifiers.unsupported();
    }
    let releases = ordering(&mut modifiers, Some("release"))?;
    let (space, in_cluster) = only_space(modifiers, completes)?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(state), Some(address), count, None) =
        (operands.next(), operands.next(), operands.next(), operands.next())
    else {
        return wrong_number(written);
    };
    if in_cluster && state != Operand::Sink {
        return Err(format!("`{}` returns no state: its destination must be `_`", written.name()));
    }
    if count.is_none() && (expects || !completes) {
        return wrong_number(written);
    }
    let one = Operand::Integer(1);
    let (count, transactions) = if expects { (one, count) } else { (count.unwrap_or(one), None) };
    let op = MbarrierOperands::Arrive { state, count, transactions, drops, completes, releases };
    Ok(Form::Mbarrier { op, space, address })
}

fn test<'a>(written: &mut Written<'a>, may_suspend: bool) -> Resolution<Form<'a>> {
    let mut modifiers = after_name(written);
    let by_parity = modifiers.take("parity");
    let acquires = ordering(&mut modifiers, Some("acquire"))?;
    let (space, _) = only_space(modifiers, false)?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(d), Some(address), Some(phase), time, None) =
        (operands.next(), operands.next(), operands.next(), operands.next(), operands.next())
    else {
        return wrong_number(written);
    };
    if time.is_some() && !may_suspend {
        return wrong_number(written);
    }
    let op = MbarrierOperands::Test { d, phase, by_parity, acquires, time };
    Ok(Form::Mbarrier { op, space, address })
}

/// `cp.async.mbarrier.arrive`
///
/// ```text
/// cp.async.mbarrier.arrive{.noinc}{.shared{::cta}}.b64  [addr];
/// ```
pub(super) fn arrive_after_copies<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let ["async", "mbarrier", "arrive", .., "b64"] = modifiers.rest.as_slice() else {
        return unsupported(written);
    };
    modifiers.rest.pop();
    modifiers.rest.drain(..3);
    let increments = !modifiers.take("noinc");
    let (space, _) = only_space(modifiers, false)?;
    let [address] = operands(written)?;
    Ok(Form::Mbarrier { op: MbarrierOperands::ArriveAfterCopies { increments }, space, address })
}

/// Returns the modifiers between the name of the operation and the type.
fn after_name<'r, 'a>(written: &'r Written<'a>) -> Modifiers<'r, 'a> {
    let mut modifiers = Modifiers::of(written);
    modifiers.rest.pop();
    modifiers.rest.remove(0);
    modifiers
}

/// Takes `.sem.scope`. Returns whether the operation orders memory accesses, which it does by default if `strong` is a
/// semantics that it can have.
fn ordering(modifiers: &mut Modifiers<'_, '_>, strong: Option<&str>) -> Resolution<bool> {
    let orders = modifiers.choose(|name| match name {
        "relaxed" => Some(false),
        name if Some(name) == strong => Some(true),
        _ => None,
    });
    let scope = modifiers.choose(|name| matches!(name, "cta" | "cluster").then_some(()));
    match orders.is_some() == scope.is_some() {
        true => Ok(orders.unwrap_or(strong.is_some())),
        false => modifiers.unsupported(),
    }
}

/// Takes the state space, and rejects any other modifiers. Returns the state space, and whether it is the cluster's.
fn only_space(mut modifiers: Modifiers<'_, '_>, may_be_cluster: bool) -> Resolution<(Space, bool)> {
    let space = modifiers.choose(|name| match name {
        "shared" | "shared::cta" => Some((Space::Shared, false)),
        "shared::cluster" if may_be_cluster => Some((Space::Shared, true)),
        _ => None,
    });
    modifiers.finish()?;
    Ok(space.unwrap_or((Space::Generic, false)))
}
