//! Races in shared memory: both sides, and where.

use std::fmt;

use super::access::concrete;
use super::block::Machine;
use super::fault::{Access as Kind, ThreadReport};
use super::shadow::{How, Unordered};
use virtual_gpu_ptx::instruction::{Operation, Space};

/// Bytes of shared memory as the program names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPlace {
    /// The variable's name in the program; none in dynamic shared memory.
    pub variable: Option<String>,
    /// Offset in it, in bytes.
    pub offset: u64,
}

impl fmt::Display for SharedPlace {
    /// ``byte 16 of `tile` ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Some(name) => write!(f, "byte {} of `{name}`", self.offset),
            None => write!(f, "byte {} of dynamic shared memory", self.offset),
        }
    }
}

/// Two threads of a block access the same bytes of shared memory, one of them writes, and nothing orders them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The access that was executed first here.
    pub earlier: ThreadReport,
    /// The other one, during which the race was found.
    pub later: ThreadReport,
    /// The later access's first byte.
    pub place: SharedPlace,
    /// Whether both threads belong to one warp.
    pub in_warp: bool,
    /// Whether the earlier access is a `cp.async` that its thread has not waited for.
    pub under_way: bool,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}: {}; nothing orders it behind {}{}",
            self.later,
            self.place,
            self.kind(),
            self.earlier,
            if self.under_way { ", a copy that its thread has not waited for" } else { "" }
        )
    }
}

impl Race {
    /// `read after write`, `write after read` or `write after write`.
    pub fn kind(&self) -> &'static str {
        let wrote = |report: &ThreadReport| report.access.is_none_or(|access| access.access != Kind::Read);
        match (wrote(&self.earlier), wrote(&self.later)) {
            (true, false) => "read after write",
            (false, _) => "write after read",
            (true, true) => "write after write",
        }
    }
}

impl Machine<'_> {
    /// Notes that a lane loads from shared memory.
    pub(super) fn watch_read(&mut self, space: Space, lane: usize, address: u64, len: u64, is_atomic: bool) {
        let Some(offset) = self.watched(space, address, len) else { return };
        let found = self.block.shadow.access(offset, len, lane, self.pc, How::Read, is_atomic);
        self.note_race(found, lane, Kind::Read, offset, len);
    }

    /// Notes that a lane stores `bytes` to shared memory.
    pub(super) fn watch_write(
        &mut self,
        space: Space,
        lane: usize,
        address: u64,
        bytes: &[u8],
        is_atomic: bool,
    ) {
        let len = bytes.len() as u64;
        let Some(offset) = self.watched(space, address, len) else { return };
        let Machine { block, pc, .. } = self;
        // Threads that all write the same leave the same behind, whoever comes last.
        let changes = block.shared.bytes[offset as usize..][..bytes.len()] != *bytes;
        let found = block.shadow.access(offset, len, lane, *pc, How::Write(changes), is_atomic);
        self.note_race(found, lane, Kind::Write, offset, len);
    }

    /// Notes that a lane changes shared memory atomically.
    pub(super) fn watch_atomic(&mut self, space: Space, lane: usize, address: u64, len: u64) {
        let Some(offset) = self.watched(space, address, len) else { return };
        let found = self.block.shadow.access(offset, len, lane, self.pc, How::Write(true), true);
        self.note_race(found, lane, Kind::Atomic, offset, len);
    }

    /// Notes that a lane begins to copy to shared memory.
    pub(super) fn watch_copy(&mut self, lane: usize, offset: u64, len: u64) {
        if self.block.shadow.is_on {
            let found = self.block.shadow.begin_copy(offset, len, lane, self.pc);
            self.note_race(found, lane, Kind::Write, offset, len);
        }
    }

    /// The offset in shared memory, where it is that and inside, and is watched.
    fn watched(&self, space: Space, address: u64, len: u64) -> Option<u64> {
        let (space, offset) = concrete(space, address);
        let size = self.block.shared.bytes.len() as u64;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= size);
        (self.block.shadow.is_on && space == Space::Shared && is_inside).then_some(offset)
    }

    #[cold]
    fn report_race(&mut self, found: Unordered, lane: usize, kind: Kind, offset: u64, len: u64) {
        let later = self.report(lane, Some((Space::Shared, kind, offset, len)));
        let (thread, pc) = (found.earlier.thread(), found.earlier.pc());
        let here = std::mem::replace(&mut self.pc, pc);
        let access = match (found.wrote, found.earlier.is_atomic()) {
            (false, _) => Kind::Read,
            (true, false) => Kind::Write,
            (true, true) => Kind::Atomic,
        };
        let bytes = bytes_of(&self.kernel.code()[pc].operation);
        let earlier = self.report(thread, Some((Space::Shared, access, offset, bytes)));
        self.pc = here;
        let (variable, offset) = self.kernel.shared_place(offset);
        let place = SharedPlace { variable, offset };
        let (in_warp, under_way) = (thread / 32 == lane / 32, found.earlier.is_under_way());
        self.race = Some(Box::new(Race { earlier, later, place, in_warp, under_way }));
        self.block.shadow.is_on = false;
    }

    fn note_race(&mut self, found: Option<Unordered>, lane: usize, kind: Kind, offset: u64, len: u64) {
        if let Some(found) = found {
            self.report_race(found, lane, kind, offset, len);
        }
    }
}

/// Bytes that a memory instruction accesses.
fn bytes_of(operation: &Operation) -> u64 {
    match operation {
        Operation::Load(access) | Operation::Store(access) => {
            u64::from(access.bytes) * access.values.len() as u64
        }
        Operation::Atomic(atomic) => u64::from(atomic.kind.bytes()),
        Operation::CopyToShared { bytes, .. } => u64::from(*bytes),
        Operation::LoadMatrices(_) => 16,
        _ => 0,
    }
}
