//! Loads, stores, atomics.

use super::super::instruction::{
    Access, Address, Atomic, AtomicOp, AtomicType, Condition, Operation, Slot, Space, Value,
};
use super::super::instruction::{LongOp, WidenOp, WordOp};
use super::super::kernel::Uniform;
use super::super::lower::Lowering;
use super::super::names::Binding;
use super::super::syntax::{Operand, Raw};
use super::{Decoded, Modifiers, Type, operands, unsupported};

/// What an access's modifiers say.
struct AccessKind {
    space: Space,
    kind: Type,
    lanes: usize,
    communicates: bool,
    /// `.relaxed` or stronger.
    is_atomic: bool,
    acquires: bool,
    releases: bool,
}

fn space_named(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

fn access_kind(raw: &Raw<'_>) -> Decoded<AccessKind> {
    let mut modifiers = Modifiers::of(raw);
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
    let lanes = modifiers.choose(|name| match name {
        "v2" => Some(2),
        "v4" => Some(4),
        _ => None,
    });
    let space = modifiers.choose(space_named).unwrap_or(Space::Generic);
    if kind == Type::Pred {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    Ok(AccessKind { space, kind, lanes: lanes.unwrap_or(1), communicates, is_atomic, acquires, releases })
}

impl<'a> Lowering<'_, 'a> {
    /// An address operand, and the space it turns out to be in.
    pub(super) fn address(&mut self, operand: &Operand<'a>, space: Space) -> Decoded<(Space, Address)> {
        let Operand::Address { name, offset } = operand else {
            return Err("an address in brackets is missing".to_owned());
        };
        let zero = Value::Long(Slot::uniform(0));
        let Some(name) = name else { return Ok((space, Address { base: zero, offset: *offset })) };
        let binding = self.find(name).ok_or_else(|| format!("`{name}` is not declared"))?;
        let fixed = |base: u32| Address { base: zero, offset: i64::from(base).wrapping_add(*offset) };
        Ok(match binding {
            Binding::Long(index) => {
                (space, Address { base: Value::Long(Slot::register(index)), offset: *offset })
            }
            Binding::Word(index, 32) => {
                (space, Address { base: Value::Word(Slot::register(index)), offset: *offset })
            }
            Binding::Shared(base) => (Space::Shared, fixed(base)),
            Binding::Local(base) => (Space::Local, fixed(base)),
            Binding::Framed(frame, base) => {
                let offset = i64::from(base).wrapping_add(*offset);
                (Space::Local, Address { base: Value::Long(Slot::register(frame)), offset })
            }
            Binding::Parameter(base) => (Space::Param, fixed(base)),
            Binding::DynamicShared => {
                let base = Value::Long(self.uniform_long(Uniform::DynamicStart { offset: *offset }));
                (Space::Shared, Address { base, offset: 0 })
            }
            Binding::Global(index) => {
                let base = Value::Long(self.uniform_long(Uniform::Global { index, offset: *offset }));
                (Space::Global, Address { base, offset: 0 })
            }
            _ => return Err(format!("`{name}` is no address")),
        })
    }

    /// `ld`
    pub(super) fn load(&mut self, raw: &Raw<'a>) -> Decoded {
        let AccessKind { space, kind, lanes, communicates, is_atomic, acquires, .. } = access_kind(raw)?;
        let [d, address] = operands(raw)?;
        let (space, address) = self.address(address, space)?;
        let destinations = match d {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if destinations.len() != lanes {
            return Err(format!("`{}` has the wrong number of destinations", raw.name()));
        }
        let bytes = kind.bits() / 8;
        let fixed = match (space, address) {
            (Space::Param, Address { base: Value::Long(base), offset }) if base.is_uniform() => {
                u32::try_from(offset).ok()
            }
            _ => None,
        };
        let mut values = Vec::new();
        for (lane, operand) in destinations.iter().enumerate() {
            if *operand == Operand::Sink {
                values.push(None);
                continue;
            }
            let (d, bits) = self.destination(operand)?;
            if bits < kind.bits() {
                return Err(format!("`{}`: the destination has only {bits} bits", raw.name()));
            }
            // A parameter of the kernel is the same for all threads of a launch.
            if let Some(offset) = fixed {
                let offset = offset + lane as u32 * u32::from(bytes);
                let parameter = Uniform::Parameter { offset, bytes, signed: kind.is_signed() };
                match d {
                    Value::Word(d) => {
                        let a = self.uniform_word(parameter);
                        self.emit_word(WordOp::Move, d, [a]);
                    }
                    Value::Long(d) => {
                        let a = self.uniform_long(parameter);
                        self.emit_long(LongOp::Move, d, [a]);
                    }
                }
                continue;
            }
            values.push(Some(d));
        }
        if fixed.is_none() {
            let values = values.into();
            let signed = kind.is_signed();
            self.emit(Operation::Load(Access {
                space,
                address,
                bytes,
                signed,
                communicates,
                is_atomic,
                values,
            }));
            if acquires {
                self.emit(Operation::Fence);
            }
        }
        Ok(())
    }

    /// `st`
    pub(super) fn store(&mut self, raw: &Raw<'a>) -> Decoded {
        let AccessKind { space, kind, lanes, communicates, is_atomic, releases, .. } = access_kind(raw)?;
        let [address, source] = operands(raw)?;
        let (space, address) = self.address(address, space)?;
        let sources = match source {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if sources.len() != lanes {
            return Err(format!("`{}` has the wrong number of sources", raw.name()));
        }
        if matches!(space, Space::Const | Space::Param) {
            return unsupported(raw);
        }
        let mut values = Vec::new();
        for operand in sources {
            values.push(Some(self.wide_value(operand, kind)?));
        }
        let (bytes, values) = (kind.bits() / 8, values.into());
        if releases {
            self.emit(Operation::Fence);
        }
        let signed = false;
        self.emit(Operation::Store(Access {
            space,
            address,
            bytes,
            signed,
            communicates,
            is_atomic,
            values,
        }));
        Ok(())
    }

    /// `atom` and `red`
    pub(super) fn atomic(&mut self, raw: &Raw<'a>, returns: bool) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let both = modifiers.take("acq_rel");
        let (acquires, releases) = (modifiers.take("acquire") | both, modifiers.take("release") | both);
        for order in ["relaxed", "cta", "gpu", "sys", "noftz"] {
            modifiers.take(order);
        }
        let space = modifiers.choose(space_named).unwrap_or(Space::Generic);
        let op = modifiers.choose(|name| {
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
        });
        let atomic_type = op.and_then(|op| atomic_type(op, kind));
        let (Some(op), Some(atomic_type), Space::Generic | Space::Global | Space::Shared) =
            (op, atomic_type, space)
        else {
            return unsupported(raw);
        };
        modifiers.finish()?;
        let (d, rest) = match (returns, raw.operands.split_first()) {
            (true, Some((d, rest))) => (Some(d), rest),
            (false, _) => (None, raw.operands.as_slice()),
            (true, None) => return unsupported(raw),
        };
        let (address, a, b) = match (rest, op) {
            ([address, a, b], AtomicOp::Cas) => (address, a, Some(b)),
            ([address, a], op) if op != AtomicOp::Cas => (address, a, None),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (space, address) = self.address(address, space)?;
        let a = self.value(a, kind)?;
        let b = b.map(|b| self.value(b, kind)).transpose()?;
        let destination = match d {
            None | Some(Operand::Sink) => None,
            Some(d) => Some(self.value_destination(d, kind)?),
        };
        if releases {
            self.emit(Operation::Fence);
        }
        self.emit(Operation::Atomic(Atomic { op, kind: atomic_type, space, address, destination, a, b }));
        if acquires {
            self.emit(Operation::Fence);
        }
        Ok(())
    }

    /// `cp.async`: copies from global to shared memory, in groups that a thread waits for.
    pub(super) fn copy_async(&mut self, raw: &Raw<'a>) -> Decoded {
        match raw.modifiers.as_slice() {
            ["async", "commit_group"] if raw.operands.is_empty() => {
                self.emit(Operation::CommitCopies);
                return Ok(());
            }
            ["async", "wait_all"] if raw.operands.is_empty() => {
                self.emit(Operation::CommitCopies);
                self.emit(Operation::WaitForCopies { pending: 0 });
                return Ok(());
            }
            ["async", "wait_group"] => {
                let [Operand::Integer(pending)] = operands(raw)? else { return unsupported(raw) };
                let pending = u32::try_from(*pending)
                    .map_err(|_| format!("`{}` can't wait for {pending} groups", raw.name()))?;
                self.emit(Operation::WaitForCopies { pending });
                return Ok(());
            }
            ["async", "ca" | "cg", "shared" | "shared::cta", "global", hints @ ..]
                if hints.iter().all(|hint| hint.starts_with("L2::") && !hint.contains("cache_hint")) => {}
            _ => return unsupported(raw),
        }
        let (to, from, bytes, present) = match raw.operands.as_slice() {
            [to, from, Operand::Integer(bytes)] => (to, from, *bytes, &Operand::Integer(*bytes)),
            [to, from, Operand::Integer(bytes), present] => (to, from, *bytes, present),
            _ => return unsupported(raw),
        };
        let is_allowed = bytes == 16 || raw.modifiers[1] == "ca" && matches!(bytes, 4 | 8);
        if !is_allowed {
            return Err(format!("`{}` can't copy {bytes} bytes", raw.name()));
        }
        let (space, to) = self.address(to, Space::Shared)?;
        let (_, from) = self.address(from, Space::Global)?;
        if space != Space::Shared {
            return unsupported(raw);
        }
        let ignored = match present {
            Operand::Name { name, component: None, offset: 0 } => self.find(name),
            _ => None,
        };
        let present = match ignored {
            // Whether nothing is read.
            Some(Binding::Predicate(predicate)) => {
                let [a, b] = [0, bytes as u64].map(|bytes| self.uniform_word(Uniform::Constant(bytes)));
                let condition = Condition { predicate, negated: false };
                let d = self.new_word();
                self.emit(Operation::SelectWord { d, a, b, condition });
                d
            }
            _ => self.word(present, Type::U32)?,
        };
        self.emit(Operation::CopyToShared { to, from, bytes: bytes as u8, present });
        Ok(())
    }

    /// `isspacep`
    pub(super) fn is_space(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let Some(space) = modifiers.choose(space_named) else { return unsupported(raw) };
        modifiers.finish()?;
        let [d, a] = operands(raw)?;
        let a = match self.wide_value(a, Type::B32)? {
            Value::Long(a) => a,
            Value::Word(a) => {
                let long = self.new_long();
                self.emit_widen(WidenOp::ZeroExtend, long, a, Slot::uniform(0));
                long
            }
        };
        let d = self.predicate_destination(d)?;
        self.emit(Operation::IsSpace { space, d, a });
        Ok(())
    }
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
