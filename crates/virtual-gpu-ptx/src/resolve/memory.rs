//! Loads, stores, atomics, and asynchronous copies.

use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{AtomicOp, AtomicType, Scope, Space};
use crate::opcode::Opcode;
use crate::resolved::{Atomic, Form, MemoryAccess, Semantics};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// Returns the state space that a modifier specifies.
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

/// Returns the state space of a load, store, or atomic that a modifier specifies.
fn accessed_space(name: &str) -> Option<Space> {
    if name == "shared::cluster" { Some(Space::Shared) } else { space_named(name) }
}

/// Returns the scope that a modifier specifies.
pub(super) fn scope_named(name: &str) -> Option<Scope> {
    Some(match name {
        "cta" => Scope::Block,
        "cluster" => Scope::Cluster,
        "gpu" => Scope::Gpu,
        "sys" => Scope::System,
        _ => return None,
    })
}

/// How a load or store is ordered relative to other accesses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ordering {
    Weak,
    Volatile,
    Relaxed,
    /// `.acquire` on a load, `.release` on a store.
    Strong,
}

/// Returns the modifiers of `ld`, `ldu`, or `st`, and the number of elements.
fn access(opcode: Opcode, written: &Written<'_>) -> Resolution<(MemoryAccess, usize)> {
    let is_load = opcode != Opcode::St;
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let stated = modifiers.choose(|name| match name {
        "weak" => Some(Ordering::Weak),
        "volatile" => Some(Ordering::Volatile),
        "relaxed" => Some(Ordering::Relaxed),
        "acquire" if is_load => Some(Ordering::Strong),
        "release" if !is_load => Some(Ordering::Strong),
        _ => None,
    });
    let ordering = stated.unwrap_or(Ordering::Weak);
    let is_atomic = matches!(ordering, Ordering::Relaxed | Ordering::Strong);
    let scope = modifiers.choose(scope_named);
    let (is_mmio, is_coherent) = (modifiers.take("mmio"), !modifiers.take("nc"));
    let elements = modifiers.choose(|name| match name {
        "v2" => Some(2),
        "v4" => Some(4),
        _ => None,
    });
    let space = modifiers.choose(accessed_space).unwrap_or(Space::Generic);
    let hints = Hints::take(&mut modifiers, is_load);
    let is_global = matches!(space, Space::Generic | Space::Global);
    let is_ordered_space = is_global || space == Space::Shared;
    let is_wide = elements == Some(4) && kind.bits() == 64;
    let is_allowed = !(kind == Type::Pred || kind.is_float() && !matches!(kind, Type::F32 | Type::F64))
        && is_atomic == scope.is_some()
        && (is_ordered_space || !is_atomic)
        && (is_ordered_space || ordering != Ordering::Volatile)
        && (is_load || space != Space::Const && !written.modifiers.contains(&"param::entry"))
        && (ordering == Ordering::Weak || !hints.has_operator)
        && (ordering != Ordering::Volatile || !hints.has_priority)
        && (is_global || !hints.are_global && !is_wide)
        && (is_wide || !hints.has_level2);
    let is_mmio_allowed = scope == Some(Scope::System)
        && ordering == Ordering::Relaxed
        && is_global
        && elements.is_none()
        && !hints.are_any();
    let is_nc_allowed = is_load && space == Space::Global && stated.is_none() && !hints.is_last_or_volatile;
    let is_ldu_allowed = is_global && stated.is_none() && is_coherent && !hints.are_any() && !is_wide;
    if !is_allowed
        || is_mmio && !is_mmio_allowed
        || !is_coherent && !is_nc_allowed
        || opcode == Opcode::Ldu && !is_ldu_allowed
    {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    let strong = ordering == Ordering::Strong;
    let (acquires, releases) = (strong && is_load, strong && !is_load);
    let scope = if ordering == Ordering::Volatile { Some(Scope::System) } else { scope };
    let access = MemoryAccess { space, kind, scope, is_atomic, acquires, releases };
    Ok((access, elements.unwrap_or(1)))
}

/// Cache Operators, Cache Eviction Priority Hints, and prefetch sizes, which don't affect results.
struct Hints {
    has_operator: bool,
    /// `.lu` or `.cv`
    is_last_or_volatile: bool,
    has_priority: bool,
    /// Whether there is an eviction priority for the L2 cache.
    has_level2: bool,
    /// Whether there are hints that are only allowed on accesses to global memory.
    are_global: bool,
}

impl Hints {
    /// Takes one hint of each kind. An operator and a priority exclude each other: if there are both, the priority is
    /// left over and rejected later.
    fn take(modifiers: &mut Modifiers<'_, '_>, is_load: bool) -> Self {
        let operators: &[&str] =
            if is_load { &["ca", "cg", "cs", "lu", "cv"] } else { &["wb", "cg", "cs", "wt"] };
        let operator = modifiers.choose(|name| operators.iter().copied().find(|&one| one == name));
        let mut take = |level: &str, names: &[&str], is_allowed: bool| {
            let names = |name: &str| name.strip_prefix(level).is_some_and(|name| names.contains(&name));
            is_allowed && modifiers.choose(|name| names(name).then_some(())).is_some()
        };
        let priorities = ["evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"];
        let has_level1 = take("L1::", &priorities, operator.is_none());
        let has_level2 = take("L2::", &["evict_normal", "evict_first", "evict_last"], operator.is_none());
        let prefetches = take("L2::", &["64B", "128B", "256B"], is_load);
        let has_priority = has_level1 || has_level2;
        Self {
            has_operator: operator.is_some(),
            is_last_or_volatile: matches!(operator, Some("lu" | "cv")),
            has_priority,
            has_level2,
            are_global: has_priority || prefetches,
        }
    }

    fn are_any(&self) -> bool {
        self.has_operator || self.are_global
    }
}

/// Returns the elements of a vector, or a single element.
fn elements(operand: Operand<'_>) -> Vec<Operand<'_>> {
    match operand {
        Operand::Vector(elements) => elements,
        single => vec![single],
    }
}

/// Data Movement and Conversion Instructions: `ld`, `ld.global.nc`, `ldu`
///
/// ```text
/// ld{.weak}{.ss}{.cop}{.level::prefetch_size}{.vec}.type          d, [a];
/// ld{.weak}{.ss}{.priorities}{.level::prefetch_size}{.vec}.type   d, [a];
/// ld.volatile{.ss}{.level::prefetch_size}{.vec}.type              d, [a];
/// ld.relaxed.scope{.ss}{.priorities}{.level::prefetch_size}{.vec}.type  d, [a];
/// ld.acquire.scope{.ss}{.priorities}{.level::prefetch_size}{.vec}.type  d, [a];
/// ld.mmio.relaxed.sys{.global}.type                               d, [a];
/// .ss = { .const, .global, .local, .param{::entry, ::func}, .shared{::cta, ::cluster} };
/// .cop = { .ca, .cg, .cs, .lu, .cv };
///
/// ld.global{.cop}.nc{.level::prefetch_size}{.vec}.type            d, [a];    .cop = { .ca, .cg, .cs };
/// ld.global.nc{.priorities}{.level::prefetch_size}{.vec}.type     d, [a];
/// ldu{.ss}.type  d, [a];    ldu{.ss}.vec.type  d, [a];            .ss = { .global };
///
/// {.priorities} = {.level1::eviction_priority}{.level2::eviction_priority};
/// .level1::eviction_priority = { .L1::evict_normal, .L1::evict_unchanged, .L1::evict_first, .L1::evict_last, .L1::no_allocate };
/// .level2::eviction_priority = { .L2::evict_normal, .L2::evict_first, .L2::evict_last };
/// .level::prefetch_size = { .L2::64B, .L2::128B, .L2::256B };
/// .scope = { .cta, .cluster, .gpu, .sys };  .vec = { .v2, .v4 };
/// .type = { .b8, .b16, .b32, .b64, .u8, .u16, .u32, .u64, .s8, .s16, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn ld<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (access, count) = access(opcode, written)?;
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
/// st{.weak}{.ss}{.cop}{.vec}.type                  [a], b;
/// st{.weak}{.ss}{.priorities}{.vec}.type           [a], b;
/// st.volatile{.ss}{.vec}.type                      [a], b;
/// st.relaxed.scope{.ss}{.priorities}{.vec}.type    [a], b;
/// st.release.scope{.ss}{.priorities}{.vec}.type    [a], b;
/// st.mmio.relaxed.sys{.global}.type                [a], b;
/// .ss = { .global, .local, .param{::func}, .shared{::cta, ::cluster} };  .cop = { .wb, .cg, .cs, .wt };  the rest as for ld
/// ```
pub(super) fn st<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (access, count) = access(opcode, written)?;
    let [address, source] = operands(written)?;
    let values = elements(source);
    match values.len() == count {
        true => Ok(Form::Store { access, values, address }),
        false => Err(format!("`{}` has the wrong number of sources", written.name())),
    }
}

/// Data Movement and Conversion Instructions: `prefetch`, `prefetchu`
///
/// ```text
/// prefetch{.space}.level                    [a];    .space = { .global, .local };  .level = { .L1, .L2 };
/// prefetch.global.level::eviction_priority  [a];    .level::eviction_priority = { .L2::evict_last, .L2::evict_normal };
/// prefetch{.tensormap_space}.tensormap      [a];    .tensormap_space = { .const, .param };
/// prefetchu.L1                              [a];
/// ```
pub(super) fn prefetch<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match (opcode, written.modifiers.as_slice()) {
        (Opcode::Prefetch, ["global" | "local", "L1" | "L2"] | ["L1" | "L2"]) => {}
        (Opcode::Prefetch, ["global", "L2::evict_last" | "L2::evict_normal"]) => {}
        (Opcode::Prefetch, ["tensormap"] | ["const" | "param", "tensormap"]) => {}
        (Opcode::Prefetchu, ["L1"]) => {}
        _ => return unsupported(written),
    }
    let [_] = operands(written)?;
    Ok(Form::Nothing)
}

