//! Texture Instructions and Surface Instructions. A texture or surface is a handle in a `.u64` register.

use super::modifiers::{Modifiers, Resolution, unsupported, wrong_number};
use crate::instruction::{ChannelType, Outside, Property, Shape};
use crate::resolved::{Form, ResolvedDetail, SurfaceAccess, TextureFetch};
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// `tex`
///
/// ```text
/// tex.geom.v4.dtype.ctype        d, [a, c];
/// tex.geom.v2.f16x2.ctype        d, [a, c];
/// tex.base.geom.v4.dtype.ctype   d, [a, c];                (also .v2.f16x2)
/// tex.level.geom.v4.dtype.ctype  d, [a, c], lod;           (also .v2.f16x2)
/// tex.grad.geom.v4.dtype.ctype   d, [a, c], dPdx, dPdy;    (also .v2.f16x2; not with .cube, .acube)
/// .geom = { .1d, .2d, .3d, .a1d, .a2d, .cube, .acube };
/// .dtype = { .u32, .s32, .f16, .f32 };  .ctype = { .s32, .f32 };    // .cube, .acube require .f32
/// ```
pub(super) fn tex<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let detail = modifiers.choose(|name| ["base", "level", "grad"].into_iter().find(|one| *one == name));
    let is_integer = match modifiers.kind()? {
        Type::S32 => true,
        Type::F32 => false,
        _ => return modifiers.unsupported(),
    };
    let kind = modifiers.kind()?;
    let (result, count) = match (kind, modifiers.rest.pop()) {
        (Type::U32 | Type::S32 | Type::F32, Some("v4")) => (ChannelType::Bits, 4),
        (Type::F16, Some("v4")) => (ChannelType::Half, 4),
        (Type::F16x2, Some("v2")) => (ChannelType::HalfPair, 2),
        _ => return modifiers.unsupported(),
    };
    let Some(shape) = modifiers.rest.pop().and_then(shape) else { return modifiers.unsupported() };
    let is_cube = matches!(shape, Shape::Cube | Shape::ACube);
    if is_cube && (is_integer || detail == Some("grad")) {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(Operand::Vector(d)), Some(place)) = (operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let detail = match detail {
        Some("level") => operands.next().map(ResolvedDetail::Level),
        Some("grad") => match (operands.next(), operands.next()) {
            (Some(x), Some(y)) => {
                Some(ResolvedDetail::Gradients([slopes(written, shape, x)?, slopes(written, shape, y)?]))
            }
            _ => None,
        },
        _ => Some(ResolvedDetail::Base),
    };
    let (Some(detail), None) = (detail, operands.next()) else { return wrong_number(written) };
    if d.len() != count {
        return wrong_number(written);
    }
    let Place { name, index, coordinates } = place_in(written, shape, place)?;
    let gathered = None;
    let fetch =
        TextureFetch { shape, name, index, coordinates, is_integer, detail, gathered, result, kind, d };
    Ok(Form::FetchTexture(fetch))
}

/// `tld4`
///
/// ```text
/// tld4.comp.geom.v4.dtype.f32  d, [a, c];
/// .comp = { .r, .g, .b, .a };  .geom = { .2d, .a2d, .cube, .acube };  .dtype = { .u32, .s32, .f32 };
/// ```
pub(super) fn tld4<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let [component, geometry, "v4", kind, "f32"] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    let channel = ["r", "g", "b", "a"].iter().position(|name| name == component);
    let shape = shape(geometry).filter(|shape| shape.dimensions() > 1 && *shape != Shape::D3);
    let kind = Type::named(kind).filter(|kind| matches!(kind, Type::U32 | Type::S32 | Type::F32));
    let (Some(channel), Some(shape), Some(kind)) = (channel, shape, kind) else {
        return unsupported(written);
    };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(Operand::Vector(d)), Some(place), None) = (operands.next(), operands.next(), operands.next())
    else {
        return wrong_number(written);
    };
    if d.len() != 4 {
        return wrong_number(written);
    }
    let Place { name, index, coordinates } = place_in(written, shape, place)?;
    let (detail, gathered, result) = (ResolvedDetail::Base, Some(channel as u8), ChannelType::Bits);
    let is_integer = false;
    let fetch =
        TextureFetch { shape, name, index, coordinates, is_integer, detail, gathered, result, kind, d };
    Ok(Form::FetchTexture(fetch))
}

