//! The bodies of the functions that make tensor maps.

use std::ffi::{c_int, c_uint, c_ulonglong};

use virtual_gpu_core::status::{CudaResult, invalid, unsupported};
use virtual_gpu_core::tensor_map::{
    BYTES, ElementType, MOST_DIMENSIONS, MOST_ELEMENTS, PIECE, Part, STRIDES_END, Swizzle, TensorMap as Map,
};

use crate::pointer::{Out, Source};
use crate::types::DevicePointer;

/// `CUtensorMap`
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct TensorMap {
    opaque: [u8; BYTES],
}

/// The most elements along each dimension of a tile, and the most channels of im2col.
const LARGEST_TILE: u32 = 256;
/// The most pixels of im2col.
const MOST_PIXELS: u32 = 1024;
/// The largest step between elements.
const LARGEST_STEP: u32 = 8;
/// The numbers of `CUtensorMapDataType` that CUDA 12.9 has, with packed types and types that are rounded to TF32.
const TYPES: c_uint = 16;
/// The same for `CUtensorMapSwizzle`, with patterns that move 32 or 64 bytes.
const PATTERNS: c_uint = 7;

/// `cuTensorMapEncodeTiled`
#[expect(clippy::too_many_arguments, reason = "the function's parameters")]
pub(crate) fn encode_tiled(
    to: Out<TensorMap>,
    element: c_uint,
    rank: c_uint,
    address: DevicePointer,
    dimensions: Source<c_ulonglong>,
    strides: Source<c_ulonglong>,
    size: Source<c_uint>,
    steps: Source<c_uint>,
    interleave: c_uint,
    swizzle: c_uint,
    promotion: c_uint,
    fill: c_uint,
) -> CudaResult<()> {
    check_target(to)?;
    let layout = Layout { element, rank, address, dimensions, strides, steps };
    let modes = Modes { interleave, swizzle, promotion, fill };
    let mut map = map(1, &layout, &modes)?;
    let sizes = size.values(map.rank)?;
    let mut size = [1; MOST_DIMENSIONS];
    for (at, (to, &from)) in size.iter_mut().zip(&sizes).enumerate() {
        if !(1..=LARGEST_TILE).contains(&from) {
            return Err(invalid(format!("boxDim[{at}] must be from 1 to {LARGEST_TILE}, not {from}")));
        }
        *to = from as u16;
    }
    check_row(&map, "boxDim[0]", sizes[0])?;
    map.part = Part::Tile { size };
    to.give(TensorMap { opaque: map.to_bytes() })
}

/// `cuTensorMapEncodeIm2col`
#[expect(clippy::too_many_arguments, reason = "the function's parameters")]
pub(crate) fn encode_im2col(
    to: Out<TensorMap>,
    element: c_uint,
    rank: c_uint,
    address: DevicePointer,
    dimensions: Source<c_ulonglong>,
    strides: Source<c_ulonglong>,
    lower: Source<c_int>,
    upper: Source<c_int>,
    channels: c_uint,
    pixels: c_uint,
    steps: Source<c_uint>,
    interleave: c_uint,
    swizzle: c_uint,
    promotion: c_uint,
    fill: c_uint,
) -> CudaResult<()> {
    check_target(to)?;
    let layout = Layout { element, rank, address, dimensions, strides, steps };
    let modes = Modes { interleave, swizzle, promotion, fill };
    let mut map = map(3, &layout, &modes)?;
    let (lower, upper) = (corner(map.rank, "Lower", lower)?, corner(map.rank, "Upper", upper)?);
    for at in 0..map.rank - 2 {
        let last = map.dimensions[at + 1] as i64 - 1 + i64::from(upper[at]);
        if last < i64::from(lower[at]) {
            let message = format!(
                "the bounding box is empty: along {}, it begins at {} and ends at {last}",
                ["W", "H", "D"][at],
                lower[at]
            );
            return Err(invalid(message));
        }
    }
    for (name, value, most) in
        [("channelsPerPixel", channels, LARGEST_TILE), ("pixelsPerColumn", pixels, MOST_PIXELS)]
    {
        if !(1..=most).contains(&value) {
            return Err(invalid(format!("{name} must be from 1 to {most}, not {value}")));
        }
    }
    check_row(&map, "channelsPerPixel", channels)?;
    map.part = Part::Im2col { lower, upper, channels: channels as u16, pixels: pixels as u16 };
    to.give(TensorMap { opaque: map.to_bytes() })
}

/// `cuTensorMapReplaceAddress`
pub(crate) fn replace_address(map: Out<TensorMap>, address: DevicePointer) -> CudaResult<()> {
    check_target(map)?;
    let bytes = Source::<TensorMap>::at(map.address()).value("the pointer to the tensor map")?;
    let Some(mut changed) = Map::from_bytes(&bytes.opaque) else {
        return Err(invalid("the pointer is not to a tensor map that cuTensorMapEncodeTiled has made"));
    };
    check_address(address)?;
    changed.address = address;
    map.give(TensorMap { opaque: changed.to_bytes() })
}

/// Checks the pointer to a tensor map.
fn check_target(to: Out<TensorMap>) -> CudaResult<()> {
    to.check("the pointer to the tensor map")?;
    match to.address().is_multiple_of(align_of::<TensorMap>()) {
        true => Ok(()),
        false => Err(invalid(format!(
            "a tensor map must be aligned to 64 bytes, and {:#x} is not; declare it with `alignas(64)` or \
             `#[repr(align(64))]`",
            to.address()
        ))),
    }
}

