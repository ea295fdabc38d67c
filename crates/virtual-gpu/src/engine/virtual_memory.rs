//! Virtual memory management: a program reserves addresses, creates memory, and maps the memory at the addresses
//! (`cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`, and `cuMemSetAccess`).
//!
//! Neighboring memory that a GPU may access is one buffer, as for a kernel on a real GPU: an access may begin in one mapping
//! and end in the next.

mod shareable;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Engine, lock};
use crate::report::Report;
use shareable::held_by_processes;
use virtual_gpu_core::memory::{
    ADDRESS_SPACE, AllocationId, Content, Shared, SharedContent, SharedRecord, addresses_per_gpu,
};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM` and `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED` in bytes, as on an H100.
pub const GRANULARITY: u64 = 2 << 20;

/// The number of addresses that a program can reserve. Address ranges take no memory, and some programs reserve more than
/// all GPUs have.
pub(super) const RESERVABLE: u64 = 16 * ADDRESS_SPACE;

/// Sizes of reservations are multiples of this, the host's page size.
const PAGE: u64 = 4096;

/// Memory that was created with `cuMemCreate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryHandle(pub u64);

/// Which accesses `cuMemSetAccess` allows a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// None.
    None,
    /// Reading and writing.
    ReadWrite,
}

/// What the program has reserved, created, and mapped.
#[derive(Debug, Default)]
pub(super) struct VirtualMemory {
    /// By the first address.
    reservations: BTreeMap<u64, Reservation>,
    memories: BTreeMap<MemoryHandle, Memory>,
    /// By the first address.
    mappings: BTreeMap<u64, Mapping>,
}

#[derive(Debug)]
struct Reservation {
    size: u64,
    call_site: CallSite,
}

#[derive(Debug)]
struct Memory {
    device: usize,
    size: u64,
    /// How many `cuMemRelease` calls are still due.
    references: usize,
    is_mapped: bool,
    held: Held,
    /// The file, if other processes may map the memory, too.
    file: Option<Arc<dyn SharedRecord>>,
    /// Whether another process has created it.
    is_imported: bool,
    call_site: CallSite,
}

/// The content of memory that is not accessible at any address.
#[derive(Debug)]
enum Held {
    Own(Content),
    /// The content that processes share, unless it is accessible.
    Shared(Option<SharedContent>),
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    size: u64,
    memory: MemoryHandle,
    /// Whether any GPU may access it.
    is_accessible: bool,
    /// Whether its own GPU may access it.
    is_own_allowed: bool,
}

/// Makes memory that processes can share, from its size in bytes and the node-wide number of its GPU.
pub type MakeShared = fn(u64, usize) -> std::io::Result<Shared>;

/// The accessible memory, as ranges without gaps: by the first address, the size in bytes and the GPU.
pub(super) type Accessible = BTreeMap<u64, (u64, usize)>;

/// Checks that addresses or sizes are multiples of the granularity.
fn check_granularity(function: &str, values: &[(&str, u64)]) -> CudaResult<()> {
    match values.iter().find(|(_, value)| !value.is_multiple_of(GRANULARITY)) {
        None => Ok(()),
        Some((what, value)) => Err(invalid(format!(
            "{function}: the {what} must be a multiple of cuMemGetAllocationGranularity's {GRANULARITY}, not {value:#x}"
        ))),
    }
}

impl VirtualMemory {
    /// Returns the memory with this handle, unless all references to it have been released.
    fn memory(&mut self, handle: MemoryHandle) -> CudaResult<&mut Memory> {
        let known = self.memories.get_mut(&handle).filter(|memory| memory.references > 0);
        known.ok_or_else(|| invalid(format!("{:#x} is not a handle of memory, or was released", handle.0)))
    }

    /// Returns the reservation that contains an address, and its first address.
    fn reservation(&self, address: u64) -> Option<(u64, &Reservation)> {
        let (&start, reservation) = self.reservations.range(..=address).next_back()?;
        (address - start < reservation.size).then_some((start, reservation))
    }

