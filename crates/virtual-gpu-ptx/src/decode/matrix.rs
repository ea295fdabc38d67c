//! Matrices that are spread over a warp's registers.

use super::super::instruction::{MatrixElement, MatrixLoad, MatrixProduct, Operation, Slot, Space};
use super::super::kernel::Uniform;
use super::super::lower::Lowering;
use super::super::syntax::{Operand, Raw};
use super::{Decoded, Type, operands, unsupported};

impl<'a> Lowering<'_, 'a> {
    /// `ldmatrix`
    pub(super) fn load_matrices(&mut self, raw: &Raw<'a>) -> Decoded {
        let ["sync", "aligned", "m8n8", count, options @ .., "b16"] = raw.modifiers.as_slice() else {
            return unsupported(raw);
        };
        let count = match *count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return unsupported(raw),
        };
        let (transposed, space) = match options {
            ["trans", space @ ..] => (true, space),
            space => (false, space),
        };
        let space = match space {
            [] => Space::Generic,
            ["shared" | "shared::cta"] => Space::Shared,
            _ => return unsupported(raw),
        };
        let [d, address] = operands(raw)?;
        let destinations = self.fragment(raw, d, count, true)?;
        let (space, address) = self.address(address, space)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return unsupported(raw);
        }
        let members = self.whole_warp();
        let load = MatrixLoad { space, address, transposed, destinations, members };
        self.emit(Operation::LoadMatrices(load.into()));
        Ok(())
    }

    /// `mma`
    pub(super) fn multiply_matrices(&mut self, raw: &Raw<'a>) -> Decoded {
        use MatrixElement::{Bf16, F16, Tf32};
        let ["sync", "aligned", shape, "row", "col", types @ ..] = raw.modifiers.as_slice() else {
            return unsupported(raw);
        };
        let (element, in_halves) = match types {
            ["f16", "f16", "f16", "f16"] => (F16, true),
            ["f32", "f16", "f16", "f32"] => (F16, false),
            ["f32", "bf16", "bf16", "f32"] => (Bf16, false),
            ["f32", "tf32", "tf32", "f32"] => (Tf32, false),
            _ => return unsupported(raw),
        };
        let sources = match (*shape, element) {
            ("m16n8k8", F16 | Bf16) | ("m16n8k4", Tf32) => 2,
            ("m16n8k16", F16 | Bf16) | ("m16n8k8", Tf32) => 4,
            _ => return unsupported(raw),
        };
        let results = if in_halves { 2 } else { 4 };
        let [d, a, b, c] = operands(raw)?;
        let (a, b) = (self.fragment(raw, a, sources, false)?, self.fragment(raw, b, sources / 2, false)?);
        let (c, d) = (self.fragment(raw, c, results, false)?, self.fragment(raw, d, results, true)?);
        let members = self.whole_warp();
        let product = MatrixProduct { element, in_halves, a, b, c, d, members };
        self.emit(Operation::MultiplyMatrices(product.into()));
        Ok(())
    }

    /// The registers in braces.
    fn fragment(
        &mut self,
        raw: &Raw<'a>,
        operand: &Operand<'a>,
        count: usize,
        is_written: bool,
    ) -> Decoded<Box<[Slot]>> {
        let Operand::Vector(parts) = operand else {
            return Err(format!("`{}` takes registers in braces", raw.name()));
        };
        if parts.len() != count {
            return Err(format!("`{}` takes {count} registers here, not {}", raw.name(), parts.len()));
        }
        let register = |part| match is_written {
            true => self.word_destination(part),
            false => self.word(part, Type::B32),
        };
        parts.iter().map(register).collect()
    }

    fn whole_warp(&mut self) -> Slot {
        self.uniform_word(Uniform::Constant(u64::from(u32::MAX)))
    }
}