/// `txq`, `suq`
///
/// ```text
/// txq.tquery.b32         d, [a];        txq.level.tlquery.b32  d, [a], lod;
/// .tquery = { .width, .height, .depth, .array_size, .num_mipmap_levels, .normalized_coords };
/// .tlquery = { .width, .height, .depth };
/// suq.query.b32          d, [a];
/// .query = { .width, .height, .depth, .array_size, .memory_layout };
/// ```
pub(super) fn query<'a>(written: &mut Written<'a>, is_surface: bool) -> Resolution<Form<'a>> {
    let (has_level, property) = match written.modifiers.as_slice() {
        ["level", property, "b32"] if !is_surface => (true, *property),
        [property, "b32"] => (false, *property),
        _ => return unsupported(written),
    };
    let property = match property {
        "width" => Property::Width,
        "height" => Property::Height,
        "depth" => Property::Depth,
        "array_size" if !has_level => Property::ArraySize,
        "num_mipmap_levels" if !has_level && !is_surface => Property::MipmapLevels,
        "normalized_coords" if !has_level && !is_surface => Property::NormalizedCoordinates,
        "memory_layout" if is_surface => Property::MemoryLayout,
        _ => return unsupported(written),
    };
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(d), Some(Operand::Address { name: Some(name), offset: 0 })) =
        (operands.next(), operands.next())
    else {
        return wrong_number(written);
    };
    let level = if has_level { operands.next() } else { None };
    if level.is_some() != has_level || operands.next().is_some() {
        return wrong_number(written);
    }
    Ok(Form::QueryObject { is_surface, name, property, level, d })
}

/// `suld`, `sust`
///
/// ```text
/// suld.b.geom{.cop}.vec.dtype.clamp  d, [a, b];    .cop = { .ca, .cg, .cs, .cv };
/// sust.b.geom{.cop}.vec.ctype.clamp  [a, b], c;    .cop = { .wb, .cg, .cs, .wt };
/// .geom = { .1d, .2d, .3d, .a1d, .a2d };  .vec = { none, .v2, .v4 };  .dtype = .ctype = { .b8, .b16, .b32, .b64 };
/// .clamp = { .trap, .clamp, .zero };
/// ```
pub(super) fn surface<'a>(written: &mut Written<'a>, is_store: bool) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    if !modifiers.take("b") {
        return modifiers.unsupported();
    }
    let outside = modifiers.choose(|name| match name {
        "trap" => Some(Outside::Trap),
        "clamp" => Some(Outside::Clamp),
        "zero" => Some(Outside::Zero),
        _ => None,
    });
    let operators = if is_store { ["wb", "cg", "cs", "wt"] } else { ["ca", "cg", "cs", "cv"] };
    modifiers.choose(|name| operators.contains(&name).then_some(()));
    let kind = modifiers.kind()?;
    let count = modifiers.choose(|name| match name {
        "v2" => Some(2),
        "v4" => Some(4),
        _ => None,
    });
    let count = count.unwrap_or(1);
    let shape = modifiers.choose(shape).filter(|shape| !matches!(shape, Shape::Cube | Shape::ACube));
    let (Some(shape), Some(outside)) = (shape.filter(|_| kind.is_untyped()), outside) else {
        return modifiers.unsupported();
    };
    modifiers.finish()?;
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(first), Some(second), None) = (operands.next(), operands.next(), operands.next()) else {
        return wrong_number(written);
    };
    let (values, place) = if is_store { (second, first) } else { (first, second) };
    let values = match values {
        Operand::Vector(values) => values,
        value => vec![value],
    };
    if values.len() != count || count == 4 && kind == Type::B64 {
        return wrong_number(written);
    }
    let Place { name, index, coordinates } = place_in(written, shape, place)?;
    Ok(Form::AccessSurface(SurfaceAccess {
        is_store,
        shape,
        outside,
        name,
        index,
        coordinates,
        kind,
        values,
    }))
}

fn shape(name: &str) -> Option<Shape> {
    Some(match name {
        "1d" => Shape::D1,
        "2d" => Shape::D2,
        "3d" => Shape::D3,
        "a1d" => Shape::A1d,
        "a2d" => Shape::A2d,
        "cube" => Shape::Cube,
        "acube" => Shape::ACube,
        _ => return None,
    })
}

/// An element of a texture or surface.
struct Place<'a> {
    name: &'a str,
    index: Option<Operand<'a>>,
    coordinates: Vec<Operand<'a>>,
}

/// Returns the parts of `[a, {…}]`. Three elements are padded to four.
fn place_in<'a>(written: &Written<'a>, shape: Shape, place: Operand<'a>) -> Resolution<Place<'a>> {
    let Operand::Compound { name, offset: 0, mut coordinates } = place else { return wrong_number(written) };
    let index = (shape.has_index() && !coordinates.is_empty()).then(|| coordinates.remove(0));
    let dimensions = shape.dimensions();
    let elements = dimensions + usize::from(index.is_some());
    if elements == 3 && coordinates.len() == dimensions + 1 {
        coordinates.pop();
    }
    if coordinates.len() != dimensions {
        return wrong_number(written);
    }
    Ok(Place { name, index, coordinates })
}

/// Returns the elements of `dPdx` or `dPdy`. Those for three dimensions are padded to four.
fn slopes<'a>(written: &Written<'a>, shape: Shape, slopes: Operand<'a>) -> Resolution<Vec<Operand<'a>>> {
    let mut slopes = match slopes {
        Operand::Vector(slopes) => slopes,
        slope => vec![slope],
    };
    let dimensions = shape.dimensions();
    if dimensions == 3 && slopes.len() == 4 {
        slopes.pop();
    }
    if slopes.len() == dimensions { Ok(slopes) } else { wrong_number(written) }
}
