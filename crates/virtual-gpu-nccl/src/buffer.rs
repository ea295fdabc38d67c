//! The ranks' buffers: where they are, and whether they may be accessed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::call::Request;
use super::collective::{Part, PartLocation};
use super::event::Arrived;
use super::operation::{Buffers, Operation};
use super::scale::Scale;
use super::wire::Payload;
use super::{Locked, Nccl};
use virtual_gpu::config::Checks;
use virtual_gpu::engine::{Failure, Touched, address_report};
use virtual_gpu::report::{Report, size};
use virtual_gpu_core::handle::{OperationNumber, Rank};
use virtual_gpu_core::memory::{AFTER_ALL, Allocation, DeviceMemory};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_core::sync::MutexGuard;

/// The memory of each GPU that takes part in a call, locked.
pub(crate) type Memories<'a> = BTreeMap<usize, MutexGuard<'a, DeviceMemory>>;

/// One rank's share of a running call.
pub(crate) struct Share {
    pub(crate) rank: Rank,
    pub(crate) device: usize,
    /// The sequence number of the rank's operation.
    pub(crate) enqueued: OperationNumber,
    pub(crate) request: Request,
    pub(crate) call_site: CallSite,
    /// Whether the bytes that it reads were already checked when they were sent to other processes.
    pub(crate) is_checked: bool,
}

/// A rank's share of a collective with its buffers, or the data sent by a rank in another process.
pub(crate) type PartShare = Result<(Share, Buffers), Option<Arc<Arrived>>>;

/// Where a buffer is: its GPU, the slot of its allocation, and its offset in the allocation.
#[derive(Clone, Copy)]
pub(crate) struct BufferLocation {
    pub(crate) device: usize,
    pub(crate) slot: usize,
    pub(crate) offset: u64,
}

impl Share {
    /// Returns a rank's share of a collective.
    pub(crate) fn of_part(state: &Locked<'_>, rank: Rank, part: &Part) -> PartShare {
        match &part.location {
            &PartLocation::Here { op, buffers, device, published, .. } => {
                let request = Request::Collective(part.operation, buffers);
                let enqueued = state.engine.enqueued_as(op).unwrap_or(AFTER_ALL);
                let call_site = part.call_site.clone();
                Ok((Self { rank, device, enqueued, request, call_site, is_checked: published }, buffers))
            }
            PartLocation::Elsewhere(arrived) => Err(arrived.clone()),
        }
    }
}

impl BufferLocation {
    pub(crate) fn of(memory: &DeviceMemory, device: usize, address: u64, bytes: u64) -> Option<Self> {
        let offset = memory.range(address, bytes).ok()?.1;
        Some(Self { device, slot: memory.slot_of(address)?, offset })
    }

    pub(crate) fn allocation<'a>(&self, memories: &'a Memories<'_>) -> Option<&'a Allocation> {
        memories.get(&self.device)?.in_slot(self.slot)
    }

    pub(crate) fn allocation_mut<'a>(&self, memories: &'a mut Memories<'_>) -> Option<&'a mut Allocation> {
        memories.get_mut(&self.device)?.in_slot_mut(self.slot)
    }
}

/// Where a rank's input comes from.
pub(crate) enum Source {
    Here(BufferLocation),
    /// Another process has sent the bytes.
    Elsewhere(Arc<Arrived>),
}