/// Parallel Synchronization and Communication Instructions: `atom`, `red`
///
/// ```text
/// atom{.sem}{.scope}{.space}.op.type   d, [a], b;
/// atom{.sem}{.scope}{.space}.op.type   d, [a], b, c;    atom{.sem}{.scope}{.space}.cas.b16  d, [a], b, c;
/// atom{.sem}{.scope}{.space}.add.noftz.f16    d, [a], b;    (.f16x2, .bf16, .bf16x2 the same)
/// .sem = { .relaxed, .acquire, .release, .acq_rel };
/// .op = { .and, .or, .xor, .cas, .exch, .add, .inc, .dec, .min, .max };
///
/// red{.sem}{.scope}{.space}.op.type    [a], b;
/// red{.sem}{.scope}{.space}.add.noftz.f16     [a], b;       (.f16x2, .bf16, .bf16x2 the same)
/// .sem = { .relaxed, .release };
/// .op = { .and, .or, .xor, .add, .inc, .dec, .min, .max };
///
/// .scope = { .cta, .cluster, .gpu, .sys };  .space = { .global, .shared{::cta, ::cluster} };
/// .type = { .b32, .b64, .u32, .u64, .s32, .s64, .f32, .f64 };
/// ```
pub(super) fn atomic<'a>(written: &mut Written<'a>, returns: bool) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let semantics = semantics(&mut modifiers, returns);
    let is_half = kind.is_float() && !matches!(kind, Type::F32 | Type::F64);
    if modifiers.take("noftz") != is_half {
        return unsupported(written);
    }
    let space = modifiers.choose(accessed_space).unwrap_or(Space::Generic);
    let op = modifiers.choose(atomic_op);
    let op = op.filter(|op| returns || op.reduces());
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
    Ok(Form::Atomic(Atomic { op, atomic_type, kind, space, semantics, d, address, a, b }))
}

