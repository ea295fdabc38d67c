//! Accesses by single threads.

use super::cells::Shadow;
use super::stamp::{ATOMIC, Stamp, UNDER_WAY};

/// How one thread accesses shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    /// A write, and whether it changed what was there.
    Write(bool),
}

/// An earlier access that is not ordered before this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unordered {
    pub(crate) earlier: Stamp,
    /// Whether the earlier access was a write.
    pub(crate) wrote: bool,
}

impl Shadow {
    /// Records a thread's access and returns an earlier access that it races with.
    pub(crate) fn access(
        &mut self,
        offset: u64,
        bytes: u64,
        thread: usize,
        pc: usize,
        how: How,
        is_atomic: bool,
    ) -> Option<Unordered> {
        let me = Stamp(Stamp::new(self.now, thread, pc).0 | if is_atomic { ATOMIC as i64 } else { 0 });
        let mut found = None;
        for cell in self.cells(offset, bytes) {
            let (write, reader, other) = (self.writes[cell], self.readers[cell], self.others[cell]);
            let has_readers = reader.0 >= self.oldest();
            let races =
                |earlier: Stamp| !(is_atomic && earlier.is_atomic() || self.is_ordered(earlier, thread));
            if how != How::Write(false) && races(write) {
                found = found.or(Some(Unordered { earlier: write, wrote: true }));
            }
            if how != How::Read && has_readers {
                let reader = [reader, other].into_iter().find(|&reader| races(reader));
                found = found.or(reader.map(|earlier| Unordered { earlier, wrote: false }));
            }
            match how {
                How::Write(_) => {
                    self.unsettle(cell, cell);
                    (self.writes[cell], self.readers[cell]) = (me, Stamp(0));
                }
                How::Read if !has_readers => (self.readers[cell], self.others[cell]) = (me, Stamp(0)),
                How::Read if reader.thread() == thread => self.readers[cell] = me,
                How::Read => self.others[cell] = me,
            }
        }
        found
    }

    /// Returns the stamp of an access by a thread now.
    pub(crate) fn stamp(&self, thread: usize, pc: usize) -> Stamp {
        Stamp::new(self.now, thread, pc)
    }

    /// Returns an earlier write if an access by `thread` races with it.
    pub(crate) fn unordered(&self, earlier: Stamp, thread: usize) -> Option<Unordered> {
        (!self.is_ordered(earlier, thread)).then_some(Unordered { earlier, wrote: true })
    }

    /// Records that a thread starts a copy to shared memory and returns an earlier access that the copy races with.
    pub(crate) fn begin_copy(
        &mut self,
        offset: u64,
        bytes: u64,
        thread: usize,
        pc: usize,
    ) -> Option<Unordered> {
        let found = self.access(offset, bytes, thread, pc, How::Write(true), false);
        for cell in self.cells(offset, bytes) {
            self.writes[cell].0 |= UNDER_WAY;
            self.under_way += 1;
        }
        found
    }

    /// Records that a thread has waited for a copy, as if the thread were writing the bytes now.
    pub(crate) fn end_copy(&mut self, offset: u64, bytes: u64, thread: usize, pc: usize) {
        let now = Stamp::new(self.now, thread, pc);
        for cell in self.cells(offset, bytes) {
            let write = self.writes[cell];
            if write.is_under_way() && write.thread() == thread && write.pc() == pc {
                self.writes[cell] = now;
                self.under_way -= 1;
            }
        }
    }
}