    /// Returns the mapping that contains an address, and its first address.
    fn mapping(&self, address: u64) -> Option<(u64, Mapping)> {
        let (&start, &mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((start, mapping))
    }

    /// Returns the mappings that make up a range, which must begin and end with one and have no gaps.
    fn whole_mappings(&self, function: &str, range: &Range<u64>) -> CudaResult<Vec<(u64, Mapping)>> {
        let mut at = range.start;
        let mut found = Vec::new();
        while at < range.end {
            let Some(&mapping) = self.mappings.get(&at).filter(|mapping| mapping.size <= range.end - at)
            else {
                let message = match self.mapping(at) {
                    None => format!("{function}: nothing is mapped at {at:#x}"),
                    Some((start, mapping)) => format!(
                        "{function}: the range {:#x}..{:#x} has only a part of the mapping {start:#x}..{:#x}",
                        range.start,
                        range.end,
                        start + mapping.size
                    ),
                };
                return Err(invalid(message));
            };
            found.push((at, mapping));
            at += mapping.size;
        }
        Ok(found)
    }

    /// Finds addresses for a reservation, with a gap behind it.
    fn find_gap(&self, space: Range<u64>, size: u64, alignment: u64) -> Option<u64> {
        let need = size.checked_add(GRANULARITY)?;
        let mut at = space.start.checked_next_multiple_of(alignment)?;
        for (&start, reservation) in &self.reservations {
            if start.saturating_sub(at) >= need {
                break;
            }
            at = (start + reservation.size + GRANULARITY).checked_next_multiple_of(alignment)?;
        }
        at.checked_add(need).filter(|&end| end <= space.end).map(|_| at)
    }
}

/// Returns a range of addresses, if it has any and doesn't wrap around.
fn range(function: &str, address: u64, size: u64) -> CudaResult<Range<u64>> {
    let end = address.checked_add(size).filter(|&end| end > address);
    let end = end.ok_or_else(|| invalid(format!("{function}: {size} bytes at {address:#x} are no range")))?;
    Ok(address..end)
}

impl Engine {
    /// The addresses that programs can reserve.
    fn reservable(&self) -> Range<u64> {
        let start = self.addresses + (self.config.gpus as u64 + 1) * addresses_per_gpu(self.config.gpus);
        start..start + RESERVABLE
    }

    /// Returns whether an address is one that programs can reserve.
    pub(super) fn is_reservable(&self, address: u64) -> bool {
        self.reservable().contains(&address)
    }

    /// Returns the GPU whose memory is accessible at a reserved address.
    pub(super) fn device_of_mapping(&self, address: u64) -> Option<usize> {
        let accessible = lock(&self.accessible);
        let (&start, &(size, device)) = accessible.range(..=address).next_back()?;
        (address - start < size).then_some(device)
    }

