//! Operands: registers, constants, special registers, addresses of variables.

use super::super::indirect::code_address;
use super::super::instruction::{Clock, Condition, Operation, Predicate, Slot, Value, WidenOp, WordOp};
use super::super::instruction::{LongOp, NarrowOp};
use super::super::kernel::{ThreadConstant, Uniform};
use super::super::lower::Lowering;
use super::super::names::Binding;
use super::super::syntax::{Operand, Raw};
use super::{Decoded, Modifiers, Type, operands, unsupported};
use crate::window;

impl<'a> Lowering<'_, 'a> {
    /// A 32-bit source. `kind` says how a literal is to be read.
    pub(super) fn word(&mut self, operand: &Operand<'a>, kind: Type) -> Decoded<Slot> {
        match operand {
            Operand::Name { name, component, offset } => match (self.find(name), component) {
                (Some(Binding::Word(index, _)), None) if *offset == 0 => Ok(Slot::register(index)),
                (Some(Binding::Long(_)), _) => Err(format!("`{name}` has 64 bits, not {}", kind.bits())),
                (Some(binding), None) => {
                    self.address_of(name, binding, *offset).map(|u| self.uniform_word(u))
                }
                (None, _) => self.special(name, component.unwrap_or("")),
                _ => Err(format!("`{name}` is no number")),
            },
            _ => literal(operand, kind).map(|bits| self.uniform_word(Uniform::Constant(bits & 0xffff_ffff))),
        }
    }

    /// A 64-bit source.
    pub(super) fn long(&mut self, operand: &Operand<'a>, kind: Type) -> Decoded<Slot> {
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

    /// A source of the type's width.
    pub(super) fn value(&mut self, operand: &Operand<'a>, kind: Type) -> Decoded<Value> {
        if kind.bits() == 64 {
            self.long(operand, kind).map(Value::Long)
        } else {
            self.word(operand, kind).map(Value::Word)
        }
    }

    /// A source register of any width that holds at least the type's bits, as `st` and `cvt` allow.
    pub(super) fn wide_value(&mut self, operand: &Operand<'a>, kind: Type) -> Decoded<Value> {
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

    /// A destination register of any width, with its width.
    pub(super) fn destination(&mut self, operand: &Operand<'a>) -> Decoded<(Value, u8)> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => match self.find(name) {
                Some(Binding::Word(index, bits)) => Ok((Value::Word(Slot::register(index)), bits)),
                Some(Binding::Long(index)) => Ok((Value::Long(Slot::register(index)), 64)),
                _ => Err(format!("`{name}` is no register")),
            },
            _ => Err("the destination is no register".to_owned()),
        }
    }

    pub(super) fn word_destination(&mut self, operand: &Operand<'a>) -> Decoded<Slot> {
        match operand {
            Operand::Sink => Ok(self.new_word()),
            _ => match self.destination(operand)? {
                (Value::Word(slot), _) => Ok(slot),
                (Value::Long(_), _) => Err("the destination has 64 bits, not 32".to_owned()),
            },
        }
    }

    pub(super) fn long_destination(&mut self, operand: &Operand<'a>) -> Decoded<Slot> {
        match operand {
            Operand::Sink => Ok(self.new_long()),
            _ => match self.destination(operand)? {
                (Value::Long(slot), _) => Ok(slot),
                (Value::Word(_), bits) => Err(format!("the destination has {bits} bits, not 64")),
            },
        }
    }

    pub(super) fn value_destination(&mut self, operand: &Operand<'a>, kind: Type) -> Decoded<Value> {
        if kind.bits() == 64 {
            self.long_destination(operand).map(Value::Long)
        } else {
            self.word_destination(operand).map(Value::Word)
        }
    }

    pub(super) fn predicate(&mut self, name: &'a str) -> Decoded<Predicate> {
        match self.find(name) {
            Some(Binding::Predicate(predicate)) => Ok(predicate),
            None if name == "_" => Ok(self.new_predicate()),
            _ => Err(format!("`{name}` is no predicate")),
        }
    }

    pub(super) fn predicate_destination(&mut self, operand: &Operand<'a>) -> Decoded<Predicate> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => self.predicate(name),
            Operand::Sink => Ok(self.new_predicate()),
            _ => Err("the destination is no predicate".to_owned()),
        }
    }

    pub(super) fn condition(&mut self, operand: &Operand<'a>) -> Decoded<Condition> {
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

    /// The address of a variable, in its own state space.
    fn address_of(&self, name: &str, binding: Binding, offset: i64) -> Decoded<Uniform> {
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

    /// Special registers that stay the same while a block runs.
    fn special(&mut self, name: &str, component: &str) -> Decoded<Slot> {
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

    /// `mov`: copies, packs, unpacks, reads clocks, takes addresses.
    pub(super) fn mov(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        let [d, a] = operands(raw)?;
        match (d, a) {
            (Operand::Vector(parts), _) => return self.unpack(raw, parts, a, kind),
            (_, Operand::Vector(parts)) => return self.pack(raw, d, parts, kind),
            _ => {}
        }
        if let Operand::Name { name, component: None, offset: 0 } = a
            && let Some((clock, shift)) = clock(name)
        {
            let d = self.value_destination(d, kind)?;
            self.emit(Operation::ReadClock { clock, shift, d });
            return Ok(());
        }
        match kind.bits() {
            1 => {
                let d = self.predicate_destination(d)?;
                let operation = match a {
                    Operand::Integer(value) => Operation::SetPredicate { d, value: *value != 0 },
                    _ => {
                        let a = self.condition(a)?;
                        Operation::Logic { op: super::super::instruction::BoolOp::First, d, a, b: a }
                    }
                };
                self.emit(operation);
            }
            64 => {
                let (a, d) = (self.long(a, kind)?, self.long_destination(d)?);
                self.emit_long(LongOp::Move, d, [a]);
            }
            _ => {
                let (a, d) = (self.word(a, kind)?, self.word_destination(d)?);
                self.emit_word(WordOp::Move, d, [a]);
            }
        }
        Ok(())
    }

    /// `mov.b64 {%r1,%r2}, %rd1`
    fn unpack(&mut self, raw: &Raw<'a>, parts: &[Operand<'a>], a: &Operand<'a>, kind: Type) -> Decoded {
        match (parts, kind.bits()) {
            ([low, high], 64) => {
                let a = self.long(a, kind)?;
                for (part, op) in [(low, NarrowOp::Low), (high, NarrowOp::High)] {
                    if *part != Operand::Sink {
                        let d = self.word_destination(part)?;
                        self.emit(Operation::Narrow { op, d, a });
                    }
                }
                Ok(())
            }
            ([low, high], 32) => {
                let a = self.word(a, kind)?;
                for (part, op) in [(low, WordOp::ZeroExtend(16)), (high, WordOp::High16)] {
                    if *part != Operand::Sink {
                        let d = self.word_destination(part)?;
                        self.emit_word(op, d, [a]);
                    }
                }
                Ok(())
            }
            ([first, second, third, fourth], 64) => {
                let a = self.long(a, kind)?;
                for (op, pair) in [(NarrowOp::Low, [first, second]), (NarrowOp::High, [third, fourth])] {
                    let half = self.new_word();
                    self.emit(Operation::Narrow { op, d: half, a });
                    for (part, op) in pair.into_iter().zip([WordOp::ZeroExtend(16), WordOp::High16]) {
                        let d = self.word_destination(part)?;
                        self.emit_word(op, d, [half]);
                    }
                }
                Ok(())
            }
            _ => unsupported(raw),
        }
    }

    /// `mov.b64 %rd1, {%r1,%r2}`
    fn pack(&mut self, raw: &Raw<'a>, d: &Operand<'a>, parts: &[Operand<'a>], kind: Type) -> Decoded {
        match (parts, kind.bits()) {
            ([low, high], 64) => {
                let (a, b) = (self.word(low, Type::B32)?, self.word(high, Type::B32)?);
                let d = self.long_destination(d)?;
                self.emit_widen(WidenOp::Pack, d, a, b);
                Ok(())
            }
            ([low, high], 32) => {
                let (a, b) = (self.word(low, Type::B16)?, self.word(high, Type::B16)?);
                let d = self.word_destination(d)?;
                self.emit_word(WordOp::Pack16, d, [a, b]);
                Ok(())
            }
            ([first, second, third, fourth], 64) => {
                let mut halves = [self.new_word(), self.new_word()];
                for (half, pair) in halves.iter_mut().zip([[first, second], [third, fourth]]) {
                    let (a, b) = (self.word(pair[0], Type::B16)?, self.word(pair[1], Type::B16)?);
                    self.emit_word(WordOp::Pack16, *half, [a, b]);
                }
                let d = self.long_destination(d)?;
                self.emit_widen(WidenOp::Pack, d, halves[0], halves[1]);
                Ok(())
            }
            _ => unsupported(raw),
        }
    }

    /// `cvta`: between a generic address and one of a state space.
    pub(super) fn convert_address(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let to_space = modifiers.take("to");
        let kind = modifiers.kind()?;
        let base = modifiers.choose(|name| match name {
            "global" | "const" => Some(0),
            "shared" | "shared::cta" => Some(window::SHARED),
            "local" => Some(window::LOCAL),
            "param" => Some(window::PARAM),
            _ => None,
        });
        let (Some(base), 64) = (base, kind.bits()) else { return modifiers.unsupported() };
        modifiers.finish()?;
        let [d, a] = operands(raw)?;
        let (a, d) = (self.long(a, kind)?, self.long_destination(d)?);
        let base = if to_space { base.wrapping_neg() } else { base };
        if base == 0 {
            self.emit_long(LongOp::Move, d, [a]);
        } else {
            let base = self.uniform_long(Uniform::Constant(base));
            self.emit_long(LongOp::Add, d, [a, base]);
        }
        Ok(())
    }

    /// Emits an operation on 32 bits; sources that are not given are zero.
    pub(super) fn emit_word<const N: usize>(&mut self, op: WordOp, d: Slot, sources: [Slot; N]) {
        let [a, b, c] = padded(sources);
        self.emit(Operation::Word { op, d, a, b, c });
    }

    pub(super) fn emit_long<const N: usize>(&mut self, op: LongOp, d: Slot, sources: [Slot; N]) {
        let [a, b, c] = padded(sources);
        self.emit(Operation::Long { op, d, a, b, c });
    }

    pub(super) fn emit_widen(&mut self, op: WidenOp, d: Slot, a: Slot, b: Slot) {
        self.emit(Operation::Widen { op, d, a, b, c: Slot::uniform(0) });
    }
}

/// The first uniform value of each width is zero.
pub(super) fn padded<const N: usize>(sources: [Slot; N]) -> [Slot; 3] {
    let mut all = [Slot::uniform(0); 3];
    for (slot, source) in all.iter_mut().zip(sources) {
        *slot = source;
    }
    all
}

fn unknown(name: &str) -> String {
    match name.strip_prefix('%') {
        Some(_) => format!("unsupported special register, or undeclared register: `{name}`"),
        None => format!("`{name}` is not declared"),
    }
}

/// A literal's bits as the type reads them.
fn literal(operand: &Operand<'_>, kind: Type) -> Decoded<u64> {
    use super::super::number::Number;
    let number = match operand {
        Operand::Integer(value) => Number::Integer(*value),
        Operand::Single(bits) => Number::Single(*bits),
        Operand::Double(value) => Number::Double(*value),
        _ => return Err("an operand is neither register nor number".to_owned()),
    };
    let name = match kind {
        Type::F64 => "f64",
        Type::F32 => "f32",
        Type::F16 => "f16",
        Type::B64 | Type::U64 | Type::S64 if matches!(number, Number::Double(_)) => "f64",
        Type::B32 | Type::U32 | Type::S32 if matches!(number, Number::Double(_)) => "f32",
        _ => "b64",
    };
    Ok(number.bits(name))
}

fn clock(name: &str) -> Option<(Clock, u8)> {
    Some(match name {
        "%clock" | "%clock64" => (Clock::Instructions, 0),
        "%clock_hi" => (Clock::Instructions, 32),
        "%globaltimer" | "%globaltimer_lo" => (Clock::GlobalTimer, 0),
        "%globaltimer_hi" => (Clock::GlobalTimer, 32),
        _ => return None,
    })
}
