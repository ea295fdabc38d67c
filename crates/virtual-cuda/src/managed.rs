//! The bodies of the managed memory functions.

use std::ffi::{c_int, c_uint};

use virtual_gpu::engine::{Advice, Attachment, Location, RangeAnswer, RangeAttribute};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::HostBytes;
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::engine;
use crate::pointer::{Out, Outs, Source};
use crate::types::{Device, DevicePointer, Stream};

/// `CU_DEVICE_CPU`: the host, in functions that take a device.
const CPU: Device = -1;

/// `CUmemLocation`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemoryLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

impl MemoryLocation {
    fn location(self) -> CudaResult<Location> {
        match self.kind {
            1 => Ok(Location::Gpu(self.id)),
            // The host, or its nearest node.
            2 | 4 => Ok(Location::Host),
            3 => Ok(Location::Node(self.id)),
            kind => Err(invalid(format!("{kind} is not a CUmemLocationType for a memory location (1 to 4)"))),
        }
    }
}

/// Pages in the reserved address range that the host can access for as long as this value lives.
#[derive(Debug)]
struct Pages {
    start: usize,
    len: usize,
}

impl Pages {
    /// Makes `len` bytes at `start` accessible and zeroes them. Returns `None` if the host has no memory for them.
    fn open(start: u64, len: u64) -> Option<Self> {
        let pages = Self { start: usize::try_from(start).ok()?, len: usize::try_from(len).ok()? };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is within the engine's reservation and belongs to no other allocation.
        let opened = unsafe { libc::mprotect(pages.start as *mut _, pages.len, access) };
        (opened == 0).then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: as in `open`. The pages are replaced by untouched pages without access rights. If that fails, they
        // are left unchanged, and their addresses are not reused soon.
        unsafe { libc::mmap(self.start as *mut _, self.len, libc::PROT_NONE, flags, -1, 0) };
    }
}

impl HostBytes for Pages {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are accessible. If the program accesses them at the same time, that is a race in the
        // program.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same as above.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize, flags: c_uint) -> CudaResult<()> {
    to.check("cuMemAllocManaged: the result pointer")?;
    let map = |address, len| Pages::open(address, len).map(|pages| Box::new(pages) as Box<dyn HostBytes>);
    to.give(engine::get()?.allocate_managed(bytes as u64, Attachment::from_number(flags)?, map)?)
}

pub(crate) fn attach(of: Stream, address: DevicePointer, bytes: usize, flags: c_uint) -> CudaResult<()> {
    let attachment = Attachment::from_number(flags)?;
    engine::get()?.attach_managed(StreamHandle(of as u64), address, bytes as u64, attachment)
}

fn location(device: Device) -> Location {
    if device == CPU { Location::Host } else { Location::Gpu(device) }
}

pub(crate) fn prefetch(address: DevicePointer, bytes: usize, device: Device, of: Stream) -> CudaResult<()> {
    engine::get()?.prefetch_managed(StreamHandle(of as u64), address, bytes as u64, location(device))
}

pub(crate) fn prefetch_to(
    address: DevicePointer,
    bytes: usize,
    location: MemoryLocation,
    flags: c_uint,
    of: Stream,
) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuMemPrefetchAsync: its flags must be 0, not {flags:#x}")));
    }
    engine::get()?.prefetch_managed(StreamHandle(of as u64), address, bytes as u64, location.location()?)
}

pub(crate) fn advise(address: DevicePointer, bytes: usize, advice: c_uint, device: Device) -> CudaResult<()> {
    engine::get()?.advise_managed(address, bytes as u64, Advice::from_number(advice)?, location(device))
}

pub(crate) fn advise_at(
    address: DevicePointer,
    bytes: usize,
    advice: c_uint,
    location: MemoryLocation,
) -> CudaResult<()> {
    let advice = Advice::from_number(advice)?;
    // Some kinds of advice ignore the location.
    let of = match advice {
        Advice::ReadMostly(_) | Advice::NoPreferredLocation => Location::Host,
        Advice::PreferredLocation | Advice::AccessedBy(_) => location.location()?,
    };
    engine::get()?.advise_managed(address, bytes as u64, advice, of)
}

