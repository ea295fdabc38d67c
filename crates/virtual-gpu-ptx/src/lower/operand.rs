//! Operands: registers, constants, special registers, and addresses of variables.

use super::builder::Lowering;
use super::call_graph::code_address;
use super::names::Binding;
use crate::instruction::{Clock, Condition, LongOp, Operation, Predicate, Slot, Value};
use crate::kernel::{RESERVED_SHARED, RESERVED_SHARED_USED, ThreadConstant, Uniform};
use crate::number::Number;
use crate::syntax::Operand;
use crate::types::Type;

/// The result of lowering; `Err` is the text of the diagnostic.
pub(crate) type Lowered<T = ()> = Result<T, String>;

impl<'a> Lowering<'_, 'a> {
    /// Lowers a 32-bit source. Literals are read as `kind`.
    pub(crate) fn word(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Slot> {
        match operand {
            Operand::Name { name, component, offset } => match (self.find(name), component) {
                (Some(Binding::Word(index, register)), None) if *offset == 0 => {
                    agree(name, register, kind).map(|()| Slot::register(index))
                }
                (Some(Binding::Long(_, register)), _) => mismatch(name, register, kind),
                (Some(binding), None) => {
                    self.address_of(name, binding, *offset).map(|u| self.uniform_word(u))
                }
                (None, _) => {
                    let slot = self.special(name, component.unwrap_or(""))?;
                    match (self.reads_special_registers || *name == WARP_SIZE) && !kind.is_float() {
                        true => Ok(slot),
                        false => Err(format!(
                            "`{name}` is a special register, and only `mov` and `cvt` can read those"
                        )),
                    }
                }
                _ => Err(format!("`{name}` is not a number")),
            },
            _ => literal(operand, kind).map(|bits| self.uniform_word(Uniform::Constant(bits & 0xffff_ffff))),
        }
    }

    /// Lowers a packed pair. There are no constants of packed types.
    pub(crate) fn pair_source(&mut self, operand: &Operand<'a>) -> Lowered<Slot> {
        match operand {
            Operand::Integer(_) | Operand::Single(_) | Operand::Double(_) => {
                Err("a packed pair can't be a constant".to_owned())
            }
            _ => self.word(operand, Type::B32),
        }
    }

    /// Lowers a 64-bit source.
    pub(crate) fn long(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Slot> {
        match operand {
            Operand::Name { name, component: None, offset } => match self.find(name) {
                Some(Binding::Long(index, register)) if *offset == 0 => {
                    agree(name, register, kind).map(|()| Slot::register(index))
                }
                Some(Binding::Word(_, register)) => mismatch(name, register, kind),
                Some(Binding::Framed(frame, base)) => {
                    let offset = i64::from(base).wrapping_add(*offset);
                    let offset = self.uniform_long(Uniform::Constant(offset as u64));
                    let d = self.new_long();
                    self.emit_long(LongOp::Add, d, [Slot::register(frame), offset]);
                    Ok(d)
                }
                Some(binding) => self.address_of(name, binding, *offset).map(|u| self.uniform_long(u)),
                None if *name == WARP_SIZE && !kind.is_float() => Ok(self.uniform_long(WARP_SIZE_VALUE)),
                None => Err(unknown(name)),
            },
            Operand::Name { name, .. } => Err(unknown(name)),
            _ => literal(operand, kind).map(|bits| self.uniform_long(Uniform::Constant(bits))),
        }
    }

    /// Lowers a source of the type's width.
    pub(crate) fn value(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Value> {
        if kind.bits() == 64 {
            self.long(operand, kind).map(Value::Long)
        } else {
            self.word(operand, kind).map(Value::Word)
        }
    }

    /// Lowers a source register of any width that is large enough for the type, as `st` and `cvt` allow.
    pub(crate) fn wide_value(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Value> {
        if let Operand::Name { name, component: None, offset: 0 } = operand {
            match self.find(name) {
                Some(Binding::Word(index, register)) if register.holds(kind) => {
                    return Ok(Value::Word(Slot::register(index)));
                }
                Some(Binding::Long(index, register)) if register.holds(kind) => {
                    return Ok(Value::Long(Slot::register(index)));
                }
                _ => {}
            }
        }
        self.value(operand, kind)
    }

    /// Returns a destination register that is large enough for the type, as `ld` and `cvt` allow, along with its width.
    pub(crate) fn wide_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<(Value, u8)> {
        let (value, register) = self.destination(operand)?;
        match (operand, register.holds(kind)) {
            (Operand::Name { name, .. }, false) => mismatch(name, register, kind),
            _ => Ok((value, register.bits())),
        }
    }

    /// Returns a destination register of any type, along with the type.
    fn destination(&mut self, operand: &Operand<'a>) -> Lowered<(Value, Type)> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => match self.find(name) {
                Some(Binding::Word(index, register)) => Ok((Value::Word(Slot::register(index)), register)),
                Some(Binding::Long(index, register)) => Ok((Value::Long(Slot::register(index)), register)),
                _ => Err(format!("`{name}` is not a register")),
            },
            _ => Err("the destination is not a register".to_owned()),
        }
    }

    /// Returns a destination register of up to 32 bits and of the type.
    pub(crate) fn word_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Slot> {
        match self.value_destination(operand, kind)? {
            Value::Word(slot) => Ok(slot),
            Value::Long(_) => Err(format!("`.{}` where a smaller type is expected", kind.name())),
        }
    }

    /// Returns a 64-bit destination register of the type.
    pub(crate) fn long_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Slot> {
        match self.value_destination(operand, kind)? {
            Value::Long(slot) => Ok(slot),
            Value::Word(_) => Err(format!("`.{}` where a 64-bit type is expected", kind.name())),
        }
    }

    pub(crate) fn value_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Value> {
        match operand {
            Operand::Sink if kind.bits() == 64 => Ok(Value::Long(self.new_long())),
            Operand::Sink => Ok(Value::Word(self.new_word())),
            Operand::Name { name, .. } => {
                let (value, register) = self.destination(operand)?;
                agree(name, register, kind).map(|()| value)
            }
            _ => self.destination(operand).map(|(value, _)| value),
        }
    }

    pub(crate) fn predicate(&mut self, name: &'a str) -> Lowered<Predicate> {
        match self.find(name) {
            Some(Binding::Predicate(predicate)) => Ok(predicate),
            None if name == "_" => Ok(self.new_predicate()),
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    pub(crate) fn predicate_destination(&mut self, operand: &Operand<'a>) -> Lowered<Predicate> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => self.predicate(name),
            Operand::Sink => Ok(self.new_predicate()),
            _ => Err("the destination is not a predicate".to_owned()),
        }
    }

    pub(crate) fn condition(&mut self, operand: &Operand<'a>) -> Lowered<Condition> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => {
                Ok(Condition { predicate: self.predicate(name)?, negated: false })
            }
            Operand::Not(name) => Ok(Condition { predicate: self.predicate(name)?, negated: true }),
            Operand::Integer(value) => {
                let d = self.new_predicate();
                self.emit(Operation::SetPredicate { d, value: *value != 0 });
                Ok(Condition { predicate: d, negated: false })
            }
            _ => Err("a predicate is missing".to_owned()),
        }
    }

    /// Returns the address of a variable within its state space.
    fn address_of(&self, name: &str, binding: Binding, offset: i64) -> Lowered<Uniform> {
        let constant = |base: u32| Ok(Uniform::Constant((i64::from(base).wrapping_add(offset)) as u64));
        match binding {
            Binding::Local(base) => constant(base),
            Binding::Shared(base) => Ok(Uniform::Shared { offset: i64::from(base).wrapping_add(offset) }),
            Binding::Parameter(base) => constant(base),
            Binding::DynamicShared => Ok(Uniform::DynamicStart { offset }),
            Binding::Global(index) => Ok(Uniform::Global { index, offset }),
            Binding::Function(index) => Ok(Uniform::Constant(code_address(index))),
            _ => Err(format!("`{name}` has no address")),
        }
    }

    /// Returns a special register that doesn't change while a block runs.
    fn special(&mut self, name: &str, component: &str) -> Lowered<Slot> {
        let axis = match component {
            "x" => 0,
            "y" => 1,
            "z" => 2,
            _ => 3,
        };
        let uniform = match (name, axis) {
            ("%ntid", 0..3) => Uniform::BlockSize(axis),
            ("%nctaid", 0..3) => Uniform::GridSize(axis),
            ("%ctaid", 0..3) => Uniform::BlockIndex(axis),
            ("%nwarpid", _) => Uniform::Warps,
            ("%clusterid", 0..3) => Uniform::ClusterIndex(axis),
            ("%nclusterid", 0..3) => Uniform::ClusterGridSize(axis),
            ("%cluster_ctaid", 0..3) => Uniform::IndexInCluster(axis),
            ("%cluster_nctaid", 0..3) => Uniform::ClusterSize(axis),
            ("%cluster_ctarank", _) => Uniform::RankInCluster,
            ("%cluster_nctarank", _) => Uniform::BlocksInCluster,
            ("%dynamic_smem_size", _) => Uniform::DynamicShared,
            ("%total_smem_size", _) => Uniform::TotalShared,
            ("%reserved_smem_offset_begin" | "%reserved_smem_offset_0" | "%reserved_smem_offset_1", _) => {
                Uniform::ReservedShared { offset: 0 }
            }
            ("%reserved_smem_offset_end", _) => Uniform::ReservedShared { offset: RESERVED_SHARED_USED },
            ("%reserved_smem_offset_cap", _) => Uniform::ReservedShared { offset: RESERVED_SHARED },
            (WARP_SIZE, _) => WARP_SIZE_VALUE,
            ("%tid", 0..3) => return Ok(self.thread_constant(ThreadConstant::ThreadIndex(axis))),
            ("%laneid", _) => return Ok(self.thread_constant(ThreadConstant::LaneId)),
            ("%warpid", _) => return Ok(self.thread_constant(ThreadConstant::WarpId)),
            ("%lanemask_eq", _) => return Ok(self.thread_constant(ThreadConstant::LaneMaskEq)),
            ("%lanemask_lt", _) => return Ok(self.thread_constant(ThreadConstant::LaneMaskLt)),
            ("%lanemask_le", _) => return Ok(self.thread_constant(ThreadConstant::LaneMaskLe)),
            ("%lanemask_gt", _) => return Ok(self.thread_constant(ThreadConstant::LaneMaskGt)),
            ("%lanemask_ge", _) => return Ok(self.thread_constant(ThreadConstant::LaneMaskGe)),
            ("%envreg1", _) => Uniform::WorkspaceHigh,
            ("%envreg2", _) => Uniform::WorkspaceLow,
            _ if name.starts_with('%') && component.is_empty() => return Err(unknown(name)),
            _ if name.starts_with('%') => {
                return Err(format!("unsupported special register `{name}.{component}`"));
            }
            _ => return Err(unknown(name)),
        };
        Ok(self.uniform_word(uniform))
    }
}

