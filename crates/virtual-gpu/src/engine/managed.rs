//! Managed memory: memory that all GPUs share with the host, at the same addresses.
//!
//! It is stored in one place, and accessing it from another processor costs nothing extra. So prefetches and advice are
//! checked and remembered, but have no effect. The host's own accesses are invisible, so all managed memory is
//! considered written.

use std::ops::Range;

use super::stream::is_legacy;
use super::work::Work;
use super::{Engine, lock};
use crate::report::size;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::{AllocationId, HostBytes, OutOfMemory};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// `CUmemAttach_flags`: what may access managed memory if processors can't share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Any stream of any GPU.
    Global,
    /// The host alone.
    Host,
    /// One stream.
    Single,
}

impl Attachment {
    /// Returns the flag with this number in `cuda.h`.
    ///
    /// # Errors
    /// Returns `InvalidValue` with a message that contains the number.
    pub fn from_number(number: u32) -> CudaResult<Self> {
        match number {
            1 => Ok(Self::Global),
            2 => Ok(Self::Host),
            4 => Ok(Self::Single),
            _ => Err(invalid(format!("{number:#x} is not CU_MEM_ATTACH_GLOBAL, _HOST, or _SINGLE"))),
        }
    }
}

/// `CUmemLocation`: a processor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A GPU's memory, by the GPU's number.
    Gpu(i32),
    /// The memory of the host.
    Host,
    /// The memory of one of the host's NUMA nodes.
    Node(i32),
}

/// `CUmem_advise`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// `CU_MEM_ADVISE_SET_READ_MOSTLY`, or its opposite: the location does not matter.
    ReadMostly(bool),
    /// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`
    PreferredLocation,
    /// `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`: the location does not matter.
    NoPreferredLocation,
    /// `CU_MEM_ADVISE_SET_ACCESSED_BY`, or its opposite.
    AccessedBy(bool),
}

impl Advice {
    /// Returns the advice that has this number in `cuda.h`.
    ///
    /// # Errors
    /// Returns `InvalidValue` with a message that contains the number.
    pub fn from_number(number: u32) -> CudaResult<Self> {
        match number {
            1 | 2 => Ok(Self::ReadMostly(number == 1)),
            3 => Ok(Self::PreferredLocation),
            4 => Ok(Self::NoPreferredLocation),
            5 | 6 => Ok(Self::AccessedBy(number == 5)),
            _ => Err(invalid(format!("{number} is not a CUmem_advise (1 to 6)"))),
        }
    }
}

impl Engine {
    /// `cuMemAllocManaged`: allocates `bytes` that the host and all GPUs can use. `map` gives the host access to that
    /// many bytes at an address, or returns `None` if there is no room.
    ///
    /// # Errors
    /// Returns `InvalidValue` for 0 bytes and for `CU_MEM_ATTACH_SINGLE`, and `OutOfMemory` if there is no room.
    pub fn allocate_managed(
        &self,
        bytes: u64,
        attachment: Attachment,
        map: impl FnOnce(u64, u64) -> Option<Box<dyn HostBytes>>,
    ) -> CudaResult<u64> {
        if attachment == Attachment::Single {
            return Err(invalid(
                "managed memory must be allocated with CU_MEM_ATTACH_GLOBAL or _HOST".to_owned(),
            ));
        }
        if bytes == 0 {
            return Err(invalid("can't allocate 0 bytes".to_owned()));
        }
        self.check_capture_allows("cuMemAllocManaged")?;
        // The current context must still be usable.
        self.usable_stream_device(StreamHandle(0))?;
        let made = self
            .memory(self.managed())
            .allocate_managed(bytes, CallSite::here(), |address| map(address, bytes))
            .map_err(|OutOfMemory { asked, .. }| {
                let message = format!("the host has no room for {} of managed memory", size(asked));
                Error::new(CudaStatus::OutOfMemory, message)
            });
        let address = made?;
        self.own(self.managed(), address)?;
        Ok(address)
    }

    /// `cuStreamAttachMemAsync`, in stream order. `len` is 0 or the full size of the allocation that starts at
    /// `address`.
    pub fn attach_managed(
        &self,
        stream: StreamHandle,
        address: u64,
        len: u64,
        attachment: Attachment,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        if attachment == Attachment::Single && is_legacy(stream) {
            return Err(invalid(
                "managed memory can't be attached to the legacy default stream: use another stream"
                    .to_owned(),
            ));
        }
        let whole = {
            let memory = lock(&self.memories[self.managed()]);
            let found = memory.range(address, 1).ok();
            found
                .filter(|(allocation, offset)| *offset == 0 && !allocation.id().is_pinned())
                .map(|(allocation, _)| allocation.size())
        };
        match whole {
            None => Err(invalid(format!("{address:#x} is not the start of managed memory"))),
            Some(whole) if len != 0 && len != whole => Err(invalid(format!(
                "{} of {}: only the entire allocation can be attached",
                size(len),
                size(whole)
            ))),
            Some(_) => self.submit(stream, Work::Nothing, call_site),
        }
    }

    /// `cuMemPrefetchAsync`, in stream order.
    pub fn prefetch_managed(
        &self,
        stream: StreamHandle,
        address: u64,
        len: u64,
        to: Location,
    ) -> CudaResult<()> {
        let call_site = CallSite::here();
        let pages = self.managed_range("cuMemPrefetchAsync", address, len)?;
        // The documentation lists two codes for a bad location. A driver of version 580 returns this one.
        self.check_location(to).map_err(|error| invalid(error.message.to_string()))?;
        self.submit(stream, Work::Nothing, call_site)?;
        self.state().advice.note_prefetch(&pages, to);
        Ok(())
    }

    /// `cuMemAdvise`
    pub fn advise_managed(&self, address: u64, len: u64, advice: Advice, of: Location) -> CudaResult<()> {
        let pages = self.managed_range("cuMemAdvise", address, len)?;
        match advice {
            Advice::ReadMostly(_) | Advice::NoPreferredLocation => {}
            Advice::PreferredLocation | Advice::AccessedBy(_) => self.check_location(of)?,
        }
        self.state().advice.note(&pages, advice, of);
        Ok(())
    }

    fn check_location(&self, location: Location) -> CudaResult<()> {
        match location {
            Location::Gpu(gpu) => self.check_device(gpu).map(drop),
            Location::Host | Location::Node(_) => Ok(()),
        }
    }

    /// Returns the allocation that a range of managed memory is in, and the range's offsets in it.
    pub(super) fn managed_range(
        &self,
        call: &str,
        address: u64,
        len: u64,
    ) -> CudaResult<(AllocationId, Range<u64>)> {
        if len == 0 {
            return Err(invalid(format!("{call}: the range has 0 bytes")));
        }
        if self.device_of(address) != Some(self.managed()) || self.is_mapped(address) {
            return Err(invalid(format!("{call}: {address:#x} is not managed memory (cuMemAllocManaged)")));
        }
        self.check_range(call, address, len, &CallSite::here())?;
        let memory = self.memory(self.managed());
        let freed = |_| invalid(format!("{call}: another thread has freed the memory at {address:#x}"));
        let (allocation, offset) = memory.range(address, len).map_err(freed)?;
        Ok((allocation.id(), offset..offset + len))
    }
}