/// Takes `.sem` and `.scope`, which are `.relaxed` and `.gpu` unless stated.
pub(super) fn semantics(modifiers: &mut Modifiers<'_, '_>, returns: bool) -> Semantics {
    let order = modifiers.choose(|name| match name {
        "relaxed" => Some([false, false]),
        "acquire" if returns => Some([true, false]),
        "release" => Some([false, true]),
        "acq_rel" if returns => Some([true, true]),
        _ => None,
    });
    let [acquires, releases] = order.unwrap_or_default();
    let scope = modifiers.choose(scope_named).unwrap_or(Scope::Gpu);
    Semantics { scope, acquires, releases }
}

pub(super) fn atomic_op(name: &str) -> Option<AtomicOp> {
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

/// Returns how an atomic operation interprets a type that it accepts.
pub(super) fn atomic_type(op: AtomicOp, kind: Type) -> Option<AtomicType> {
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
        (Min | Max, Type::S64) => AtomicType::S64,
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
/// cp.async.ca.shared{::cta}.global{.level::prefetch_size}  [dst], [src], cp-size{, src-size};
/// cp.async.cg.shared{::cta}.global{.level::prefetch_size}  [dst], [src], 16{, src-size};
/// cp.async.ca.shared{::cta}.global{.level::prefetch_size}  [dst], [src], cp-size{, ignore-src};
/// cp.async.cg.shared{::cta}.global{.level::prefetch_size}  [dst], [src], 16{, ignore-src};
/// .level::prefetch_size = { .L2::64B, .L2::128B, .L2::256B };  cp-size = { 4, 8, 16 };
///
/// cp.async.commit_group;    cp.async.wait_group  N;    cp.async.wait_all;
/// ```
pub(super) fn cp_async<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["async", "commit_group"] if written.operands.is_empty() => return Ok(Form::CommitCopies),
        ["async", "wait_all"] if written.operands.is_empty() => return Ok(Form::WaitForAllCopies),
        ["async", "wait_group"] => {
            let [Operand::Integer(pending)] = operands(written)? else { return unsupported(written) };
            let pending = u32::try_from(pending)
                .map_err(|_| format!("`{}` can't leave {pending} groups pending", written.name()))?;
            return Ok(Form::WaitForCopies { pending });
        }
        ["async", "ca" | "cg", "shared" | "shared::cta", "global"]
        | ["async", "ca" | "cg", "shared" | "shared::cta", "global", "L2::64B" | "L2::128B" | "L2::256B"] => {
        }
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
