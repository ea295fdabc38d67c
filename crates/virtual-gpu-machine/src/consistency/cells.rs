//! The last accesses to each byte of the memory that launches on several GPUs access.

use std::num::NonZero;
use std::ops::Range;

use super::stamp::Stamp;
use crate::fault::Access;

/// The number of bytes in a cell.
pub(crate) const CELL: u64 = 4;

/// The number of cells in a page.
const PAGE: usize = 256;

/// The maximum number of reads of a cell that are kept. Any of them is enough to find a race.
const READS: usize = 8;

/// How many of a page's last stamps are compared with a new one.
const RECENT: usize = 4;

/// The number of stamps from which on a page is searched for those that no access has anymore.
const STAMPS: usize = 512;

/// An access to some bytes of a cell, one bit each.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The index of its stamp among those of the page.
    stamp: u16,
    thread: u16,
    bytes: NonZero<u8>,
}

impl Part {
    /// Returns whether the access is to some of these bytes.
    fn meets(&self, bytes: NonZero<u8>) -> bool {
        self.bytes.get() & bytes.get() != 0
    }

    fn stamp(&self, stamps: &[Stamp]) -> Stamp {
        Stamp { thread: self.thread, ..stamps[usize::from(self.stamp)] }
    }

    /// Returns whether a thread of a block made the access.
    fn is_by(&self, block: (u32, u32), thread: u16, stamps: &[Stamp]) -> bool {
        self.thread == thread && stamps[usize::from(self.stamp)].block() == block
    }