fn check_address(address: DevicePointer) -> CudaResult<()> {
    match address != 0 && address.is_multiple_of(PIECE as u64) {
        true => Ok(()),
        false => {
            Err(invalid(format!("globalAddress must be a multiple of 16, and not 0; it is {address:#x}")))
        }
    }
}

/// The parameters that tell where a tensor is.
struct Layout {
    element: c_uint,
    rank: c_uint,
    address: DevicePointer,
    dimensions: Source<c_ulonglong>,
    strides: Source<c_ulonglong>,
    steps: Source<c_uint>,
}

/// The parameters with the numbers of enumerations.
struct Modes {
    interleave: c_uint,
    swizzle: c_uint,
    promotion: c_uint,
    fill: c_uint,
}

/// Returns a map without its part.
fn map(least_rank: usize, layout: &Layout, modes: &Modes) -> CudaResult<Map> {
    let element = match (ElementType::numbered(layout.element), layout.element) {
        (Some(element), _) => element,
        (None, number @ ..TYPES) => return Err(unsupported(format_args!("tensorDataType {number}"))),
        (None, number) => return Err(invalid(format!("there is no tensorDataType {number}"))),
    };
    let rank = layout.rank as usize;
    if !(least_rank..=MOST_DIMENSIONS).contains(&rank) {
        let message = format!("tensorRank must be from {least_rank} to {MOST_DIMENSIONS}, not {rank}");
        return Err(invalid(message));
    }
    check_address(layout.address)?;
    let mut map = Map {
        element,
        rank,
        address: layout.address,
        dimensions: [1; MOST_DIMENSIONS],
        strides: [0; MOST_DIMENSIONS - 1],
        steps: [1; MOST_DIMENSIONS],
        swizzle: Swizzle::None,
        fills_with_nan: false,
        part: Part::Tile { size: [1; MOST_DIMENSIONS] },
    };
    for (at, (to, from)) in map.dimensions.iter_mut().zip(layout.dimensions.values(rank)?).enumerate() {
        if !(1..=MOST_ELEMENTS).contains(&from) {
            return Err(invalid(format!("globalDim[{at}] must be from 1 to 2^32, not {from}")));
        }
        *to = from;
    }
    for (at, (to, from)) in map.strides.iter_mut().zip(layout.strides.values(rank - 1)?).enumerate() {
        if !from.is_multiple_of(PIECE as u64) || from >= STRIDES_END {
            let message = format!(
                "globalStrides[{at}] must be a multiple of 16 bytes and less than 2^40, and it is {from}"
            );
            return Err(invalid(message));
        }
        *to = from;
    }
    for (at, (to, from)) in map.steps.iter_mut().zip(layout.steps.values(rank)?).enumerate() {
        if !(1..=LARGEST_STEP).contains(&from) {
            return Err(invalid(format!(
                "elementStrides[{at}] must be from 1 to {LARGEST_STEP}, not {from}"
            )));
        }
        *to = from as u8;
    }
    match modes.interleave {
        0 => {}
        number @ 1..=2 => return Err(unsupported(format_args!("interleave {number}"))),
        number => return Err(invalid(format!("there is no interleave {number}"))),
    }
    map.swizzle = match (Swizzle::numbered(modes.swizzle), modes.swizzle) {
        (Some(swizzle), _) => swizzle,
        (None, number @ ..PATTERNS) => return Err(unsupported(format_args!("swizzle {number}"))),
        (None, number) => return Err(invalid(format!("there is no swizzle {number}"))),
    };
    if modes.promotion > 3 {
        return Err(invalid(format!("there is no l2Promotion {}", modes.promotion)));
    }
    map.fills_with_nan = match modes.fill {
        0 => false,
        1 if element.is_float() => true,
        1 => return Err(invalid("oobFill can be NaN only for floating-point types")),
        number => return Err(invalid(format!("there is no oobFill {number}"))),
    };
    Ok(map)
}

/// Checks the number of elements along the innermost dimension of a part.
fn check_row(map: &Map, name: &str, elements: c_uint) -> CudaResult<()> {
    let bytes = elements as usize * map.element.bytes();
    if !bytes.is_multiple_of(PIECE) {
        let message =
            format!("{name} elements must take a multiple of 16 bytes, and {elements} take {bytes}");
        return Err(invalid(message));
    }
    match map.swizzle.span() {
        Some(span) if bytes > span => Err(invalid(format!(
            "with this swizzle, {name} elements can take at most {span} bytes, and {elements} take {bytes}"
        ))),
        _ => Ok(()),
    }
}

/// Returns a corner of the bounding box.
fn corner(rank: usize, name: &str, corner: Source<c_int>) -> CudaResult<[i16; 3]> {
    let end = match rank {
        3 => 1 << 15,
        4 => 1 << 7,
        _ => 1 << 4,
    };
    let mut found = [0; 3];
    for (at, (to, from)) in found.iter_mut().zip(corner.values(rank - 2)?).enumerate() {
        if !(-end..end).contains(&from) {
            let message = format!(
                "pixelBox{name}Corner[{at}] must be from {} to {} for a tensor of rank {rank}, not {from}",
                -end,
                end - 1
            );
            return Err(invalid(message));
        }
        *to = from as i16;
    }
    Ok(found)
}
