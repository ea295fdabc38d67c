//! The last accesses to each byte of the memory that launches on several GPUs access.

use super::stamp::Stamp;
use crate::fault::Access;

/// The number of bytes in a cell.
const CELL: u64 = 4;

/// The number of cells in a page.
const PAGE: usize = 256;

/// The maximum number of reads of a cell that are kept. Any of them is enough to find a race.
const READS: usize = 8;

/// An access to some bytes of a cell, one bit each.
#[derive(Clone, Copy, Debug)]
struct Part {
    stamp: Stamp,
    bytes: u8,
}

/// Nearly always, one write and one read are all that is known about a cell.
#[derive(Debug, Default)]
struct Cell {
    write: Option<Part>,
    /// A read since.
    read: Option<Part>,
    /// Further writes and reads.
    more: Option<Box<[Vec<Part>; 2]>>,
}

impl Cell {
    fn writes(&self) -> impl Iterator<Item = &Part> {
        self.write.iter().chain(self.more.iter().flat_map(|more| &more[0]))
    }

    fn reads(&self) -> impl Iterator<Item = &Part> {
        self.read.iter().chain(self.more.iter().flat_map(|more| &more[1]))
    }

    fn note_read(&mut self, part: Part) {
        let is_same = |read: &Part| read.stamp.is_by_thread_of(&part.stamp) && read.bytes == part.bytes;
        match &mut self.read {
            None => self.read = Some(part),
            Some(read) if is_same(read) => *read = part,
            Some(_) => {
                let [_, reads] = &mut **self.more.get_or_insert_default();
                match reads.iter().position(is_same) {
                    Some(at) => reads[at] = part,
                    None if reads.len() == READS => reads[part.stamp.thread as usize % READS] = part,
                    None => reads.push(part),
                }
            }
        }
    }

    fn note_write(&mut self, part: Part) {
        let keep = |mut old: Part| {
            old.bytes &= !part.bytes;
            (old.bytes != 0).then_some(old)
        };
        self.read = self.read.and_then(keep);
        let old = self.write.replace(part).and_then(keep);
        if let Some(more) = &mut self.more {
            more.iter_mut().for_each(|parts| *parts = parts.drain(..).filter_map(keep).collect());
        }
        if let Some(old) = old {
            self.more.get_or_insert_default()[0].push(old);
        }
        self.more.take_if(|more| more.iter().all(Vec::is_empty));
    }
}

/// The cells of one allocation.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pages: Vec<Option<Box<[Cell; PAGE]>>>,
}

impl Cells {
    /// Records an access and returns an earlier one that `races` with it, and the first byte that both access. A write
    /// that doesn't change anything doesn't race with other writes.
    pub(crate) fn access(
        &mut self,
        offset: u64,
        len: u64,
        now: Stamp,
        changes: bool,
        races: impl Fn(&Stamp) -> bool,
    ) -> Option<(Stamp, u64)> {
        let mut found = None;
        for cell in offset / CELL..(offset + len).div_ceil(CELL) {
            let first = cell * CELL;
            let inside = |at: &u64| (offset..offset + len).contains(&(first + at));
            let bytes = (0..CELL).filter(inside).fold(0, |bytes, at| bytes | 1_u8 << at);
            let cell = self.cell(cell as usize);
            let conflicts = |part: &&Part| part.bytes & bytes != 0 && races(&part.stamp);
            let write = cell.writes().filter(|_| now.access == Access::Read || changes).find(conflicts);
            let read = cell.reads().filter(|_| now.access != Access::Read).find(conflicts);
            found = found.or(write.or(read).map(|part| {
                let both = u64::from((part.bytes & bytes).trailing_zeros());
                (part.stamp, first + both)
            }));
            let part = Part { stamp: now, bytes };
            match now.access {
                Access::Read => cell.note_read(part),
                Access::Write | Access::Atomic => cell.note_write(part),
            }
        }
        found
    }

    fn cell(&mut self, cell: usize) -> &mut Cell {
        let page = cell / PAGE;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new(std::array::from_fn(|_| Cell::default())));
        &mut page[cell % PAGE]
    }
}
