//! Integer instructions on the halves and bytes of a word, and what else of them is rare.

use super::super::instruction::{Packed, PermuteMode, Slot, Video, VideoOp, WordOp};
use super::super::lower::Lowering;
use super::super::syntax::Raw;
use super::{Decoded, Modifiers, Type, operands, unsupported};

/// An SIMD video instruction's operation and how many parts a word has.
fn video(opcode: &str) -> Option<(VideoOp, u8)> {
    let (name, parts) = match (opcode.strip_suffix('2'), opcode.strip_suffix('4')) {
        (Some(name), _) => (name, 2),
        (_, Some(name)) => (name, 4),
        _ => return None,
    };
    let op = match name {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Sub,
        "vavrg" => VideoOp::Average,
        "vabsdiff" => VideoOp::AbsDiff,
        "vmin" => VideoOp::Min,
        "vmax" => VideoOp::Max,
        _ => return None,
    };
    Some((op, parts))
}

pub(super) fn is_video(opcode: &str) -> bool {
    video(opcode).is_some()
}

impl<'a> Lowering<'_, 'a> {
    /// `prmt.b32`, with a selector for each byte or one of the modes.
    pub(super) fn permute(&mut self, raw: &Raw<'a>) -> Decoded {
        let mode = match raw.modifiers.as_slice() {
            ["b32"] => return self.three_words(raw, WordOp::Prmt),
            ["b32", mode] => match *mode {
                "f4e" => PermuteMode::Forward,
                "b4e" => PermuteMode::Backward,
                "rc8" => PermuteMode::Replicate8,
                "ecl" => PermuteMode::ClampLeft,
                "ecr" => PermuteMode::ClampRight,
                "rc16" => PermuteMode::Replicate16,
                _ => return unsupported(raw),
            },
            _ => return unsupported(raw),
        };
        self.three_words(raw, WordOp::PrmtMode(mode))
    }

    /// `dp2a`: products of `a`'s halves with two of `b`'s bytes.
    pub(super) fn dot_product_of_halves(&mut self, raw: &Raw<'a>) -> Decoded {
        let [part @ ("lo" | "hi"), a @ ("s32" | "u32"), b @ ("s32" | "u32")] = raw.modifiers.as_slice()
        else {
            return unsupported(raw);
        };
        let op = WordOp::Dp2a { high: *part == "hi", signed: [*a == "s32", *b == "s32"] };
        self.three_words(raw, op)
    }

    /// `fns`: where the n-th bit set is.
    pub(super) fn find_nth_set(&mut self, raw: &Raw<'a>) -> Decoded {
        match raw.modifiers.as_slice() {
            ["b32"] => self.three_words(raw, WordOp::Fns),
            _ => unsupported(raw),
        }
    }

    /// `bmsk`: a mask of so many ones from a bit on.
    pub(super) fn bit_mask(&mut self, raw: &Raw<'a>) -> Decoded {
        match raw.modifiers.as_slice() {
            [mode @ ("clamp" | "wrap"), "b32"] => {
                self.two_words(raw, WordOp::BitMask { clamp: *mode == "clamp" })
            }
            _ => unsupported(raw),
        }
    }

    /// `szext`: the low bits of a word, sign- or zero-extended.
    pub(super) fn extend(&mut self, raw: &Raw<'a>) -> Decoded {
        match raw.modifiers.as_slice() {
            [mode @ ("clamp" | "wrap"), kind @ ("u32" | "s32")] => {
                self.two_words(raw, WordOp::Extend { clamp: *mode == "clamp", signed: *kind == "s32" })
            }
            _ => unsupported(raw),
        }
    }

    fn two_words(&mut self, raw: &Raw<'a>, op: WordOp) -> Decoded {
        let [d, a, b] = operands(raw)?;
        let sources = [self.word(a, Type::B32)?, self.word(b, Type::B32)?];
        let d = self.word_destination(d)?;
        self.emit_word(op, d, sources);
        Ok(())
    }

    /// `mad24`: a product of 24 bits, then a sum.
    pub(super) fn mad24(&mut self, raw: &Raw<'a>) -> Decoded {
        let (product, sum) = match raw.modifiers.as_slice() {
            ["lo", "s32"] => (WordOp::Mul24S, WordOp::Add),
            ["lo", "u32"] => (WordOp::Mul24U, WordOp::Add),
            ["hi", "s32"] => (WordOp::Mul24HighS, WordOp::Add),
            ["hi", "u32"] => (WordOp::Mul24HighU, WordOp::Add),
            ["hi", "sat", "s32"] => (WordOp::Mul24HighS, WordOp::AddSaturated),
            _ => return unsupported(raw),
        };
        let [d, a, b, c] = operands(raw)?;
        let sources = [self.word(a, Type::B32)?, self.word(b, Type::B32)?];
        let (c, d) = (self.word(c, Type::B32)?, self.word_destination(d)?);
        let between = self.new_word();
        self.emit_word(product, between, sources);
        self.emit_word(sum, d, [between, c]);
        Ok(())
    }

    /// `add.u16x2`, `max.relu.s16x2`: on both halves.
    pub(super) fn pair(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let signed = modifiers.rest.pop() == Some("s16x2");
        let relu = modifiers.take("relu");
        modifiers.finish()?;
        let op = match (raw.opcode, signed) {
            ("add", _) if relu => return unsupported(raw),
            ("add", _) => Packed::Add,
            ("min", true) => Packed::MinS,
            ("max", true) => Packed::MaxS,
            _ if relu => return unsupported(raw),
            ("min", false) => Packed::MinU,
            ("max", false) => Packed::MaxU,
            _ => return unsupported(raw),
        };
        let [d, a, b] = operands(raw)?;
        let sources = [self.word(a, Type::B32)?, self.word(b, Type::B32)?];
        let d = self.word_destination(d)?;
        self.emit_word(WordOp::Packed(op), d, sources);
        if relu {
            self.emit_word(WordOp::Packed(Packed::MaxS), d, [d, Slot::uniform(0)]);
        }
        Ok(())
    }

    /// `vadd4.u32.s32.u32.sat d, a, b, c` and its kin, on all parts of a word in their order.
    pub(super) fn video(&mut self, raw: &Raw<'a>) -> Decoded {
        let Some((op, parts)) = video(raw.opcode) else { return unsupported(raw) };
        let [d_type, a_type, b_type, rest @ ..] = raw.modifiers.as_slice() else { return unsupported(raw) };
        let mut signed = [false; 3];
        for (signed, name) in signed.iter_mut().zip([d_type, a_type, b_type]) {
            *signed = match *name {
                "s32" => true,
                "u32" => false,
                _ => return unsupported(raw),
            };
        }
        let (saturate, sum) = match rest {
            [] => (false, false),
            ["sat"] => (true, false),
            ["add"] => (false, true),
            _ => return unsupported(raw),
        };
        self.three_words(raw, WordOp::Video(Video { op, parts, signed, saturate, sum }))
    }
}