/// `CU_DEVICE_INVALID`: no device.
const NOWHERE: Device = -2;

/// What a program asks for about a location.
#[derive(Clone, Copy)]
enum Aspect {
    /// The number of a GPU, or one of the constants for a device.
    Device,
    /// A `CUmemLocationType`.
    Kind,
    /// The number of a GPU or of a node.
    Id,
}

fn of_location(location: Option<Location>, aspect: Aspect) -> i32 {
    match (location, aspect) {
        (Some(Location::Gpu(gpu)), Aspect::Device | Aspect::Id) => gpu,
        (Some(Location::Gpu(_)), Aspect::Kind) => 1,
        (Some(Location::Host | Location::Node(_)), Aspect::Device) => CPU,
        (Some(Location::Host), Aspect::Kind) => 2,
        (Some(Location::Node(_)), Aspect::Kind) => 3,
        (Some(Location::Node(node)), Aspect::Id) => node,
        (None, Aspect::Device) => NOWHERE,
        (None, Aspect::Kind) | (Some(Location::Host) | None, Aspect::Id) => 0,
    }
}

/// `cuMemRangeGetAttribute`
///
/// # Errors
/// Returns `InvalidValue` for an unknown attribute, if the room does not fit the attribute, and unless all bytes are in
/// managed memory.
pub(crate) fn attribute(
    to: Out<u8>,
    room: usize,
    attribute: c_uint,
    address: DevicePointer,
    bytes: usize,
) -> CudaResult<()> {
    let (kind, aspect) = match attribute {
        1 => (RangeAttribute::ReadMostly, Aspect::Device),
        2 => (RangeAttribute::PreferredLocation, Aspect::Device),
        3 => (RangeAttribute::AccessedBy, Aspect::Device),
        4 => (RangeAttribute::PrefetchLocation, Aspect::Device),
        5 => (RangeAttribute::PreferredLocation, Aspect::Kind),
        6 => (RangeAttribute::PreferredLocation, Aspect::Id),
        7 => (RangeAttribute::PrefetchLocation, Aspect::Kind),
        8 => (RangeAttribute::PrefetchLocation, Aspect::Id),
        _ => return Err(invalid(format!("{attribute} is not a CUmem_range_attribute (1 to 8)"))),
    };
    let is_list = kind == RangeAttribute::AccessedBy;
    if room == 0 || !room.is_multiple_of(4) || !is_list && room != 4 {
        let needed = if is_list { "a multiple of 4" } else { "4" };
        return Err(invalid(format!(
            "attribute {attribute} of a range needs room for {needed} bytes, not {room}"
        )));
    }
    to.check("cuMemRangeGetAttribute: the result pointer")?;
    let values = match engine::get()?.range_attribute(address, bytes as u64, kind)? {
        RangeAnswer::Flag(is_set) => vec![i32::from(is_set)],
        RangeAnswer::Location(location) => vec![of_location(location, aspect)],
        RangeAnswer::Locations(all) => {
            let all = all.into_iter().map(|location| of_location(Some(location), aspect));
            all.chain(std::iter::repeat(NOWHERE)).take(room / 4).collect()
        }
    };
    to.give_all(&values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>())
}

/// `cuMemRangeGetAttributes`
///
/// # Errors
/// Returns `InvalidValue` if there are no attributes, and the errors of [`attribute`].
pub(crate) fn attributes(
    to: Outs,
    rooms: Source<usize>,
    attributes: Source<c_uint>,
    count: usize,
    address: DevicePointer,
    bytes: usize,
) -> CudaResult<()> {
    if count == 0 {
        return Err(invalid("cuMemRangeGetAttributes: there are no attributes"));
    }
    let (rooms, attributes) = (rooms.values(count)?, attributes.values(count)?);
    for (index, (&room, &kind)) in rooms.iter().zip(&attributes).enumerate() {
        attribute(to.at(index)?, room, kind, address, bytes)?;
    }
    Ok(())
}
