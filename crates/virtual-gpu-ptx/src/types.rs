//! The types of PTX.

/// The manual's Fundamental Types and Packed Data Types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
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
    /// Returns the type with this name, which has no dot.
    pub(crate) fn named(name: &str) -> Option<Self> {
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

    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Returns the size of a variable in bytes; a predicate takes one byte.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.bits().div_ceil(8))
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_untyped(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64)
    }

    /// Returns whether a register of this type can be an operand of an instruction with the type `kind`, and may be
    /// wider, as for `ld`, `st`, and `cvt`.
    ///
    /// Manual, "Operand Size Exceeding Instruction-Type Size": bit-size registers go with any instruction type, and any
    /// register with a bit-size instruction type; integers go with integers; floating-point types must be the same.
    pub(crate) fn holds(self, kind: Self) -> bool {
        let same_kind = match (self.is_float(), kind.is_float()) {
            (false, false) => true,
            (true, true) => self == kind,
            _ => false,
        };
        self.bits() >= kind.bits() && (same_kind || self.is_untyped() || kind.is_untyped())
    }

    /// Like [`Self::holds`], for instructions whose operands must have the size of their type (manual, "Type Checking
    /// Rules").
    pub(crate) fn agrees(self, kind: Self) -> bool {
        self.bits() == kind.bits() && self.holds(kind)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pred => "pred",
            Self::B8 => "b8",
            Self::B16 => "b16",
            Self::B32 => "b32",
            Self::B64 => "b64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::S8 => "s8",
            Self::S16 => "s16",
            Self::S32 => "s32",
            Self::S64 => "s64",
            Self::F16 => "f16",
            Self::F16x2 => "f16x2",
            Self::Bf16 => "bf16",
            Self::Bf16x2 => "bf16x2",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F16x2 | Self::Bf16 | Self::Bf16x2 | Self::F32 | Self::F64)
    }

    /// Returns the type of each half of a packed pair.
    pub(crate) fn half(self) -> Option<Self> {
        match self {
            Self::F16x2 => Some(Self::F16),
            Self::Bf16x2 => Some(Self::Bf16),
            _ => None,
        }
    }
}
