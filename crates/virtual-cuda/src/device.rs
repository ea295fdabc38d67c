//! The device functions and driver initialization.

use std::ffi::{c_char, c_int, c_uint};

use virtual_gpu::device;
use virtual_gpu::engine::Engine;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::Out;
use crate::types::{Device, invalid};

fn checked(device: Device) -> CudaResult<&'static Engine> {
    let engine = engine::get()?;
    engine.check_device(device)?;
    Ok(engine)
}

pub(crate) fn init(flags: c_uint) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuInit: flags must be 0, not {flags}")));
    }
    engine::start()
}

pub(crate) fn version(to: Out<c_int>) -> CudaResult<()> {
    to.give(device::DRIVER_VERSION)
}

pub(crate) fn device(to: Out<Device>, ordinal: c_int) -> CudaResult<()> {
    checked(ordinal)?;
    to.give(ordinal)
}

pub(crate) fn device_count(to: Out<c_int>) -> CudaResult<()> {
    to.give(engine::get()?.device_count() as c_int)
}

pub(crate) fn device_name(to: Out<c_char>, len: c_int, device: Device) -> CudaResult<()> {
    checked(device)?;
    let len = usize::try_from(len).ok().filter(|&len| len > 0);
    let (Some(len), false) = (len, to.is_null()) else {
        return Err(invalid("cuDeviceGetName: no room for the name"));
    };
    let mut name: Vec<c_char> =
        engine::get()?.device_name().bytes().take(len - 1).map(|byte| byte as c_char).collect();
    name.push(0);
    to.give_all(&name)
}

pub(crate) fn device_uuid(to: Out<[u8; 16]>, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    to.give(device::uuid(engine.physical(engine.check_device(device)?)))
}

pub(crate) fn compute_capability(major: Out<c_int>, minor: Out<c_int>, device: Device) -> CudaResult<()> {
    use device::{COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR};
    device_attribute(major, COMPUTE_CAPABILITY_MAJOR, device)?;
    device_attribute(minor, COMPUTE_CAPABILITY_MINOR, device)
}

pub(crate) fn device_attribute(to: Out<c_int>, attribute: c_int, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let physical = engine.physical(engine.check_device(device)?);
    if !(1..device::ATTRIBUTES).contains(&attribute) {
        return Err(invalid(format!("{attribute} is not a device attribute")));
    }
    let value = device::attribute(attribute, physical).ok_or_else(|| {
        let message = format!("virtual GPU: device attribute {attribute} is not supported");
        Error::new(CudaStatus::NotSupported, message)
    })?;
    to.give(value)
}

pub(crate) fn device_total_memory(to: Out<usize>, device: Device) -> CudaResult<()> {
    checked(device)?;
    to.give(device::TOTAL_MEMORY as usize)
}
