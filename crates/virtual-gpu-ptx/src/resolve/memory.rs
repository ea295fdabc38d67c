//! Loads, stores, atomics, asynchronous copies.

use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{AtomicOp, AtomicType, Space};
use crate::resolved::{Atomic, Form, MemoryAccess};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// The state space that a modifier names.
pub(super) fn space_named(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

/// The modifiers of a load or store, and how many elements it has.
fn access(written: &Written<'_>) -> Resolution<(MemoryAccess, usize)> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let (acquires, releases) = (modifiers.take("acquire"), modifiers.take("release"));
    let is_atomic = modifiers.take("relaxed") || acquires || releases;
    let communicates = modifiers.take("volatile") | modifiers.take("mmio") | is_atomic;
    for hint in ["weak", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "cta", "gpu", "sys", "cluster"] {
        modifiers.take(hint);
    }
    modifiers.choose(|name| {
        (name.starts_with("L1::") || name.starts_with("L2::") && !name.contains("cache_hint")).then_some(())
    });
    let elements = modifiers.choose(|name| match name {
        "v2" => Some(2),
        "v4" => Some(4),
        _ => None,
    });
    let space = modifiers.choose(space_named).unwrap_or(Space::Generic);
    if kind == Type::Pred {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    let access = MemoryAccess { space, kind, communicates, is_atomic, acquires, releases };
    Ok((access, elements.unwrap_or(1)))
}

/// The elements of a vector, or a single one.
fn elements(operand: Operand<'_>) -> Vec<Operand<'_>> {
    match operand {
        Operand::Vector(elements) => elements,
        single => vec![single],
    }
}

/// Data Movement and Conversion Instructions: `ld`, `ld.global.nc`, `ldu`
///
/// ```text
/// ld{.weak}{.ss}{.cop}{.level::prefetch_size}{.vec}.type  d, [a];
/// ld.volatile{.ss}{.vec}.type                     d, [a];
/// ld.relaxed.scope{.ss}{.level::…}{.vec}.type     d, [a];
/// ld.acquire.scope{.ss}{.level::…}{.vec}.type     d, [a];
/// ld.mmio.relaxed.sys{.global}.type               d, [a];
/// ld.global{.cop}.nc{.level::…}{.vec}.type        d, [a];
/// ldu{.ss}{.vec}.type                             d, [a];
/// .ss = { .const, .global, .local, .param{::entry, ::func}, .shared{::cta} };  .vec = { .v2, .v4 };
/// .type = { .b8, .b16, .b32, .b64, .u8, .u16, .u32, .u64, .s8, .s16, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn ld<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (access, count) = access(written)?;
    let [d, address] = operands(written)?;
    let values = elements(d);
    match values.len() == count {
        true => Ok(Form::Load { access, values, address }),
        false => Err(format!("`{}` has the wrong number of destinations", written.name())),
    }
}

/// Data Movement and Conversion Instructions: `st`
///
/// ```text
/// st{.weak}{.ss}{.cop}{.vec}.type     [a], b;
/// st.volatile{.ss}{.vec}.type         [a], b;
/// st.relaxed.scope{.ss}{.vec}.type    [a], b;
/// st.release.scope{.ss}{.vec}.type    [a], b;
/// st.mmio.relaxed.sys{.global}.type   [a], b;
/// .ss = { .global, .local, .param::func, .shared{::cta} };  .vec and .type as for ld
/// ```
pub(super) fn st<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (access, count) = access(written)?;
    let [address, source] = operands(written)?;
    let values = elements(source);
    match values.len() == count {
        true => Ok(Form::Store { access, values, address }),
        false => Err(format!("`{}` has the wrong number of sources", written.name())),
    }
}

/// Parallel Synchronization and Communication Instructions: `atom`, `red`
///
/// ```text
/// atom{.sem}{.scope}{.space}.op.type      d, [a], b;       red{.sem}{.scope}{.space}.op.type   [a], b;
/// atom{.sem}{.scope}{.space}.cas.type     d, [a], b, c;
/// atom{.sem}{.scope}{.space}.add{.noftz}.type  d, [a], b;  .type = { .f16, .f16x2, .bf16, .bf16x2 };
/// .sem = { .relaxed, .acquire, .release, .acq_rel };  .scope = { .cta, .gpu, .sys };  .space = { .global, .shared{::cta} };
/// .op = { .and, .or, .xor, .exch, .add, .inc, .dec, .min, .max };
/// .type = { .b16, .b32, .b64, .u32, .u64, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn atomic<'a>(written: &mut Written<'a>, returns: bool) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let both = modifiers.take("acq_rel");
    let (acquires, releases) = (modifiers.take("acquire") | both, modifiers.take("release") | both);
    for order in ["relaxed", "cta", "gpu", "sys", "noftz"] {
        modifiers.take(order);
    }
    let space = modifiers.choose(space_named).unwrap_or(Space::Generic);
    let op = modifiers.choose(atomic_op);
    let atomic_type = op.and_then(|op| atomic_type(op, kind));
    let (Some(op), Some(atomic_type), Space::Generic | Space::Global | Space::Shared) =
        (op, atomic_type, space)
    else {
        return unsupported(written);
    };
    modifiers.finish()?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let d = match returns {
        true if operands.len() == 0 => return unsupported(written),
        true => operands.next(),
        false => None,
    };
    let (address, a, b, None) = (operands.next(), operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let (Some(address), Some(a), true) = (address, a, b.is_some() == (op == AtomicOp::Cas)) else {
        return wrong_number(written);
    };
    Ok(Form::Atomic(Atomic { op, atomic_type, kind, space, acquires, releases, d, address, a, b }))
}

fn atomic_op(name: &str) -> Option<AtomicOp> {
    Some(match name {
        "add" => AtomicOp::Add,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "exch" => AtomicOp::Exch,
        "cas" => AtomicOp::Cas,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "inc" => AtomicOp::Inc,
        "dec" => AtomicOp::Dec,
        _ => return None,
    })
}

/// The types that each atomic operation takes.
fn atomic_type(op: AtomicOp, kind: Type) -> Option<AtomicType> {
    use AtomicOp::{Add, And, Cas, Dec, Exch, Inc, Max, Min, Or, Xor};
    Some(match (op, kind) {
        (And | Or | Xor | Exch | Cas, Type::B32) => AtomicType::U32,
        (And | Or | Xor | Exch | Cas, Type::B64) => AtomicType::U64,
        (Cas | Exch, Type::U32 | Type::S32) => AtomicType::U32,
        (Cas | Exch, Type::U64 | Type::S64) => AtomicType::U64,
        (Cas, Type::B16) => AtomicType::B16,
        (Add | Min | Max | Inc | Dec, Type::U32) => AtomicType::U32,
        (Add | Min | Max, Type::S32) => AtomicType::S32,
        (Add | Min | Max, Type::U64) => AtomicType::U64,
        (Add | Min | Max, Type::S64) => AtomicType::S64,
        (Add, Type::F32) => AtomicType::F32,
        (Add, Type::F64) => AtomicType::F64,
        (Add, Type::F16) => AtomicType::F16,
        (Add, Type::F16x2) => AtomicType::F16x2,
        (Add, Type::Bf16) => AtomicType::Bf16,
        (Add, Type::Bf16x2) => AtomicType::Bf16x2,
        _ => return None,
    })
}

/// Data Movement and Conversion Instructions: `cp.async`, `cp.async.commit_group`, `cp.async.wait_group`
///
/// ```text
/// cp.async.ca.shared{::cta}.global{.level::prefetch_size}  [dst], [src], cp-size{, src-size};   cp-size = { 4, 8, 16 };
/// cp.async.ca.shared{::cta}.global{.level::prefetch_size}  [dst], [src], cp-size{, ignore-src};
/// cp.async.cg.shared{::cta}.global{.level::prefetch_size}  [dst], [src], 16{, src-size or ignore-src};
/// cp.async.commit_group;    cp.async.wait_group  N;    cp.async.wait_all;
/// ```
pub(super) fn cp_async<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["async", "commit_group"] if written.operands.is_empty() => return Ok(Form::CommitCopies),
        ["async", "wait_all"] if written.operands.is_empty() => return Ok(Form::WaitForAllCopies),
        ["async", "wait_group"] => {
            let [Operand::Integer(pending)] = operands(written)? else { return unsupported(written) };
            let pending = u32::try_from(pending)
                .map_err(|_| format!("`{}` can't wait for {pending} groups", written.name()))?;
            return Ok(Form::WaitForCopies { pending });
        }
        ["async", "ca" | "cg", "shared" | "shared::cta", "global", hints @ ..]
            if hints.iter().all(|hint| hint.starts_with("L2::") && !hint.contains("cache_hint")) => {}
        _ => return unsupported(written),
    }
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(to), Some(from), Some(Operand::Integer(bytes)), present, None) =
        (operands.next(), operands.next(), operands.next(), operands.next(), operands.next())
    else {
        return unsupported(written);
    };
    let is_allowed = bytes == 16 || written.modifiers[1] == "ca" && matches!(bytes, 4 | 8);
    if !is_allowed {
        return Err(format!("`{}` can't copy {bytes} bytes", written.name()));
    }
    let present = present.unwrap_or(Operand::Integer(bytes));
    Ok(Form::CopyAsync { to, from, bytes: bytes as u8, present })
}