/// Checks that a register's type agrees with an instruction's.
fn agree(name: &str, register: Type, kind: Type) -> Lowered {
    if register.agrees(kind) { Ok(()) } else { mismatch(name, register, kind) }
}

fn mismatch<T>(name: &str, register: Type, kind: Type) -> Lowered<T> {
    let (register_bits, bits) = (register.bits(), kind.bits());
    match register_bits == bits {
        true => Err(format!("`{name}` has the type `.{}`, not `.{}`", register.name(), kind.name())),
        false => Err(format!("`{name}` has {register_bits} bits, not {bits}")),
    }
}

/// The number of threads in a warp, which is an immediate operand.
const WARP_SIZE: &str = "WARP_SZ";
const WARP_SIZE_VALUE: Uniform = Uniform::Constant(32);

fn unknown(name: &str) -> String {
    match name.strip_prefix('%') {
        Some(_) => format!("unsupported special register, or undeclared register: `{name}`"),
        None => format!("`{name}` is not declared"),
    }
}

/// Returns a literal's bits as a value of the given type.
///
/// Manual, "Constants" and "Type Checking Rules": an integer constant is an integer or bits; `0f…` is an `.f32`, and
/// other floating-point constants are an `.f64`, which goes with bits of its size or is converted to another
/// floating-point type. There are no constants of half precision.
fn literal(operand: &Operand<'_>, kind: Type) -> Lowered<u64> {
    let number = match operand {
        Operand::Integer(value) => Number::Integer(*value),
        Operand::Single(bits) => Number::Single(*bits),
        Operand::Double(value) => Number::Double(*value),
        _ => return Err("an operand is neither a register nor a number".to_owned()),
    };
    let agrees = match number {
        Number::Integer(_) => !kind.is_float(),
        Number::Single(_) => matches!(kind, Type::B32 | Type::F32 | Type::F64),
        Number::Double(_) => matches!(kind, Type::B64 | Type::F32 | Type::F64),
    };
    if !agrees {
        let (integer, float) = ("an integer constant", "a floating-point constant");
        let constant = if let Number::Integer(_) = number { integer } else { float };
        return Err(format!("{constant} can't be a `.{}`", kind.name()));
    }
    let read_as = match kind {
        Type::F64 => Type::F64,
        Type::F32 => Type::F32,
        Type::B64 if matches!(number, Number::Double(_)) => Type::F64,
        _ => Type::B64,
    };
    Ok(number.bits(read_as))
}

/// Returns the clock that a special register reads, the number of bits to shift the clock by, and the register's type.
pub(crate) fn clock(name: &str) -> Option<(Clock, u8, Type)> {
    Some(match name {
        "%clock" => (Clock::Instructions, 0, Type::U32),
        "%clock64" => (Clock::Instructions, 0, Type::U64),
        "%clock_hi" => (Clock::Instructions, 32, Type::U32),
        "%globaltimer" => (Clock::GlobalTimer, 0, Type::U64),
        "%globaltimer_lo" => (Clock::GlobalTimer, 0, Type::U32),
        "%globaltimer_hi" => (Clock::GlobalTimer, 32, Type::U32),
        _ => return None,
    })
}
