//! Control Flow Instructions, and Miscellaneous Instructions.

use super::modifiers::{Modifiers, Resolution, operands, unsupported};
use crate::resolved::{Call, Form};
use crate::syntax::{Operand, Written};

/// `bra`
///
/// ```text
/// @p  bra{.uni}  tgt;    bra{.uni}  tgt;
/// ```
pub(super) fn bra<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    modifiers.take("uni");
    modifiers.finish()?;
    let [target] = operands(written)?;
    Ok(Form::Branch { target })
}

/// `brx.idx`: a branch to one of the labels in a list.
///
/// ```text
/// @p  brx.idx{.uni}  index, tlist;    brx.idx{.uni}  index, tlist;
/// ```
pub(super) fn brx<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let is_indexed = modifiers.take("idx");
    modifiers.take("uni");
    modifiers.finish()?;
    match (operands(written)?, is_indexed) {
        ([index, Operand::Name { name: list, .. }], true) => Ok(Form::IndexedBranch { index, list }),
        _ => unsupported(written),
    }
}

/// `call`, direct or through a register
///
/// ```text
/// call{.uni}  (ret-param), func, (param-list);            call{.uni}  func, (param-list);            call{.uni}  func;
/// call{.uni}  (ret-param), fptr, (param-list), flist;     call{.uni}  fptr, (param-list), flist;     call{.uni}  fptr, flist;
/// call{.uni}  (ret-param), fptr, (param-list), fproto;    call{.uni}  fptr, (param-list), fproto;    call{.uni}  fptr, fproto;
/// ```
pub(super) fn call<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    modifiers.take("uni");
    modifiers.finish()?;
    let mut operands = std::mem::take(&mut written.operands);
    let returns = match operands.first_mut() {
        Some(Operand::List(returns)) => {
            let returns = std::mem::take(returns);
            operands.remove(0);
            returns
        }
        _ => Vec::new(),
    };
    let count = operands.len();
    let mut operands = operands.into_iter();
    let Some(Operand::Name { name, component: None, offset: 0 }) = operands.next() else {
        return Err("unsupported form of `call`".to_owned());
    };
    let arguments = match operands.next() {
        None => Vec::new(),
        // If the name is a register, a prototype or a list of targets follows.
        Some(Operand::List(arguments)) if count <= 3 => arguments,
        Some(Operand::Name { .. }) if count == 2 => Vec::new(),
        Some(_) => return Err("unsupported form of `call`".to_owned()),
    };
    Ok(Form::Call(Call { name, returns, arguments }))
}

/// `ret`
///
/// ```text
/// ret{.uni};
/// ```
pub(super) fn ret<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let [] = operands(written)?;
    let mut modifiers = Modifiers::of(written);
    modifiers.take("uni");
    modifiers.finish()?;
    Ok(Form::Return)
}

/// `exit` and, of the Miscellaneous Instructions, `trap`
///
/// ```text
/// exit;    trap;
/// ```
pub(super) fn alone<'a>(written: &mut Written<'a>, form: Form<'a>) -> Resolution<Form<'a>> {
    let [] = operands(written)?;
    Modifiers::of(written).finish()?;
    Ok(form)
}

/// Miscellaneous Instructions: `nanosleep`
///
/// ```text
/// nanosleep.u32  t;
/// ```
pub(super) fn nanosleep<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match (written.modifiers.as_slice(), written.operands.len()) {
        (["u32"], 1) => {
            let [time] = operands(written)?;
            Ok(Form::Sleep { time })
        }
        _ => unsupported(written),
    }
}
