//! Loads, stores, atomics, and asynchronous copies.

use super::builder::{Lowering, unused};
use super::names::Binding;
use super::operand::Lowered;
use crate::instruction::{
    Access, Address, Atomic, Condition, Fence, LongOp, Operation, Scope, Slot, Space, Value, WordOp,
};
use crate::kernel::Uniform;
use crate::resolved::{Atomic as ResolvedAtomic, AtomicVector, MemoryAccess, Semantics};
use crate::syntax::{Operand, VariableSpace, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Returns an operand's address and state space.
    pub(crate) fn address(&mut self, operand: &Operand<'a>, space: Space) -> Lowered<(Space, Address)> {
        let Operand::Address { name, offset } = operand else {
            return Err("an address in brackets is missing".to_owned());
        };
        let zero = Value::Long(unused());
        let Some(name) = name else {
            if space != Space::Local {
                return Err("only local memory can be addressed with a constant".to_owned());
            }
            return Ok((space, Address { base: zero, offset: *offset }));
        };
        let binding = self.find(name).ok_or_else(|| format!("`{name}` is not declared"))?;
        let is_constant =
            self.index.variables.get(name).is_some_and(|variable| variable.space == VariableSpace::Const);
        if !is_in(binding, is_constant, space) {
            return Err(format!("`{name}` is a variable in another state space"));
        }
        let fixed = |base: u32| Address { base: zero, offset: i64::from(base).wrapping_add(*offset) };
        Ok(match binding {
            Binding::Long(_, kind) | Binding::Word(_, kind) if kind.is_float() => {
                return Err(format!("`{name}` has the type `.{}`, which is not an address", kind.name()));
            }
            Binding::Long(index, _) => {
                (space, Address { base: Value::Long(Slot::register(index)), offset: *offset })
            }
            Binding::Word(index, kind) if kind.bits() == 32 => {
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
            _ => return Err(format!("`{name}` is not an address")),
        })
    }

    /// Lowers `ld`.
    pub(crate) fn load(
        &mut self,
        access: MemoryAccess,
        destinations: &[Operand<'a>],
        address: &Operand<'a>,
    ) -> Lowered {
        let (space, address) = self.address(address, access.space)?;
        let (kind, bytes) = (access.kind, access.kind.bits() / 8);
        let parameter = match (space, address) {
            (Space::Param, Address { base: Value::Long(base), offset }) if base.is_uniform() => {
                u32::try_from(offset).ok()
            }
            _ => None,
        };
        let mut values = Vec::new();
        for (element, operand) in destinations.iter().enumerate() {
            if *operand == Operand::Sink {
                values.push(None);
                continue;
            }
            let (d, _) = self.wide_destination(operand, kind)?;
            match parameter {
                Some(offset) => self.move_parameter(d, offset + element as u32 * u32::from(bytes), kind),
                None => values.push(Some(d)),
            }
        }
        if parameter.is_some() {
            return Ok(());
        }
        self.emit(Operation::Load(Access {
            space,
            address,
            bytes,
            signed: kind.is_signed(),
            scope: access.scope,
            is_atomic: access.is_atomic,
            values: values.into(),
        }));
        self.fence_after(access.scope, access.acquires);
        Ok(())
    }

    /// Moves a kernel parameter, which is the same for all threads in a launch.
    fn move_parameter(&mut self, d: Value, offset: u32, kind: Type) {
        let parameter = Uniform::Parameter { offset, bytes: kind.bits() / 8, signed: kind.is_signed() };
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
    }

    /// Adds the fence of an acquire.
    fn fence_after(&mut self, scope: Option<Scope>, acquires: bool) {
        if let (Some(scope), true) = (scope, acquires) {
            self.emit(Operation::Fence(Fence {
                scope,
                acquires,
                releases: false,
                is_sequential: false,
                is_implied: true,
            }));
        }
    }

    /// Adds the fence of a release.
    fn fence_before(&mut self, scope: Option<Scope>, releases: bool) {
        if let (Some(scope), true) = (scope, releases) {
            self.emit(Operation::Fence(Fence {
                scope,
                acquires: false,
                releases,
                is_sequential: false,
                is_implied: true,
            }));
        }
    }

    /// Lowers `st`.
    pub(crate) fn store(
        &mut self,
        written: &Written<'a>,
        access: MemoryAccess,
        sources: &[Operand<'a>],
        address: &Operand<'a>,
    ) -> Lowered {
        let (space, address) = self.address(address, access.space)?;
        if matches!(space, Space::Const | Space::Param) {
            return Err(written.unsupported());
        }
        let mut values = Vec::new();
        for operand in sources {
            values.push(Some(self.wide_value(operand, access.kind)?));
        }
        self.fence_before(access.scope, access.releases);
        self.emit(Operation::Store(Access {
            space,
            address,
            bytes: access.kind.bits() / 8,
            signed: false,
            scope: access.scope,
            is_atomic: access.is_atomic,
            values: values.into(),
        }));
        Ok(())
    }

    /// Lowers `atom` and `red`.
    pub(crate) fn atomic(&mut self, atomic: &ResolvedAtomic<'a>) -> Lowered {
        let ResolvedAtomic { op, atomic_type, kind, semantics, .. } = *atomic;
        let Semantics { scope, acquires, releases } = semantics;
        let (space, address) = self.address(&atomic.address, atomic.space)?;
        let a = self.value(&atomic.a, kind)?;
        let b = atomic.b.as_ref().map(|b| self.value(b, kind)).transpose()?;
        let destination = match &atomic.d {
            None | Some(Operand::Sink) => None,
            Some(d) => Some(self.value_destination(d, kind)?),
        };
        self.fence_before(Some(scope), releases);
        let align = atomic_type.bytes();
        self.emit(Operation::Atomic(Atomic {
            op,
            kind: atomic_type,
            space,
            scope,
            address,
            align,
            destination,
            a,
            b,
        }));
        self.fence_after(Some(scope), acquires);
        Ok(())
    }

    /// Lowers `atom` and `red` on a vector to one operation for each element. The destinations may also be sources, so
    /// they are written last.
    pub(crate) fn atomic_vector(&mut self, atomic: &AtomicVector<'a>) -> Lowered {
        let AtomicVector { op, atomic_type, kind, semantics, .. } = *atomic;
        let Semantics { scope, acquires, releases } = semantics;
        let (space, address) = self.address(&atomic.address, atomic.space)?;
        let sources = atomic.a.iter().map(|a| self.word(a, kind)).collect::<Lowered<Vec<_>>>()?;
        let mut results = Vec::new();
        for d in atomic.d.iter().flatten() {
            results.push((self.new_word(), self.word_destination(d, kind)?));
        }
        self.fence_before(Some(scope), releases);
        let bytes = atomic_type.bytes();
        for (element, &a) in sources.iter().enumerate() {
            let offset = address.offset.wrapping_add(element as i64 * i64::from(bytes));
            self.emit(Operation::Atomic(Atomic {
                op,
                kind: atomic_type,
                space,
                scope,
                address: Address { offset, ..address },
                align: if element == 0 { bytes * sources.len() as u8 } else { bytes },
                destination: results.get(element).map(|&(result, _)| Value::Word(result)),
                a: Value::Word(a),
                b: None,
            }));
        }
        self.fence_after(Some(scope), acquires);
        for (result, d) in results {
            self.emit_word(WordOp::Move, d, [result]);
        }
        Ok(())
    }

    /// Lowers `cp.async`.
    pub(crate) fn copy_async(
        &mut self,
        written: &Written<'a>,
        [to, from, present]: [&Operand<'a>; 3],
        bytes: u8,
    ) -> Lowered {
        let (space, to) = self.address(to, Space::Shared)?;
        let (_, from) = self.address(from, Space::Global)?;
        if space != Space::Shared {
            return Err(written.unsupported());
        }
        let ignored = match present {
            Operand::Name { name, component: None, offset: 0 } => self.find(name),
            _ => None,
        };
        let present = match ignored {
            // If the predicate is true, nothing is read.
            Some(Binding::Predicate(predicate)) => {
                let [a, b] = [0, u64::from(bytes)].map(|bytes| self.uniform_word(Uniform::Constant(bytes)));
                let condition = Condition { predicate, negated: false };
                let d = self.new_word();
                self.emit(Operation::SelectWord { d, a, b, condition });
                d
            }
            _ => self.word(present, Type::U32)?,
        };
        self.emit(Operation::CopyToShared { to, from, bytes, present });
        Ok(())
    }
}

/// Returns whether an instruction with this state space can access what a name refers to. Local memory also holds the
/// parameters of calls, and global memory the constants.
fn is_in(binding: Binding, is_constant: bool, space: Space) -> bool {
    match binding {
        Binding::Shared(_) | Binding::DynamicShared => matches!(space, Space::Shared | Space::Generic),
        Binding::Local(_) | Binding::Framed(..) => {
            matches!(space, Space::Local | Space::Param | Space::Generic)
        }
        Binding::Parameter(_) => space == Space::Param,
        Binding::Global(_) if is_constant => space == Space::Const,
        Binding::Global(_) => matches!(space, Space::Global | Space::Generic),
        _ => true,
    }
}
