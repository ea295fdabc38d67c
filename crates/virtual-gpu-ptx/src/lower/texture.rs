//! Reads of textures, and accesses to surfaces.

use super::builder::Lowering;
use super::names::Binding;
use super::operand::Lowered;
use crate::instruction::{
    ChannelType, Detail, ObjectQuery, Operation, Property, Slot, SurfaceAccess as LoweredAccess,
    TextureFetch as LoweredFetch,
};
use crate::resolved::{ResolvedDetail, SurfaceAccess, TextureFetch};
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `tex` and `tld4`.
    pub(crate) fn fetch_texture(&mut self, fetch: &TextureFetch<'a>) -> Lowered {
        let kind = if fetch.is_integer { Type::S32 } else { Type::F32 };
        let handle = self.handle(fetch.name)?;
        let index = fetch.index.as_ref().map(|index| self.word(index, Type::B32)).transpose()?;
        let coordinates = self.words_of(&fetch.coordinates, kind)?;
        let detail = match &fetch.detail {
            ResolvedDetail::Base => Detail::Base,
            ResolvedDetail::Level(level) => Detail::Level(self.word(level, Type::F32)?),
            ResolvedDetail::Gradients([x, y]) => {
                Detail::Gradients([self.words_of(x, Type::F32)?, self.words_of(y, Type::F32)?])
            }
        };
        let kind = if fetch.result == ChannelType::HalfPair { Type::B32 } else { fetch.kind };
        let d = fetch.d.iter().map(|d| self.word_destination(d, kind)).collect::<Lowered<Box<[Slot]>>>()?;
        let TextureFetch { shape, is_integer, gathered, result, .. } = *fetch;
        let fetch =
            LoweredFetch { shape, handle, index, coordinates, is_integer, detail, gathered, result, d };
        self.emit(Operation::FetchTexture(fetch.into()));
        Ok(())
    }

    /// Lowers `txq` and `suq`.
    pub(crate) fn query_object(
        &mut self,
        is_surface: bool,
        name: &'a str,
        property: Property,
        level: Option<&Operand<'a>>,
        d: &Operand<'a>,
    ) -> Lowered {
        let handle = self.handle(name)?;
        let level = level.map(|level| self.word(level, Type::B32)).transpose()?;
        let d = self.word_destination(d, Type::B32)?;
        self.emit(Operation::QueryObject(ObjectQuery { is_surface, handle, property, level, d }.into()));
        Ok(())
    }

    /// Lowers `suld` and `sust`.
    pub(crate) fn access_surface(&mut self, access: &SurfaceAccess<'a>) -> Lowered {
        let SurfaceAccess { is_store, shape, outside, kind, .. } = *access;
        let handle = self.handle(access.name)?;
        let index = access.index.as_ref().map(|index| self.word(index, Type::B32)).transpose()?;
        let coordinates = self.words_of(&access.coordinates, Type::S32)?;
        let values = access.values.iter().map(|value| match is_store {
            true => self.wide_value(value, kind),
            false if *value == Operand::Sink => self.value_destination(value, kind),
            false => self.wide_destination(value, kind).map(|(value, _)| value),
        });
        let values = values.collect::<Lowered<Box<[_]>>>()?;
        let bytes = kind.bits() / 8;
        let access = LoweredAccess { is_store, shape, outside, handle, index, coordinates, bytes, values };
        self.emit(Operation::AccessSurface(access.into()));
        Ok(())
    }

    /// Returns the register with the handle of a texture or surface object.
    fn handle(&mut self, name: &'a str) -> Lowered<Slot> {
        match self.find(name) {
            Some(Binding::Long(index, kind)) if !kind.is_float() => Ok(Slot::register(index)),
            Some(_) => {
                Err(format!("`{name}` is not a `.u64` register with the handle of a texture or surface"))
            }
            None => Err(format!("`{name}` is not declared")),
        }
    }

    /// Lowers 32-bit sources.
    pub(super) fn words_of(&mut self, operands: &[Operand<'a>], kind: Type) -> Lowered<Box<[Slot]>> {
        operands.iter().map(|operand| self.word(operand, kind)).collect()
    }
}
