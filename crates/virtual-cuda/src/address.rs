//! The bodies of the functions that describe addresses.

use std::ffi::{c_int, c_uint};

use virtual_gpu::engine::{MemoryKind, Pointer};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::pointer::{Out, Outs, Source};
use crate::types::DevicePointer;

/// `cuMemGetAddressRange`. Either result pointer may be null.
///
/// # Errors
/// Returns `NotFound` if no allocation contains the address.
pub(crate) fn range(base: Out<DevicePointer>, size: Out<usize>, address: DevicePointer) -> CudaResult<()> {
    // NVIDIA's driver then succeeds even before `cuInit`.
    if base.is_null() && size.is_null() {
        return Ok(());
    }
    let found = engine::get()?.pointer(address)?.ok_or_else(|| {
        let message = format!("cuMemGetAddressRange: {address:#x} is not in any allocation");
        Error::new(CudaStatus::NotFound, message)
    })?;
    base.give_if_wanted(found.base);
    size.give_if_wanted(found.size as usize);
    Ok(())
}

/// The value of a pointer attribute, which has 4 or 8 bytes.
enum Value {
    Int(u32),
    Long(u64),
}

impl Value {
    fn give(&self, to: Out<u8>) -> CudaResult<()> {
        match self {
            Self::Int(value) => to.give_all(&value.to_ne_bytes()),
            Self::Long(value) => to.give_all(&value.to_ne_bytes()),
        }
    }
}

/// `cuPointerGetAttribute`
///
/// # Errors
/// Returns `InvalidValue` if the address is not in memory that CUDA knows, or has no such attribute.
pub(crate) fn attribute(to: Out<u8>, attribute: c_uint, address: DevicePointer) -> CudaResult<()> {
    check(attribute)?;
    let found = engine::get()?.pointer(address)?.ok_or_else(|| {
        invalid(format!(
            "cuPointerGetAttribute: {address:#x} is not in memory that CUDA has allocated or pinned"
        ))
    })?;
    value(attribute, address, &found)?.give(to)
}

/// `cuPointerGetAttributes`: an attribute that the address does not have is 0, null, or device -2.
pub(crate) fn attributes(
    count: c_uint,
    attributes: Source<c_uint>,
    to: Outs,
    address: DevicePointer,
) -> CudaResult<()> {
    if count == 0 {
        return Err(invalid("cuPointerGetAttributes: there are no attributes"));
    }
    let attributes = attributes.values(count as usize)?;
    attributes.iter().try_for_each(|&attribute| check(attribute))?;
    let found = engine::get()?.pointer(address)?;
    for (index, &attribute) in attributes.iter().enumerate() {
        let value = found.as_ref().and_then(|found| value(attribute, address, found).ok());
        value.unwrap_or_else(|| missing(attribute)).give(to.at(index)?)?;
    }
    Ok(())
}

/// Rejects an attribute that can't be queried.
fn check(attribute: c_uint) -> CudaResult<()> {
    match attribute {
        1..=4 | 6..=21 => Ok(()),
        5 => {
            let message = "virtual GPU: CU_POINTER_ATTRIBUTE_P2P_TOKENS is not supported";
            Err(Error::new(CudaStatus::NotSupported, message))
        }
        _ => Err(invalid(format!("{attribute} is not a pointer attribute (1 to 21)"))),
    }
}

/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`
const READ_AND_WRITE: u32 = 3;

/// `CU_DEVICE_INVALID`
const NO_DEVICE: c_int = -2;

/// Returns an attribute of `address`, which is in `found`.
fn value(attribute: c_uint, address: DevicePointer, found: &Pointer) -> CudaResult<Value> {
    let is_gpu = found.kind == MemoryKind::Gpu;
    let is_accessible = !is_gpu || engine::get()?.current_device()? == found.device;
    let device = found.device;
    Ok(match attribute {
        1 => Value::Long(found.context.map_or(0, |context| context.0)),
        2 => Value::Int(if found.kind == MemoryKind::Pinned { 1 } else { 2 }),
        3 if is_accessible => Value::Long(address),
        3 => return Err(invalid(format!("{address:#x}: a kernel can't access the memory of GPU {device}"))),
        4 if !is_gpu => Value::Long(address),
        4 => return Err(invalid(format!("{address:#x}: the host can't access the memory of GPU {device}"))),
        7 | 20 => Value::Long(found.id),
        8 => Value::Int(u32::from(found.kind == MemoryKind::Managed)),
        9 => Value::Int(device as u32),
        11 | 19 => Value::Long(found.base),
        12 | 18 => Value::Long(found.size),
        13 => Value::Int(1),
        16 => Value::Int(if is_accessible { READ_AND_WRITE } else { 0 }),
        17 => Value::Long(found.pool.map_or(0, |pool| pool.0)),
        // No memory can be shared with other processes, used with GPUDirect RDMA, or decompressed by hardware, and none
        // requires synchronous copies.
        _ => missing(attribute),
    })
}

/// Returns the value of an attribute that an address does not have.
fn missing(attribute: c_uint) -> Value {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => Value::Long(0),
        9 => Value::Int(NO_DEVICE as u32),
        _ => Value::Int(0),
    }
}
