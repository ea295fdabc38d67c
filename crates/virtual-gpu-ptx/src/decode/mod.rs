//! From an instruction's text to what the machine executes.

mod carry;
mod control;
mod convert;
mod float;
mod integer;
mod matrix;
mod memory;
mod operand;
mod packed;
mod warp;

use super::lower::Lowering;
use super::syntax::{Operand, Raw};
use packed::is_video;

/// `Err` says what can't be decoded.
type Decoded<T = ()> = Result<T, String>;

/// Types of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Type {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F16x2 | Self::Bf16 | Self::Bf16x2 | Self::F32 | Self::F64)
    }
}

/// An instruction's modifiers, taken one by one: what is left over in the end is not supported.
struct Modifiers<'r, 'a> {
    raw: &'r Raw<'a>,
    rest: Vec<&'a str>,
}

impl<'r, 'a> Modifiers<'r, 'a> {
    fn of(raw: &'r Raw<'a>) -> Self {
        Self { raw, rest: raw.modifiers.clone() }
    }

    fn unsupported<T>(&self) -> Decoded<T> {
        unsupported(self.raw)
    }

    /// Removes `name`; whether it was there.
    fn take(&mut self, name: &str) -> bool {
        match self.rest.iter().position(|&modifier| modifier == name) {
            Some(at) => {
                self.rest.remove(at);
                true
            }
            None => false,
        }
    }

    /// Removes the first modifier that `choose` knows.
    fn choose<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, chosen) =
            self.rest.iter().enumerate().find_map(|(at, modifier)| Some((at, choose(modifier)?)))?;
        self.rest.remove(at);
        Some(chosen)
    }

    /// Removes the last modifier, which is the type.
    fn kind(&mut self) -> Decoded<Type> {
        match self.rest.pop().and_then(Type::parse) {
            Some(kind) => Ok(kind),
            None => self.unsupported(),
        }
    }

    /// Nothing may be left.
    fn finish(self) -> Decoded {
        if self.rest.is_empty() { Ok(()) } else { self.unsupported() }
    }
}

fn unsupported<T>(raw: &Raw<'_>) -> Decoded<T> {
    Err(format!("unsupported instruction `{}`", raw.name()))
}

/// The operands, as many as the instruction needs.
fn operands<'r, 'a, const N: usize>(raw: &'r Raw<'a>) -> Decoded<&'r [Operand<'a>; N]> {
    raw.operands
        .as_slice()
        .try_into()
        .map_err(|_| format!("`{}` takes {N} operands, not {}", raw.name(), raw.operands.len()))
}

/// The parts of `call (returns), name, (arguments)`.
pub(super) struct Call<'r, 'a> {
    pub(super) name: &'a str,
    pub(super) returns: &'r [&'a str],
    pub(super) arguments: &'r [&'a str],
}

/// Splits a direct call.
pub(super) fn call_parts<'r, 'a>(raw: &'r Raw<'a>) -> Decoded<Call<'r, 'a>> {
    let mut modifiers = Modifiers::of(raw);
    modifiers.take("uni");
    modifiers.finish()?;
    let (returns, rest) = match raw.operands.as_slice() {
        [Operand::List(returns), rest @ ..] => (returns.as_slice(), rest),
        rest => (&[][..], rest),
    };
    match rest {
        [Operand::Name { name, component: None, offset: 0 }] => Ok(Call { name, returns, arguments: &[] }),
        // A prototype or a list of targets follows where the name is a register.
        [Operand::Name { name, component: None, offset: 0 }, Operand::List(arguments), ..]
            if rest.len() <= 3 =>
        {
            Ok(Call { name, returns, arguments })
        }
        [Operand::Name { name, component: None, offset: 0 }, Operand::Name { .. }] => {
            Ok(Call { name, returns, arguments: &[] })
        }
        _ => Err("unsupported form of `call`".to_owned()),
    }
}

impl<'a> Lowering<'_, 'a> {
    /// Decodes one instruction into one or more operations.
    pub(super) fn decode(&mut self, raw: &Raw<'a>) -> Decoded {
        match raw.opcode {
            "mov" => self.mov(raw),
            "ld" | "ldu" => self.load(raw),
            "st" => self.store(raw),
            "atom" => self.atomic(raw, true),
            "red" => self.atomic(raw, false),
            "cvta" => self.convert_address(raw),
            "isspacep" => self.is_space(raw),
            "prefetch" | "prefetchu" => self.fence_or_nothing(raw),
            "cvt" => self.convert(raw),
            "addc" | "subc" | "madc" => self.carry_arithmetic(raw),
            "add" | "sub" | "mad" if raw.modifiers.contains(&"cc") => self.carry_arithmetic(raw),
            "add" | "sub" | "mul" | "fma" | "div" | "min" | "max" | "abs" | "neg" | "mad"
                if is_float(raw) =>
            {
                self.float(raw)
            }
            "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "copysign" => self.float(raw),
            "testp" => self.test_number(raw),
            "mad24" => self.mad24(raw),
            "add" | "min" | "max" if is_pair(raw) => self.pair(raw),
            "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "abs" | "neg" | "sad"
            | "mul24" => self.integer(raw),
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(raw),
            "shl" | "shr" => self.shift(raw),
            "shf" => self.funnel_shift(raw),
            "popc" | "clz" | "brev" | "bfind" => self.bits(raw),
            "fns" => self.find_nth_set(raw),
            "bmsk" => self.bit_mask(raw),
            "szext" => self.extend(raw),
            "bfe" => self.extract(raw),
            "bfi" => self.insert(raw),
            "prmt" => self.permute(raw),
            "lop3" => self.lop3(raw),
            "dp4a" => self.dot_product(raw),
            "dp2a" => self.dot_product_of_halves(raw),
            _ if is_video(raw.opcode) => self.video(raw),
            "setp" => self.compare(raw),
            "set" => self.compare_to_number(raw),
            "selp" => self.select(raw),
            "slct" => self.select_by_sign(raw),
            "bra" => self.branch(raw),
            "brx" => self.indexed_branch(raw),
            "exit" => self.exit(raw),
            "trap" => self.trap(raw),
            "cp" => self.copy_async(raw),
            "bar" | "barrier" => self.barrier(raw),
            "membar" | "fence" => self.fence_or_nothing(raw),
            "nanosleep" => self.sleep(raw),
            "shfl" => self.shuffle(raw),
            "vote" => self.vote(raw),
            "match" => self.match_lanes(raw),
            "redux" => self.redux(raw),
            "ldmatrix" => self.load_matrices(raw),
            "mma" => self.multiply_matrices(raw),
            "activemask" => self.active_mask(raw),
            _ => unsupported(raw),
        }
    }
}

fn is_pair(raw: &Raw<'_>) -> bool {
    matches!(raw.modifiers.last(), Some(&("u16x2" | "s16x2")))
}

fn is_float(raw: &Raw<'_>) -> bool {
    raw.modifiers.last().and_then(|name| Type::parse(name)).is_some_and(Type::is_float)
}
