//! What all resolvers share: modifiers, operands, and errors about them.

use crate::syntax::{Operand, Written};
use crate::types::Type;

/// The result of resolving an instruction; `Err` is the text of the diagnostic.
pub(super) type Resolution<T> = Result<T, String>;

/// An instruction's modifiers, taken one by one. If a modifier is left over, the instruction is not supported.
pub(super) struct Modifiers<'r, 'a> {
    written: &'r Written<'a>,
    pub(super) rest: Vec<&'a str>,
}

impl<'r, 'a> Modifiers<'r, 'a> {
    pub(super) fn of(written: &'r Written<'a>) -> Self {
        Self { written, rest: written.modifiers.clone() }
    }

    pub(super) fn unsupported<T>(&self) -> Resolution<T> {
        unsupported(self.written)
    }

    /// Removes `name` and returns whether it was there.
    pub(super) fn take(&mut self, name: &str) -> bool {
        match self.rest.iter().position(|&modifier| modifier == name) {
            Some(at) => {
                self.rest.remove(at);
                true
            }
            None => false,
        }
    }

    /// Removes the first modifier that `choose` recognizes.
    pub(super) fn choose<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, chosen) =
            self.rest.iter().enumerate().find_map(|(at, modifier)| Some((at, choose(modifier)?)))?;
        self.rest.remove(at);
        Some(chosen)
    }

    /// Removes the last modifier, which is the type.
    pub(super) fn kind(&mut self) -> Resolution<Type> {
        match self.rest.pop().and_then(Type::named) {
            Some(kind) => Ok(kind),
            None => self.unsupported(),
        }
    }

    /// Rejects any remaining modifiers.
    pub(super) fn finish(self) -> Resolution<()> {
        if self.rest.is_empty() { Ok(()) } else { self.unsupported() }
    }
}

/// Returns the type of an instruction that has no other modifier.
pub(super) fn only_kind(written: &Written<'_>) -> Resolution<Type> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    modifiers.finish()?;
    Ok(kind)
}

pub(super) fn unsupported<T>(written: &Written<'_>) -> Resolution<T> {
    Err(written.unsupported())
}

/// Returns the operands after checking that the instruction has the right number of them.
pub(super) fn operands<'a, const N: usize>(written: &mut Written<'a>) -> Resolution<[Operand<'a>; N]> {
    let operands = std::mem::take(&mut written.operands);
    let count = operands.len();
    operands.try_into().map_err(|_| format!("`{}` takes {N} operands, not {count}", written.name()))
}

/// Returns the destination and `count` sources.
pub(super) fn destination_and_sources<'a>(
    written: &mut Written<'a>,
    count: usize,
) -> Resolution<(Operand<'a>, Vec<Operand<'a>>)> {
    let mut operands = std::mem::take(&mut written.operands);
    if operands.len() != count + 1 {
        return wrong_number(written);
    }
    let d = operands.remove(0);
    Ok((d, operands))
}

pub(super) fn wrong_number<T>(written: &Written<'_>) -> Resolution<T> {
    Err(format!("`{}` has the wrong number of operands", written.name()))
}
