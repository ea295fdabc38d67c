//! Registers, and the operands that instructions read and write through them.

/// A 32- or 64-bit register, or a uniform value. The instruction determines which file it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

const UNIFORM: u32 = 1 << 31;

impl Slot {
    /// Returns the `index`th register of a thread.
    #[inline]
    pub fn register(index: u32) -> Self {
        Self(index)
    }

    /// Returns the `index`th uniform value.
    #[inline]
    pub fn uniform(index: u32) -> Self {
        Self(index | UNIFORM)
    }

    /// Returns whether every thread of a block sees the same value.
    #[inline]
    pub fn is_uniform(self) -> bool {
        self.0 & UNIFORM != 0
    }

    /// Returns its index among the registers, or among the uniform values.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & !UNIFORM) as usize
    }
}

/// A predicate register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Predicate(pub u32);

/// A predicate as a source, possibly negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The register.
    pub predicate: Predicate,
    /// Whether it is negated.
    pub negated: bool,
}

/// A register or uniform value with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "32 and 64 bits")]
pub enum Value {
    Word(Slot),
    Long(Slot),
}

/// The address of a memory instruction: a base that depends on the thread, and a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    /// The register part.
    pub base: Value,
    /// The constant part, in bytes.
    pub offset: i64,
}
