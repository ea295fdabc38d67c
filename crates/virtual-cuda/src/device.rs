//! The device functions and driver initialization.

use std::ffi::{c_char, c_int, c_uint};

use virtual_gpu::device;
use virtual_gpu::engine::Engine;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::pointer::{Out, Text};
use crate::types::Device;

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

/// The size of what `cuDeviceGetPCIBusId` returns: `[domain]:[bus]:[device].[function]`, and the byte that ends it.
const PCI_BUS_ID: c_int = 13;

/// `cuDeviceGetPCIBusId`: each GPU is device 0 on its own bus of domain 0.
///
/// # Errors
/// Returns `InvalidValue` if there is no room for 13 bytes.
pub(crate) fn pci_bus_id(to: Out<c_char>, len: c_int, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let bus = device::pci_bus(engine.physical(engine.check_device(device)?));
    if len < PCI_BUS_ID {
        let message =
            format!("cuDeviceGetPCIBusId: an id takes {PCI_BUS_ID} bytes, but there is room for {len}");
        return Err(invalid(message));
    }
    let text: Vec<c_char> = format!("0000:{bus:02X}:00.0\0").bytes().map(|byte| byte as c_char).collect();
    to.give_all(&text)
}

/// `cuDeviceGetByPCIBusId`: finds a GPU by `domain:bus:device.function`, `domain:bus:device`, or `bus:device.function`,
/// all of them hexadecimal.
///
/// # Errors
/// Returns `InvalidValue` for a text of another form, and `InvalidDevice` if no GPU is there.
pub(crate) fn by_pci_bus_id(to: Out<Device>, id: Text) -> CudaResult<()> {
    let text = id.text().ok_or_else(|| invalid("cuDeviceGetByPCIBusId: the id is null or not UTF-8"))?;
    let wrong =
        || invalid(format!("cuDeviceGetByPCIBusId: `{text}` is not of the form domain:bus:device.function"));
    let place = place_of(text).ok_or_else(wrong)?;
    let engine = engine::get()?;
    let is_there = |gpu: &usize| place == [0, u32::from(device::pci_bus(engine.physical(*gpu))), 0, 0];
    let found = (0..engine.device_count()).find(is_there).ok_or_else(|| {
        Error::new(CudaStatus::InvalidDevice, format!("there is no GPU at PCI bus id {text}"))
    })?;
    to.give(found as Device)
}

/// Parses a PCI bus id: domain, bus, device, and function.
fn place_of(text: &str) -> Option<[u32; 4]> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
    let (front, function) = match text.split_once('.') {
        Some((front, function)) => (front, Some(number(function)?)),
        None => (text, None),
    };
    let parts: Option<Vec<u32>> = front.split(':').map(number).collect();
    match (parts?.as_slice(), function) {
        (&[domain, bus, device], function) => Some([domain, bus, device, function.unwrap_or(0)]),
        (&[bus, device], Some(function)) => Some([0, bus, device, function]),
        _ => None,
    }
}

/// `CUdevprop`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceProperties {
    pub(crate) max_threads_per_block: c_int,
    pub(crate) max_block: [c_int; 3],
    pub(crate) max_grid: [c_int; 3],
    pub(crate) shared_per_block: c_int,
    pub(crate) constant_memory: c_int,
    pub(crate) warp: c_int,
    pub(crate) max_pitch: c_int,
    pub(crate) registers_per_block: c_int,
    pub(crate) clock_rate: c_int,
    pub(crate) texture_alignment: c_int,
}

/// `cuDeviceGetProperties`: attributes 1 to 14 at once.
pub(crate) fn properties(to: Out<DeviceProperties>, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let physical = engine.physical(engine.check_device(device)?);
    let attribute = |number| device::attribute(number, physical).unwrap_or(0);
    to.give(DeviceProperties {
        max_threads_per_block: attribute(1),
        max_block: [2, 3, 4].map(attribute),
        max_grid: [5, 6, 7].map(attribute),
        shared_per_block: attribute(8),
        constant_memory: attribute(9),
        warp: attribute(10),
        max_pitch: attribute(11),
        registers_per_block: attribute(12),
        clock_rate: attribute(13),
        texture_alignment: attribute(14),
    })
}

/// `cuDeviceGetExecAffinitySupport`: 0, because only MPS can give a context a share of a GPU.
pub(crate) fn affinity_support(to: Out<c_int>, kind: c_uint, device: Device) -> CudaResult<()> {
    checked(device)?;
    match kind {
        0 => to.give(0),
        _ => Err(invalid(format!("{kind} is not a CUexecAffinityType: it must be 0"))),
    }
}