    /// `cuMemAddressReserve`: reserves addresses. `alignment` is 0 or a power of two.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a size or an alignment that is not allowed, and `OutOfMemory` if no addresses are left.
    pub fn reserve(&self, size: u64, alignment: u64) -> CudaResult<u64> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            let message = format!("cuMemAddressReserve: the size must be a multiple of {PAGE}, not {size}");
            return Err(invalid(message));
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            let message =
                format!("cuMemAddressReserve: the alignment must be a power of two, not {alignment}");
            return Err(invalid(message));
        }
        let mut all = lock(&self.virtual_memory);
        let found = all.find_gap(self.reservable(), size, alignment.max(GRANULARITY));
        let address = found.ok_or_else(|| {
            let message = format!("cuMemAddressReserve: no {size} addresses are left");
            Error::new(CudaStatus::OutOfMemory, message)
        })?;
        all.reservations.insert(address, Reservation { size, call_site: CallSite::here() });
        Ok(address)
    }

    /// `cuMemAddressFree`
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the range is a whole reservation in which nothing is mapped.
    pub fn free_reservation(&self, address: u64, size: u64) -> CudaResult<()> {
        let mut all = lock(&self.virtual_memory);
        if all.reservations.get(&address).is_none_or(|reservation| reservation.size != size) {
            let message = format!(
                "cuMemAddressFree: {size} bytes at {address:#x} are not what cuMemAddressReserve reserved"
            );
            return Err(invalid(message));
        }
        if let Some((mapped, _)) = all.mappings.range(address..address + size).next() {
            return Err(invalid(format!("cuMemAddressFree: memory is still mapped at {mapped:#x}")));
        }
        all.reservations.remove(&address);
        Ok(())
    }

    /// `cuMemCreate`: creates memory on a GPU, without an address.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a size that is not a multiple of [`GRANULARITY`], and `OutOfMemory`.
    pub fn create_memory(
        &self,
        device: usize,
        size: u64,
        make: Option<MakeShared>,
    ) -> CudaResult<MemoryHandle> {
        check_granularity("cuMemCreate", &[("size", size)])?;
        if size == 0 {
            return Err(invalid("cuMemCreate: the size is 0".to_owned()));
        }
        let capacity = self.memory(device).capacity().clone();
        let taken = capacity.take(size).map_err(|refused| {
            format!("cuMemCreate: {size} bytes on GPU {device}, but only {} are free", refused.free)
        });
        let made = taken.and_then(|()| {
            let made = match make {
                None => Content::new(size).map(|content| (Held::Own(content), None)),
                Some(make) => make(size, self.physical(device)).ok().map(held_by_processes),
            };
            made.ok_or_else(|| {
                capacity.give_back(size);
                format!("cuMemCreate: the host has no {size} bytes for the memory of GPU {device}")
            })
        });
        let (held, file) = made.map_err(|message| Error::new(CudaStatus::OutOfMemory, message))?;
        Ok(self.add_memory(Memory {
            device,
            size,
            references: 1,
            is_mapped: false,
            held,
            file,
            is_imported: false,
            call_site: CallSite::here(),
        }))
    }

    fn add_memory(&self, memory: Memory) -> MemoryHandle {
        let handle = MemoryHandle(self.state().new_handle());
        lock(&self.virtual_memory).memories.insert(handle, memory);
        handle
    }

    /// `cuMemRelease`: gives up a reference to memory. The memory itself is freed once nothing refers to it and it is not
    /// mapped.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such handle.
    pub fn release_memory(&self, handle: MemoryHandle) -> CudaResult<()> {
        let mut all = lock(&self.virtual_memory);
        all.memory(handle)?.references -= 1;
        self.free_unused(&mut all, handle);
        Ok(())
    }

    /// `cuMemRetainAllocationHandle`: returns the memory that is mapped at an address, with one more reference.
    ///
    /// # Errors
    /// Returns `InvalidValue` if none is.
    pub fn retain_memory(&self, address: u64) -> CudaResult<MemoryHandle> {
        let mut all = lock(&self.virtual_memory);
        let handle = all.mapping(address).map(|(_, mapping)| mapping.memory);
        let memory = handle.and_then(|handle| Some((handle, all.memories.get_mut(&handle)?)));
        let (handle, memory) = memory.ok_or_else(|| {
            invalid(format!("cuMemRetainAllocationHandle: nothing is mapped at {address:#x}"))
        })?;
        memory.references += 1;
        Ok(handle)
    }

    /// Returns the GPU that has this memory.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such handle.
    pub fn device_of_memory(&self, handle: MemoryHandle) -> CudaResult<usize> {
        Ok(lock(&self.virtual_memory).memory(handle)?.device)
    }

    /// `cuMemMap`: maps the first `size` bytes of memory at reserved addresses. No GPU can access them yet.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a range that is not reserved, not free, or longer than the memory, and `NotSupported` if the
    /// memory is mapped elsewhere.
    pub fn map_memory(&self, address: u64, size: u64, handle: MemoryHandle) -> CudaResult<()> {
        check_granularity("cuMemMap", &[("address", address), ("size", size)])?;
        let range = range("cuMemMap", address, size)?;
        let mut all = lock(&self.virtual_memory);
        let memory = all.memory(handle)?;
        let (whole, is_mapped, is_shared) = (memory.size, memory.is_mapped, memory.file.is_some());
        if size > whole {
            return Err(invalid(format!("cuMemMap: {size} bytes of memory that has {whole}")));
        }
        if is_shared && size < whole {
            let message = "virtual GPU: mapping a part of memory that processes share is not supported";
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
        let reserved = all.reservation(address).map(|(start, reservation)| start + reservation.size);
        if reserved.is_none_or(|end| range.end > end) {
            let message = format!("cuMemMap: {address:#x}..{:#x} is not reserved", range.end);
            return Err(invalid(message));
        }
        let last = all.mappings.range(..range.end).next_back();
        if let Some((&start, mapping)) = last.filter(|&(start, mapping)| start + mapping.size > address) {
            let end = start + mapping.size;
            return Err(invalid(format!("cuMemMap: memory is already mapped at {start:#x}..{end:#x}")));
        }
        if is_mapped {
            let message = "virtual GPU: mapping the same memory at two addresses is not supported";
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
        all.memory(handle)?.is_mapped = true;
        all.mappings
            .insert(address, Mapping { size, memory: handle, is_accessible: false, is_own_allowed: false });
        Ok(())
    }

    /// `cuMemUnmap`: unmaps whole mappings. Memory to which nothing refers is freed.
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the range consists of whole mappings.
    pub fn unmap_memory(&self, address: u64, size: u64) -> CudaResult<()> {
        let range = range("cuMemUnmap", address, size)?;
        self.state().unshare_mappings(&range);
        let mut all = lock(&self.virtual_memory);
        let mut gone = Vec::new();
        for (start, mapping) in all.whole_mappings("cuMemUnmap", &range)? {
            gone.extend(self.revoke(&mut all, start));
            all.mappings.remove(&start);
            if let Some(memory) = all.memories.get_mut(&mapping.memory) {
                memory.is_mapped = false;
            }
            self.free_unused(&mut all, mapping.memory);
        }
        drop(all);
        self.forget(gone);
        Ok(())
    }

    /// `cuMemSetAccess` for one GPU: allows or forbids it to access whole mappings.
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the range consists of whole mappings, and `InvalidDevice` if the GPU can't access another
    /// GPU's memory.
    pub fn set_access(&self, address: u64, size: u64, device: usize, access: MemoryAccess) -> CudaResult<()> {
        let range = range("cuMemSetAccess", address, size)?;
        let mut all = lock(&self.virtual_memory);
        let mappings = all.whole_mappings("cuMemSetAccess", &range)?;
        let of_other = mappings.iter().find_map(|(_, mapping)| {
            all.memories.get(&mapping.memory).map(|memory| memory.device).filter(|&owner| owner != device)
        });
        if let Some(owner) = of_other {
            if access == MemoryAccess::ReadWrite && !self.can_access_peer(device, owner) {
                let message = format!("cuMemSetAccess: GPU {device} can't access the memory of GPU {owner}");
                return Err(Error::new(CudaStatus::InvalidDevice, message));
            }
            let mut gone = Vec::new();
            for (start, mapping) in &mappings {
                if access == MemoryAccess::ReadWrite && !mapping.is_accessible {
                    gone.extend(self.grant(&mut all, *start));
                }
            }
            drop(all);
            self.forget(gone);
            let mut state = self.state();
            for (start, mapping) in mappings {
                state.share_mapping(start..start + mapping.size, owner, device, access);
            }
            return Ok(());
        }
        let mut gone = Vec::new();
        for (start, mapping) in mappings {
            if let Some(mapping) = all.mappings.get_mut(&start) {
                mapping.is_own_allowed = access == MemoryAccess::ReadWrite;
            }
            match access {
                MemoryAccess::ReadWrite if !mapping.is_accessible => gone.extend(self.grant(&mut all, start)),
                MemoryAccess::None if mapping.is_accessible => gone.extend(self.revoke(&mut all, start)),
                _ => {}
            }
        }
        drop(all);
        self.forget(gone);
        Ok(())
    }

    /// `cuMemGetAccess`: returns what a GPU may do at an address.
    ///
    /// # Errors
    /// Returns `InvalidValue` if nothing is mapped there.
    pub fn access(&self, address: u64, device: usize) -> CudaResult<MemoryAccess> {
        let all = lock(&self.virtual_memory);
        let (_, mapping) = all
            .mapping(address)
            .ok_or_else(|| invalid(format!("cuMemGetAccess: nothing is mapped at {address:#x}")))?;
        let is_own = all.memories.get(&mapping.memory).is_some_and(|memory| memory.device == device);
        let is_own_allowed = mapping.is_own_allowed;
        drop(all);
        let can_access = if is_own { is_own_allowed } else { self.state().shares_mapping(address, device) };
        Ok(match can_access {
            true => MemoryAccess::ReadWrite,
            false => MemoryAccess::None,
        })
    }

    /// Returns the first address and the size of the mapping that contains an address.
    pub(super) fn mapping_at(&self, address: u64) -> Option<(u64, u64)> {
        lock(&self.virtual_memory).mapping(address).map(|(start, mapping)| (start, mapping.size))
    }

    /// Adds to a report why no GPU can access an address that programs can reserve.
    pub(super) fn why_inaccessible(&self, report: Report, address: u64) -> Report {
        let all = lock(&self.virtual_memory);
        let Some((start, reservation)) = all.reservation(address) else {
            return report.fact(format!("{address:#x} is not reserved, or no longer"));
        };
        let byte = address - start;
        let report = report.before_at(
            format!("{address:#x} is byte {byte} of the {} bytes reserved here", reservation.size),
            &reservation.call_site,
        );
        match all.mapping(address).and_then(|(_, mapping)| all.memories.get(&mapping.memory)) {
            None => report.fact("no memory is mapped there: cuMemMap maps it".to_owned()),
            Some(memory) => report
                .before_at(
                    format!("memory of GPU {}, created here, is mapped there", memory.device),
                    &memory.call_site,
                )
                .fact("no GPU may access it: cuMemSetAccess allows it".to_owned()),
        }
    }

    /// Makes a mapping accessible, together with its accessible neighbors. Returns the identities that are gone.
    fn grant(&self, all: &mut VirtualMemory, address: u64) -> Vec<(usize, AllocationId)> {
        let VirtualMemory { mappings, memories, .. } = all;
        let Some(mapping) = mappings.get_mut(&address) else { return Vec::new() };
        let Some(owner) = memories.get_mut(&mapping.memory) else { return Vec::new() };
        mapping.is_accessible = true;
        let device = owner.device;
        let mut content = match &mut owner.held {
            Held::Own(content) => {
                let rest = content.split_off(mapping.size);
                std::mem::replace(content, rest)
            }
            // It is a buffer of its own, because other processes have no neighbors of it.
            Held::Shared(content) => {
                if let Some(content) = content.take() {
                    lock(&self.accessible).insert(address, (mapping.size, device));
                    let call_site = owner.call_site.clone();
                    self.memory(device).insert_shared_mapped(address, content, call_site);
                }
                return Vec::new();
            }
        };
        let (mut start, mut id, mut call_site) = (address, None, owner.call_site.clone());

        let mut memory = self.memory(device);
        let mut accessible = lock(&self.accessible);
        let mut size = mapping.size;
        let before = accessible.range(..address).next_back().map(|(&start, &of)| (start, of));
        if let Some((first, (length, _))) =
            before.filter(|&(first, (length, on))| first + length == address && on == device)
            && let Some((known, created, mut joined)) = memory.take_mapped(first)
        {
            joined.append(content);
            (content, start, id, call_site) = (joined, first, Some(known), created);
            size += length;
        }
        let mut gone = Vec::new();
        let end = start + size;
        if let Some((length, _)) = accessible.get(&end).copied().filter(|&(_, on)| on == device)
            && let Some((known, _, next)) = memory.take_mapped(end)
        {
            content.append(next);
            accessible.remove(&end);
            size += length;
            gone.push((device, known));
        }
        accessible.insert(start, (size, device));
        memory.insert_mapped(start, content, call_site, id);
        gone
    }

    /// Makes a mapping inaccessible. Returns the identities that are gone.
    fn revoke(&self, all: &mut VirtualMemory, address: u64) -> Vec<(usize, AllocationId)> {
        let VirtualMemory { mappings, memories, .. } = all;
        let Some(mapping) = mappings.get_mut(&address).filter(|mapping| mapping.is_accessible) else {
            return Vec::new();
        };
        let Some(owner) = memories.get_mut(&mapping.memory) else { return Vec::new() };
        mapping.is_accessible = false;
        let device = owner.device;
        let mut memory = self.memory(device);
        let mut accessible = lock(&self.accessible);
        let held = match &mut owner.held {
            Held::Own(content) => content,
            Held::Shared(content) => {
                accessible.remove(&address);
                let Some((id, taken)) = memory.take_shared_mapped(address) else { return Vec::new() };
                *content = Some(taken);
                return vec![(device, id)];
            }
        };
        let Some((start, (size, _))) =
            accessible.range(..=address).next_back().map(|(&start, &of)| (start, of))
        else {
            return Vec::new();
        };
        let Some((id, call_site, mut left)) = memory.take_mapped(start) else { return Vec::new() };
        accessible.remove(&start);
        let mut middle = left.split_off(address - start);
        let right = middle.split_off(mapping.size);
        let rest = held.split_off(0);
        middle.append(rest);
        *held = middle;
        let mut gone = Vec::new();
        match address - start {
            0 => gone.push((device, id)),
            length => {
                accessible.insert(start, (length, device));
                memory.insert_mapped(start, left, call_site.clone(), Some(id));
            }
        }
        let after = address + mapping.size;
        if let length @ 1.. = start + size - after {
            accessible.insert(after, (length, device));
            memory.insert_mapped(after, right, call_site, None);
        }
        gone
    }

    /// Frees memory that nothing refers to and that is not mapped.
    fn free_unused(&self, all: &mut VirtualMemory, handle: MemoryHandle) {
        let known = all.memories.get(&handle);
        if let Some(memory) = known.filter(|memory| memory.references == 0 && !memory.is_mapped) {
            if !memory.is_imported {
                self.memory(memory.device).capacity().give_back(memory.size);
            }
            all.memories.remove(&handle);
        }
    }

    /// Forgets the accesses to buffers that are gone.
    fn forget(&self, gone: Vec<(usize, AllocationId)>) {
        let mut state = self.state();
        for (device, allocation) in gone {
            state.order.forget_allocation(device, allocation);
        }
    }
}