impl Nccl {
    /// Locks the memory of each GPU, and managed memory if there is any, always in ascending order, so that two calls
    /// can't deadlock on each other's locks.
    pub(crate) fn memories(&self, devices: impl Iterator<Item = usize>) -> Memories<'_> {
        let devices: BTreeSet<usize> = devices.chain([self.engine.managed()]).collect();
        let locked = devices.into_iter().map(|device| (device, self.engine.memory(device)));
        locked.filter(|(device, memory)| *device != self.engine.managed() || !memory.is_empty()).collect()
    }

    /// Returns the memory that a rank's buffer is in: managed memory, or the memory of the rank's GPU (NCCL's User
    /// Guide, "Data Pointers").
    pub(crate) fn memory_of_buffer(&self, address: u64, device: usize) -> usize {
        self.engine.device_of(address).filter(|&memory| memory == self.engine.managed()).unwrap_or(device)
    }

    /// Reads a rank's scalar and returns it with the range that the read touches.
    pub(crate) fn scale(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        operation: &Operation,
        scale: Option<Scale>,
    ) -> Result<([u8; 8], Option<Touched>), Failure> {
        let mut bytes = [0; 8];
        match scale {
            None => Ok((bytes, None)),
            Some(Scale::Value(bytes)) => Ok((bytes, None)),
            Some(Scale::At(address)) => {
                let len = operation.data_type.size();
                let (location, read) = self.find(memories, share, address, len, false)?;
                let seen = location
                    .allocation(memories)
                    .map(|from| from.seen(location.offset..location.offset + len));
                bytes[..len as usize].copy_from_slice(&seen.unwrap_or_default());
                Ok((bytes, Some(read)))
            }
        }
    }

    /// Copies the bytes in a buffer that other processes need.
    pub(crate) fn give(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        address: u64,
        bytes: Option<u64>,
    ) -> Result<Payload, Failure> {
        let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(Payload::default()) };
        let (location, _) = self.find(memories, share, address, bytes, false)?;
        let seen =
            location.allocation(memories).map(|from| from.seen(location.offset..location.offset + bytes));
        Ok(Payload(seen.unwrap_or_default().into_owned()))
    }

    /// Returns where a buffer is, and which range an access to it touches.
    ///
    /// # Errors
    /// Fails if the buffer has been freed, or if the access reads bytes that were never written.
    pub(crate) fn find(
        &self,
        memories: &mut Memories<'_>,
        share: &Share,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(BufferLocation, Touched), Failure> {
        let mut device = self.memory_of_buffer(address, share.device);
        if let Some(memory) = memories.get_mut(&device) {
            memory.as_of(share.enqueued);
        } else {
            device = share.device;
        }
        let memory = &memories[&device];
        let location = BufferLocation::of(memory, device, address, bytes);
        let found = location.and_then(|location| Some((location, memory.in_slot(location.slot)?)));
        let Some((location, allocation)) = found else { return Err(gone(memory, share, address, bytes)) };
        if !writes && !share.is_checked {
            self.check_written(allocation, location.offset, bytes, share)?;
        }
        Ok((location, Touched::range(device, allocation, location.offset, bytes, writes)))
    }

    /// Reports a send buffer that contains bytes that have never been written.
    pub(crate) fn check_written(
        &self,
        allocation: &Allocation,
        offset: u64,
        bytes: u64,
        share: &Share,
    ) -> Result<(), Failure> {
        let Some(first) = allocation.first_unwritten(offset..offset + bytes) else { return Ok(()) };
        if self.engine.config().checks == Checks::Off {
            return Ok(());
        }
        let Share { rank, request, call_site, .. } = share;
        let report = Report::new(format!("{request} reads bytes that nothing wrote, on rank {rank}"))
            .fact(format!("byte {first} is the first of them"))
            .at(format!("in the buffer of {} allocated here", size(allocation.size())), allocation.call_site())
            .at(format!("read by {}", request.function()), call_site)
            .help(
                "fill the buffer first (memcpy_htod, memset_zeros, or a kernel), on this stream or on one that it waits for",
            );
        Failure::of_problem(CudaStatus::LaunchFailed, &report, self.engine.config().checks)
            .map_or(Ok(()), Err)
    }
}

/// Returns the failure for a buffer that existed at the call but has since been freed.
fn gone(memory: &DeviceMemory, share: &Share, address: u64, bytes: u64) -> Failure {
    let Share { rank, device, request, call_site, .. } = share;
    let headline = format!("rank {rank}'s buffer was freed before its {} ran", request.function());
    let report =
        address_report(&headline, memory, address, bytes, *device).at(request.to_string(), call_site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
}
