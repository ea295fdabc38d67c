//! Extended-Precision Integer Arithmetic Instructions: multi-word numbers.

use super::modifiers::{Modifiers, Resolution, destination_and_sources, unsupported};
use crate::instruction::CarryOp;
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`
///
/// ```text
/// add.cc.type           d, a, b;      addc{.cc}.type           d, a, b;
/// sub.cc.type           d, a, b;      subc{.cc}.type           d, a, b;
/// mad{.hi,.lo}.cc.type  d, a, b, c;   madc{.hi,.lo}{.cc}.type  d, a, b, c;
/// .type = { .u32, .s32, .u64, .s64 };
/// ```
pub(super) fn carry<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    use Opcode::{Add, Addc, Mad, Madc, Sub, Subc};
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let writes = modifiers.take("cc");
    let is_high = modifiers.take("hi");
    let is_low = modifiers.take("lo");
    modifiers.finish()?;
    let is_product = matches!(opcode, Mad | Madc);
    let is_integer = matches!(kind, Type::U32 | Type::S32 | Type::U64 | Type::S64);
    if !is_integer || is_product != (is_high ^ is_low) {
        return unsupported(written);
    }
    let op = match opcode {
        Add | Addc => CarryOp::Add,
        Sub | Subc => CarryOp::Sub,
        _ if !is_high => CarryOp::MadLow,
        _ if kind.is_signed() => CarryOp::MadHighS,
        _ => CarryOp::MadHighU,
    };
    let reads = matches!(opcode, Addc | Subc | Madc);
    let (d, sources) = destination_and_sources(written, if is_product { 3 } else { 2 })?;
    Ok(Form::Carry { op, kind, reads, writes, d, sources })
}
