//! The history of bytes that were accessed in many short ranges. It needs two bytes of memory for each of these bytes.

use std::ops::Range;

use super::history::{Conflict, Last, Now};
use virtual_gpu_core::handle::StreamHandle;

/// The number of bytes in a page.
pub(super) const PAGE: u64 = 4096;

/// The last accesses to each byte of a page.
#[derive(Debug)]
pub(super) struct Page {
    /// The distinct histories of the page's bytes.
    lasts: Vec<Last>,
    /// For each byte, the index of its history in `lasts`.
    of: Box<[u16; PAGE as usize]>,
    /// The number of `lasts` above which unused entries are removed.
    room: usize,
}

impl Page {
    /// Creates a page from the histories of its parts, each given with its offsets in the page.
    pub(super) fn of(parts: impl Iterator<Item = (Range<u64>, Last)>) -> Self {
        let mut page = Self { lasts: vec![Last::default()], of: Box::new([0; PAGE as usize]), room: 0 };
        for (range, last) in parts {
            page.of[range.start as usize..range.end as usize].fill(page.lasts.len() as u16);
            page.lasts.push(last);
        }
        page.clean();
        page
    }

    /// Records an access to ranges in the page, which begins at `base`, and returns the first conflict with an earlier
    /// access.
    pub(super) fn touch(&mut self, base: u64, now: &Now, ranges: &[Range<u64>]) -> Option<Conflict> {
        if self.lasts.len() > self.room {
            self.clean();
        }
        let mut conflict = None;
        // The index of the new version of each of `lasts`.
        let mut became: Vec<Option<u16>> = vec![None; self.lasts.len()];
        for range in ranges {
            let (mut at, end) = ((range.start - base) as usize, (range.end - base) as usize);
            while at < end {
                let id = self.of[at];
                let run = self.of[at..end].iter().take_while(|&&other| other == id).count();
                let last = &self.lasts[usize::from(id)];
                let touched = base + at as u64..base + (at + run) as u64;
                conflict = conflict.or_else(|| last.conflict(touched, now));
                let id = *became[usize::from(id)].get_or_insert_with(|| {
                    let mut last = self.lasts[usize::from(id)].clone();
                    last.note(now);
                    self.lasts.push(last);
                    (self.lasts.len() - 1) as u16
                });
                self.of[at..at + run].fill(id);
                at += run;
            }
        }
        conflict
    }

    /// Returns the last accesses to a byte, given by its offset in the page.
    pub(super) fn last(&self, offset: u64) -> &Last {
        &self.lasts[usize::from(self.of[offset as usize])]
    }

    /// Forgets a stream's accesses.
    pub(super) fn forget(&mut self, stream: StreamHandle) {
        self.lasts.iter_mut().for_each(|last| last.forget(stream));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lasts.len()
    }

    /// Drops every history that no byte has anymore.
    fn clean(&mut self) {
        let mut moved: Vec<Option<u16>> = vec![None; self.lasts.len()];
        let mut kept = Vec::new();
        for id in self.of.iter_mut() {
            *id = *moved[usize::from(*id)].get_or_insert_with(|| {
                kept.push(std::mem::take(&mut self.lasts[usize::from(*id)]));
                (kept.len() - 1) as u16
            });
        }
        self.lasts = kept;
        self.room = 2 * self.lasts.len() + 64;
    }
}
