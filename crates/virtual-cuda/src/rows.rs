//! Copies of rows in 2D and 3D, and copies between addresses of any kind.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use virtual_gpu::engine::{CopySide, Engine, GraphCopy, Region};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::array;
use crate::batch::{BatchCopy, Operand};
use crate::engine;
use crate::guard::Rights;
use crate::host_range::HostRange;
use crate::memory::wait_if_asked;
use crate::pointer::Source;
use crate::stream::synchronize_stream;
use crate::types::{DevicePointer, Stream, handle, stream};

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Copy2D {
    pub(crate) from: Plane,
    pub(crate) to: Plane,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// One side of a [`Copy2D`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Plane {
    /// The first column to copy, in bytes.
    pub(crate) x: usize,
    /// The first row to copy.
    pub(crate) y: usize,
    pub(crate) memory: c_uint,
    pub(crate) host: usize,
    pub(crate) device: DevicePointer,
    pub(crate) array: *const c_void,
    /// The distance between two rows in bytes.
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Copy3D {
    pub(crate) from: Volume,
    pub(crate) to: Volume,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// One side of a [`Copy3D`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Volume {
    /// The first column to copy, in bytes.
    pub(crate) x: usize,
    /// The first row to copy.
    pub(crate) y: usize,
    /// The first slice to copy.
    pub(crate) z: usize,
    pub(crate) lod: usize,
    pub(crate) memory: c_uint,
    pub(crate) host: usize,
    pub(crate) device: DevicePointer,
    pub(crate) array: *const c_void,
    /// The context, which unified addressing makes unnecessary, or a reserved field.
    pub(crate) context: *const c_void,
    /// The distance between two rows in bytes.
    pub(crate) pitch: usize,
    /// The distance between two slices in rows.
    pub(crate) height: usize,
}

/// `CUmemorytype`: host, device, array, and an address of any kind.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;
const UNIFIED: c_uint = 4;

/// One side of a copy.
enum Side {
    /// Memory that a kernel can access.
    Gpu(Region),
    /// Memory that the host alone can access, or the host's side of a copy of pinned memory.
    Host(HostRange),
}

/// `cuMemcpy2D` and `cuMemcpy2DUnaligned`
pub(crate) fn copy_2d(copy: Source<Copy2D>) -> CudaResult<()> {
    copy_2d_of(copy, None)
}

/// `cuMemcpy2DAsync`
pub(crate) fn copy_2d_in(copy: Source<Copy2D>, of: Stream) -> CudaResult<()> {
    copy_2d_of(copy, Some(of))
}

fn copy_2d_of(copy: Source<Copy2D>, of: Option<Stream>) -> CudaResult<()> {
    let Copy2D { from, to, width, height } = copy.value("the pointer to the parameters of the copy")?;
    let [from, to] = [from, to].map(|Plane { x, y, memory, host, device, array, pitch }| {
        let context = std::ptr::null();
        Volume { x, y, z: 0, lod: 0, memory, host, device, array, context, pitch, height: 0 }
    });
    copy_rows(&Copy3D { from, to, width, height, depth: 1 }, of)
}

/// `cuMemcpy3D` and `cuMemcpy3DPeer`
pub(crate) fn copy_3d(copy: Source<Copy3D>) -> CudaResult<()> {
    copy_rows(&copy.value("the pointer to the parameters of the copy")?, None)
}

/// `cuMemcpy3DAsync` and `cuMemcpy3DPeerAsync`
pub(crate) fn copy_3d_in(copy: Source<Copy3D>, of: Stream) -> CudaResult<()> {
    copy_rows(&copy.value("the pointer to the parameters of the copy")?, Some(of))
}

/// Copies on a stream.
pub(crate) fn copy_whole(copy: &Copy3D, of: Stream) -> CudaResult<()> {
    copy_rows(copy, Some(of))
}

/// Returns a copy of a batch.
///
/// # Errors
/// Returns `NotSupported` for CUDA arrays.
pub(crate) fn of_batch(copy: &BatchCopy) -> CudaResult<Copy3D> {
    let [width, height, depth] = copy.extent;
    let side = |name: &str, &Operand { kind, address, row, layer, .. }: &Operand| {
        let null = std::ptr::null();
        let memory = match kind {
            1 => UNIFIED,
            2 => {
                let message = format!(
                    "virtual GPU: the copy's {name} is a CUDA array, which is not supported in a batch"
                );
                return Err(Error::new(CudaStatus::NotSupported, message));
            }
            _ => {
                return Err(invalid(format!(
                    "the copy's {name}: {kind} is not a CUmemcpy3DOperandType (1, 2)"
                )));
            }
        };
        let pitch = if row == 0 { width } else { row };
        let rows = if layer == 0 { height } else { layer };
        Ok(Volume {
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            memory,
            host: 0,
            device: address,
            array: null,
            context: null,
            pitch,
            height: rows,
        })
    };
    let (from, to) = (side("source", &copy.from)?, side("destination", &copy.to)?);
    Ok(Copy3D { from, to, width, height, depth })
}

/// Returns the rows of the destination and of the source. They are not larger than the address space.
pub(crate) fn regions(copy: &Copy3D) -> CudaResult<[Region; 2]> {
    let checked = |name, side| {
        let region = region(name, side, copy)?;
        let too_large = || invalid(format!("the copy's {name}: the rows extend beyond the address space"));
        region.extent().map(|_| region).ok_or_else(too_large)
    };
    Ok([checked("destination", &copy.to)?, checked("source", &copy.from)?])
}

/// `cuMemcpy`: copies between addresses of any kind.
pub(crate) fn copy(to: DevicePointer, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    let [to, from] = [to, from].map(|start| (UNIFIED, Region::line(start, bytes as u64)));
    copy_between(to, from, None)
}

/// `cuMemcpyAsync`
pub(crate) fn copy_in(to: DevicePointer, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    let [to, from] = [to, from].map(|start| (UNIFIED, Region::line(start, bytes as u64)));
    copy_between(to, from, Some(of))
}

fn copy_rows(copy: &Copy3D, of: Option<Stream>) -> CudaResult<()> {
    let from = region("source", &copy.from, copy)?;
    let to = region("destination", &copy.to, copy)?;
    copy_between((copy.to.memory, to), (copy.from.memory, from), of)
}

/// Returns the rows that a copy accesses on one side.
///
/// # Errors
/// Returns `InvalidValue` with the field that is wrong.
fn region(name: &str, side: &Volume, copy: &Copy3D) -> CudaResult<Region> {
    let &Volume { x, y, z, lod, memory, host, device, pitch, height, .. } = side;
    let wrong = |what: String| Err(invalid(format!("the copy's {name}: {what}")));
    let start = match memory {
        HOST => host as u64,
        DEVICE | UNIFIED => device,
        ARRAY => return array::region(name, side, copy),
        _ => return wrong(format!("{memory} is not a memory type (1 to 4)")),
    };
    if lod != 0 {
        return wrong(format!("the level of detail must be 0, not {lod}"));
    }
    // CU_DEVICE_ATTRIBUTE_MAX_PITCH
    if pitch > i32::MAX as usize {
        return wrong(format!("a pitch of {pitch} bytes is larger than {}", i32::MAX));
    }
    let has_slices = copy.depth > 1 || z > 0;
    let has_rows = has_slices || copy.height > 1 || y > 0;
    let needed = copy.width.saturating_add(x);
    if pitch < needed && (has_rows || pitch > 0) {
        return wrong(format!("the pitch is {pitch} bytes, but a row extends to byte {needed}"));
    }
    let tall = copy.height.saturating_add(y);
    if height < tall && (has_slices || height > 0) {
        return wrong(format!("a slice is {height} rows high, but the copy extends to row {tall}"));
    }
    let place = || {
        let slice = pitch.checked_mul(height)?;
        let offset = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
        Some((start.checked_add(offset as u64)?, slice))
    };
    let Some((start, slice)) = place() else {
        return wrong("the rows extend beyond the address space".to_owned());
    };
    let [width, height, depth, pitch, slice] =
        [copy.width, copy.height, copy.depth, pitch, slice].map(|it| it as u64);
    Ok(Region { start, width, height, depth, pitch, slice })
}

/// Returns the parameters of a copy in a graph. Except for arrays, the first bytes, rows, and slices to copy are part of
/// the addresses.
pub(crate) fn of_graph(engine: &Engine, sides: [CopySide; 2]) -> Copy3D {
    let (CopySide::Host(region) | CopySide::Device(region)) = sides[0];
    let [width, height, depth] = [region.width, region.height, region.depth].map(|it| it as usize);
    let null = std::ptr::null();
    let nothing = Volume {
        x: 0,
        y: 0,
        z: 0,
        lod: 0,
        memory: HOST,
        host: 0,
        device: 0,
        array: null,
        context: null,
        pitch: 0,
        height: 0,
    };
    let [to, from] = sides.map(|side| {
        let (CopySide::Host(region) | CopySide::Device(region)) = side;
        let Region { start, pitch, slice, .. } = region;
        let (pitch, height) = (pitch as usize, slice.checked_div(pitch).unwrap_or(0) as usize);
        match side {
            CopySide::Host(_) => Volume { host: start as usize, pitch, height, ..nothing },
            CopySide::Device(_) => match engine.place_in_array(start) {
                Some((array, place)) => {
                    let [x, y, z] = place.map(|at| at as usize);
                    let array = handle(array.0).cast_const();
                    Volume { memory: ARRAY, array, x, y, z, ..nothing }
                }
                None => Volume { memory: DEVICE, device: start, pitch, height, ..nothing },
            },
        }
    });
    Copy3D { from, to, width, height, depth }
}

/// Returns a copy for a graph, which accesses the host's memory at each launch.
///
/// # Errors
/// Returns the errors of a copy, and `NotSupported` for a copy between two host addresses.
pub(crate) fn in_graph(copy: &Copy3D) -> CudaResult<GraphCopy> {
    let from = region("source", &copy.from, copy)?;
    let to = region("destination", &copy.to, copy)?;
    let to_side = side(copy.to.memory, to, from)?;
    let from_side = side(copy.from.memory, from, to)?;
    match (to_side, from_side) {
        (Side::Gpu(to), Side::Gpu(from)) => Ok(GraphCopy::Device { to, from }),
        (Side::Gpu(to), Side::Host(host)) => {
            let side = host.side();
            Ok(GraphCopy::FromHost { to, read: Arc::new(move || host.read()), host: side })
        }
        (Side::Host(host), Side::Gpu(from)) => {
            let side = host.side();
            let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
            Ok(GraphCopy::ToHost { from, write, host: side })
        }
        (Side::Host(_), Side::Host(_)) => {
            let message = "virtual GPU: a copy between two host addresses in a graph is not supported: \
                           add a host function (cuGraphAddHostNode)";
            Err(Error::new(CudaStatus::NotSupported, message))
        }
    }
}

/// Copies between two regions with equally many bytes, each with its memory type. Without a stream, a copy that involves
/// the host is done when the call returns.
fn copy_between(
    (to_memory, to): (c_uint, Region),
    (from_memory, from): (c_uint, Region),
    of: Option<Stream>,
) -> CudaResult<()> {
    let engine = engine::get()?;
    let to_side = side(to_memory, to, from)?;
    let from_side = side(from_memory, from, to)?;
    match (to_side, from_side) {
        (Side::Gpu(to), Side::Gpu(from)) => {
            engine.copy(stream(of.unwrap_or(std::ptr::null_mut())), to, from)?;
            if of.is_none() { wait_if_asked() } else { Ok(()) }
        }
        (Side::Gpu(to), Side::Host(host)) => match of {
            Some(of) => {
                let kind = host.kind(Rights::Read)?;
                engine.copy_from_host(stream(of), to, Arc::new(move || host.read()), kind)
            }
            None => {
                let pinned = host.pinned();
                engine.copy_from_host_now(to, Arc::new(move || host.read()), pinned)
            }
        },
        (Side::Host(host), Side::Gpu(from)) => match of {
            Some(of) => {
                let kind = host.kind(Rights::None)?;
                let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
                engine.copy_to_host(stream(of), from, write, kind)
            }
            None => {
                let pinned = host.pinned();
                let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
                engine.copy_to_host_now(from, write, pinned)
            }
        },
        (Side::Host(to), Side::Host(from)) => {
            // Copies between host addresses are fully synchronous ("API synchronization behavior").
            synchronize_stream(of.unwrap_or(std::ptr::null_mut()))?;
            to.write(&from.read());
            Ok(())
        }
    }
}

/// Returns one side of a copy. In a copy between two host addresses, pinned memory counts as memory of the GPU.
fn side(memory: c_uint, region: Region, other: Region) -> CudaResult<Side> {
    let engine = engine::get()?;
    let is_pageable = engine.device_of(region.start).is_none();
    let is_pinned = !is_pageable && engine.pinned(region.start, 0)?.is_some();
    let is_host = match memory {
        HOST => !is_pinned || engine.is_device_address(other.start),
        UNIFIED => is_pageable || is_pinned && engine.is_device_address(other.start),
        _ => false,
    };
    Ok(if is_host { Side::Host(HostRange::of(region)?) } else { Side::Gpu(region) })
}
