//! Operands: registers, constants, special registers, and addresses of variables.

use super::builder::Lowering;
use super::call_graph::code_address;
use super::names::Binding;
use crate::instruction::{Clock, Condition, LongOp, Operation, Predicate, Slot, Value};
use crate::kernel::{ThreadConstant, Uniform};
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
                (Some(Binding::Word(index, _)), None) if *offset == 0 => Ok(Slot::register(index)),
                (Some(Binding::Long(_)), _) => Err(format!("`{name}` has 64 bits, not {}", kind.bits())),
                (Some(binding), None) => {
                    self.address_of(name, binding, *offset).map(|u| self.uniform_word(u))
                }
                (None, _) => self.special(name, component.unwrap_or("")),
                _ => Err(format!("`{name}` is not a number")),
            },
            _ => literal(operand, kind).map(|bits| self.uniform_word(Uniform::Constant(bits & 0xffff_ffff))),
        }
    }

    /// Lowers a 64-bit source.
    pub(crate) fn long(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Slot> {
        match operand {
            Operand::Name { name, component: None, offset } => match self.find(name) {
                Some(Binding::Long(index)) if *offset == 0 => Ok(Slot::register(index)),
                Some(Binding::Word(_, bits)) => Err(format!("`{name}` has {bits} bits, not 64")),
                Some(Binding::Framed(frame, base)) => {
                    let offset = i64::from(base).wrapping_add(*offset);
                    let offset = self.uniform_long(Uniform::Constant(offset as u64));
                    let d = self.new_long();
                    self.emit_long(LongOp::Add, d, [Slot::register(frame), offset]);
                    Ok(d)
                }
                Some(binding) => self.address_of(name, binding, *offset).map(|u| self.uniform_long(u)),
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
                Some(Binding::Word(index, bits)) if bits >= kind.bits() => {
                    return Ok(Value::Word(Slot::register(index)));
                }
                Some(Binding::Long(index)) => return Ok(Value::Long(Slot::register(index))),
                _ => {}
            }
        }
        self.value(operand, kind)
    }

    /// Returns a destination register of any width, along with the width.
    pub(crate) fn destination(&mut self, operand: &Operand<'a>) -> Lowered<(Value, u8)> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => match self.find(name) {
                Some(Binding::Word(index, bits)) => Ok((Value::Word(Slot::register(index)), bits)),
                Some(Binding::Long(index)) => Ok((Value::Long(Slot::register(index)), 64)),
                _ => Err(format!("`{name}` is not a register")),
            },
            _ => Err("the destination is not a register".to_owned()),
        }
    }

    pub(crate) fn word_destination(&mut self, operand: &Operand<'a>) -> Lowered<Slot> {
        match operand {
            Operand::Sink => Ok(self.new_word()),
            _ => match self.destination(operand)? {
                (Value::Word(slot), _) => Ok(slot),
                (Value::Long(_), _) => Err("the destination has 64 bits, not 32".to_owned()),
            },
        }
    }

    pub(crate) fn long_destination(&mut self, operand: &Operand<'a>) -> Lowered<Slot> {
        match operand {
            Operand::Sink => Ok(self.new_long()),
            _ => match self.destination(operand)? {
                (Value::Long(slot), _) => Ok(slot),
                (Value::Word(_), bits) => Err(format!("the destination has {bits} bits, not 64")),
            },
        }
    }

    pub(crate) fn value_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Lowered<Value> {
        if kind.bits() == 64 {
            self.long_destination(operand).map(Value::Long)
        } else {
            self.word_destination(operand).map(Value::Word)
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
            Binding::Shared(base) | Binding::Local(base) => constant(base),
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
            ("%dynamic_smem_size", _) => Uniform::DynamicShared,
            ("%total_smem_size", _) => Uniform::TotalShared,
            ("WARP_SZ", _) => Uniform::Constant(32),
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

fn unknown(name: &str) -> String {
    match name.strip_prefix('%') {
        Some(_) => format!("unsupported special register, or undeclared register: `{name}`"),
        None => format!("`{name}` is not declared"),
    }
}

/// Returns a literal's bits as a value of the given type.
fn literal(operand: &Operand<'_>, kind: Type) -> Lowered<u64> {
    let number = match operand {
        Operand::Integer(value) => Number::Integer(*value),
        Operand::Single(bits) => Number::Single(*bits),
        Operand::Double(value) => Number::Double(*value),
        _ => return Err("an operand is neither a register nor a number".to_owned()),
    };
    let read_as = match kind {
        Type::F64 => Type::F64,
        Type::F32 => Type::F32,
        Type::F16 => Type::F16,
        Type::B64 | Type::U64 | Type::S64 if matches!(number, Number::Double(_)) => Type::F64,
        Type::B32 | Type::U32 | Type::S32 if matches!(number, Number::Double(_)) => Type::F32,
        _ => Type::B64,
    };
    Ok(number.bits(read_as))
}

/// Returns the clock that a special register reads and the number of bits to shift the clock by.
pub(crate) fn clock(name: &str) -> Option<(Clock, u8)> {
    Some(match name {
        "%clock" | "%clock64" => (Clock::Instructions, 0),
        "%clock_hi" => (Clock::Instructions, 32),
        "%globaltimer" | "%globaltimer_lo" => (Clock::GlobalTimer, 0),
        "%globaltimer_hi" => (Clock::GlobalTimer, 32),
        _ => return None,
    })
}