    /// Returns the access to the bytes that are not among these.
    fn without(mut self, bytes: NonZero<u8>) -> Option<Self> {
        self.bytes = NonZero::new(self.bytes.get() & !bytes.get())?;
        Some(self)
    }
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

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let more = self.more.iter_mut().flat_map(|more| more.iter_mut().flatten());
        self.write.iter_mut().chain(&mut self.read).chain(more)
    }

    /// Returns whether all accesses that conflict with one to the whole cell satisfy a condition.
    fn all_conflicts(&self, access: Access, mut condition: impl FnMut(&Part) -> bool) -> bool {
        let reads = access != Access::Read;
        self.write.as_ref().is_none_or(&mut condition)
            && self.read.as_ref().filter(|_| reads).is_none_or(&mut condition)
            && self.more.as_ref().is_none_or(|more| {
                more[0].iter().all(&mut condition) && (!reads || more[1].iter().all(condition))
            })
    }

    fn note(&mut self, access: Access, part: Part, stamps: &[Stamp]) {
        match access {
            Access::Read => self.note_read(part, stamps),
            Access::Write | Access::Atomic => self.note_write(part),
        }
    }

    fn note_read(&mut self, part: Part, stamps: &[Stamp]) {
        let block = stamps[usize::from(part.stamp)].block();
        let is_same = |read: &Part| read.is_by(block, part.thread, stamps) && read.bytes == part.bytes;
        match &mut self.read {
            None => self.read = Some(part),
            Some(read) if is_same(read) => *read = part,
            Some(_) => {
                let [_, reads] = &mut **self.more.get_or_insert_default();
                match reads.iter().position(is_same) {
                    Some(at) => reads[at] = part,
                    None if reads.len() == READS => reads[usize::from(part.thread) % READS] = part,
                    None => reads.push(part),
                }
            }
        }
    }

    fn note_write(&mut self, part: Part) {
        let keep = |old: Part| old.without(part.bytes);
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

#[derive(Debug)]
struct Page {
    /// The stamps of the accesses, without their threads: those of a block often access a page with few instructions.
    stamps: Vec<Stamp>,
    /// The number of stamps at which those are removed that no access has anymore.
    limit: usize,
    cells: [Cell; PAGE],
}

impl Default for Page {
    fn default() -> Self {
        Self { stamps: Vec::new(), limit: STAMPS, cells: std::array::from_fn(|_| Cell::default()) }
    }
}

impl Page {
    /// Returns the index of a stamp.
    fn index_of(&mut self, stamp: &Stamp) -> u16 {
        let stamp = Stamp { thread: 0, ..*stamp };
        let old = self.stamps.len().saturating_sub(RECENT);
        if let Some(at) = self.stamps[old..].iter().position(|known| *known == stamp) {
            return (old + at) as u16;
        }
        if self.stamps.len() == self.limit {
            self.remove_unused();
        }
        self.stamps.push(stamp);
        (self.stamps.len() - 1) as u16
    }

    /// Removes the stamps that no access has. A cell has at most four writes and `READS + 1` reads, so fewer than 3,400 are
    /// left, and every limit is less than the number of indices.
    #[cold]
    fn remove_unused(&mut self) {
        let all = std::mem::take(&mut self.stamps);
        let mut places = vec![None; all.len()];
        for part in self.cells.iter_mut().flat_map(Cell::parts_mut) {
            let old = usize::from(part.stamp);
            part.stamp = *places[old].get_or_insert_with(|| {
                self.stamps.push(all[old]);
                (self.stamps.len() - 1) as u16
            });
        }
        self.limit = STAMPS.max(2 * self.stamps.len());
    }
}

/// Contiguous bytes that contiguous threads access, each the same number of them.
pub(crate) struct Row<R> {
    /// The offset of the first thread's first byte, a multiple of [`CELL`].
    pub(crate) offset: u64,
    /// The number of bytes that each thread accesses: [`CELL`] times a power of two.
    pub(crate) unit: u64,
    /// The number of threads.
    pub(crate) threads: usize,
    /// The first thread's access.
    pub(crate) first: Stamp,
    /// Returns the number of releases of the thread that is this many threads after the first.
    pub(crate) releases: R,
}

impl<R: Fn(usize) -> u32> Row<R> {
    /// Returns, for each page, its number, the cells there, and how far each of these cells' threads is after the first.
    fn cells(&self) -> impl Iterator<Item = (usize, Range<usize>, impl Iterator<Item = usize> + use<R>)> {
        let first = (self.offset / CELL) as usize;
        let per_thread = (self.unit / CELL) as usize;
        let end = first + per_thread * self.threads;
        // One cell per thread is the usual case.
        let shift = per_thread.trailing_zeros();
        (first / PAGE..end.div_ceil(PAGE)).map(move |page| {
            let start = first.max(page * PAGE);
            let inside = start % PAGE..end.min((page + 1) * PAGE) - page * PAGE;
            (page, inside, (start - first..).map(move |cell| cell >> shift))
        })
    }
}

/// The cells of one allocation.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pages: Vec<Option<Box<Page>>>,
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
            let Some(bytes) = NonZero::new(bytes) else { continue };
            let page = self.page(cell as usize / PAGE);
            let stamp = page.index_of(&now);
            let Page { stamps, cells, .. } = page;
            let cell = &mut cells[cell as usize % PAGE];
            let conflicts = |part: &&Part| part.meets(bytes) && races(&part.stamp(stamps));
            let write = cell.writes().filter(|_| now.access == Access::Read || changes).find(conflicts);
            let read = cell.reads().filter(|_| now.access != Access::Read).find(conflicts);
            found = found.or(write.or(read).map(|part| {
                let both = u64::from((part.bytes.get() & bytes.get()).trailing_zeros());
                (part.stamp(stamps), first + both)
            }));
            cell.note(now.access, Part { stamp, thread: now.thread, bytes }, stamps);
        }
        found
    }

    /// Records the accesses of a row of threads, if each earlier access that conflicts with one of them was by the same
    /// thread, or is known to have happened before, whichever thread of its block made it (`is_known`). If not, does
    /// nothing and returns false.
    pub(crate) fn access_row<R: Fn(usize) -> u32>(
        &mut self,
        row: &Row<R>,
        is_known: impl Fn(&Stamp) -> bool,
    ) -> bool {
        let first = &row.first;
        let block = first.block();
        for (page, cells, threads) in row.cells() {
            let Some(Some(page)) = self.pages.get(page) else { continue };
            let mut last_known = None;
            for (cell, after) in page.cells[cells].iter().zip(threads) {
                let thread = first.thread + after as u16;
                let is_ordered = |part: &Part| {
                    if last_known == Some(part.stamp) || part.is_by(block, thread, &page.stamps) {
                        return true;
                    }
                    last_known = Some(part.stamp);
                    is_known(&page.stamps[usize::from(part.stamp)])
                };
                if !cell.all_conflicts(first.access, is_ordered) {
                    return false;
                }
            }
        }
        for (page, cells, threads) in row.cells() {
            let page = self.page(page);
            let mut last = (row.releases)(0);
            let mut stamp = page.index_of(&Stamp { releases: last, ..*first });
            for (cell, after) in cells.zip(threads) {
                let releases = (row.releases)(after);
                if releases != last {
                    (last, stamp) = (releases, page.index_of(&Stamp { releases, ..*first }));
                }
                let part = Part { stamp, thread: first.thread + after as u16, bytes: ALL };
                page.cells[cell].note(first.access, part, &page.stamps);
            }
        }
        true
    }

    /// Records that threads read the same cells, if each earlier write is known to have happened before, whichever thread of
    /// its block made it. If not, does nothing and returns false.
    pub(crate) fn read_same(
        &mut self,
        cells: Range<u64>,
        threads: impl Iterator<Item = Stamp> + Clone,
        is_known: impl Fn(&Stamp) -> bool,
    ) -> bool {
        let cells = cells.start as usize..cells.end as usize;
        for cell in cells.clone() {
            let Some(Some(page)) = self.pages.get(cell / PAGE) else { continue };
            let is_ordered = |part: &Part| is_known(&page.stamps[usize::from(part.stamp)]);
            if !page.cells[cell % PAGE].all_conflicts(Access::Read, is_ordered) {
                return false;
            }
        }
        for cell in cells {
            let page = self.page(cell / PAGE);
            for now in threads.clone() {
                let part = Part { stamp: page.index_of(&now), thread: now.thread, bytes: ALL };
                page.cells[cell % PAGE].note_read(part, &page.stamps);
            }
        }
        true
    }

    /// Returns the number of stamps of all pages.
    #[cfg(test)]
    pub(crate) fn stamps(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.stamps.len()).sum()
    }

    fn page(&mut self, page: usize) -> &mut Page {
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        self.pages[page].get_or_insert_default()
    }
}

/// All bytes of a cell.
const ALL: NonZero<u8> = NonZero::new(15).unwrap();
