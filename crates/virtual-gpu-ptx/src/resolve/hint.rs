//! Instructions that advise the hardware and change no result.

use super::modifiers::{Resolution, operands, unsupported, wrong_number};
use crate::resolved::Form;
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// The value of every cache policy. The manual leaves its contents open.
const POLICY: i64 = 0;

/// Data Movement and Conversion Instructions: `createpolicy`
///
/// ```text
/// createpolicy.fractional.L2::evict{.L2::evict_unchanged | .L2::evict_first}.b64  policy{, fraction};
/// createpolicy.cvt.L2.b64  policy, access-property;
/// .L2::evict = { .L2::evict_last, .L2::evict_normal, .L2::evict_first, .L2::evict_unchanged };
/// ```
pub(super) fn createpolicy<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let names = ["L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"];
    let (least, most) = match written.modifiers.as_slice() {
        ["fractional", first, "b64"] if names.contains(first) => (1, 2),
        ["fractional", first, "L2::evict_unchanged" | "L2::evict_first", "b64"] if names.contains(first) => {
            (1, 2)
        }
        ["cvt", "L2", "b64"] => (2, 2),
        _ => return unsupported(written),
    };
    if !(least..=most).contains(&written.operands.len()) {
        return wrong_number(written);
    }
    Ok(Form::Move { kind: Type::B64, d: written.operands.remove(0), a: Operand::Integer(POLICY) })
}

/// Data Movement and Conversion Instructions: `applypriority`
///
/// ```text
/// applypriority{.global}.L2::evict_normal  [a], 128;
/// ```
pub(super) fn applypriority<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["L2::evict_normal"] | ["global", "L2::evict_normal"] => {}
        _ => return unsupported(written),
    }
    match operands(written)? {
        [_, Operand::Integer(128)] => Ok(Form::Nothing),
        _ => unsupported(written),
    }
}

/// Parallel Synchronization and Communication Instructions: `griddepcontrol`. A kernel starts only after those before it in
/// its stream are complete, so there is nothing to wait for.
///
/// ```text
/// griddepcontrol.action;    .action = { .launch_dependents, .wait };
/// ```
pub(super) fn griddepcontrol<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["launch_dependents" | "wait"] => operands(written).map(|[]| Form::Nothing),
        _ => unsupported(written),
    }
}

/// Miscellaneous Instructions: `setmaxnreg`. Registers are not allocated.
///
/// ```text
/// setmaxnreg.action.sync.aligned.u32  imm-reg-count;    .action = { .inc, .dec };
/// ```
pub(super) fn setmaxnreg<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let ["inc" | "dec", "sync", "aligned", "u32"] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    match operands(written)? {
        [Operand::Integer(count)] if (24..=256).contains(&count) && count % 8 == 0 => Ok(Form::Nothing),
        _ => Err(format!("`{}` takes a multiple of 8 from 24 to 256", written.name())),
    }
}
