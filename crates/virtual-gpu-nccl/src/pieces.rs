//! Moves and combines the bytes of a call's buffers. If there are many, several threads do it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::buffer::{BufferLocation, Memories, Source};
use super::operation::Piece;
use super::ranks::Ranks;
use virtual_gpu_core::memory::PastCaches;
use virtual_gpu_core::team::run_together;
use virtual_gpu_core::thread::cores;
use virtual_gpu_machine::reduction::Reduction;

/// The number of bytes to combine in one step: few enough to stay in the cache that is nearest to the core.
const BLOCK: u64 = 16 << 10;

/// The number of bytes, read and written, for which waking another thread is worthwhile.
const BYTES_PER_THREAD: u64 = 4 << 20;

/// The number of parts per thread. A thread whose core is busy with other work then holds up the others less.
const PARTS_PER_THREAD: u64 = 4;

/// The number of written bytes beyond which the caches are of no use for them.
const BEYOND_CACHES: u64 = 8 << 20;

/// What a rank contributes.
enum Input<'a> {
    /// Bytes in an allocation.
    Here(BufferLocation),
    /// Bytes of another process, or a copy of bytes of which some were never written.
    Bytes(Cow<'a, [u8]>),
}

/// Where to find the bytes of one piece: in a region, from an offset, or in bytes that no thread writes.
enum Found<'a> {
    In(usize, u64),
    Bytes(&'a [u8]),
}

/// Bytes of an allocation that a part of the work needs.
struct Need {
    /// The GPU, and the slot of the allocation.
    place: (usize, usize),
    /// Offsets in the allocation.
    range: Range<u64>,
    /// The part's index.
    part: usize,
}

/// Bytes of an allocation that only one thread uses.
struct Region<'a> {
    place: (usize, usize),
    /// The offset of the first byte in the allocation.
    start: u64,
    bytes: &'a mut [u8],
}

/// Reads, combines, and writes the pieces block by block. Each block is read from all its sources before it is written
/// anywhere, so in-place buffers need no special case.
pub(crate) fn move_pieces(
    mut pieces: Vec<Piece>,
    reduction: Option<&Reduction>,
    memories: &mut Memories<'_>,
    send: &Ranks<Option<Source>>,
    receive: &Ranks<Option<BufferLocation>>,
) {
    // Pieces that only other processes' ranks receive are computed by those processes.
    pieces.retain(|piece| piece.destinations.iter().any(|&(rank, _)| receive[rank].is_some()));
    let inputs = send.iter().map(|(rank, source)| {
        let ends = pieces.iter().flat_map(|piece| {
            let own = piece.sources.iter().filter(move |(source, _)| *source == rank);
            own.map(|(_, at)| at + piece.bytes)
        });
        source.as_ref().map(|source| source.input(memories, || ends.max().unwrap_or(0)))
    });
    let mover = Mover { reduction, inputs: inputs.collect(), receive };
    let written: u64 = pieces.iter().map(|piece| piece.bytes * piece.destinations.len() as u64).sum();
    let read: u64 = pieces.iter().map(|piece| piece.bytes * piece.sources.len() as u64).sum();
    let threads = ((written + read) / BYTES_PER_THREAD).min(cores() as u64);
    mover.run(&pieces, memories, threads, written > BEYOND_CACHES);
    for piece in &pieces {
        for &(rank, at) in &piece.destinations {
            let Some(location) = receive[rank] else { continue };
            let Some(allocation) = location.allocation_mut(memories) else { continue };
            let start = location.offset + at;
            allocation.mark_written(start..start + piece.bytes);
        }
    }
}

/// Divides pieces into about `count` parts with the same number of bytes.
fn parts(pieces: &[Piece], count: u64) -> Vec<Vec<Piece>> {
    let all: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let most = all.div_ceil(count).next_multiple_of(BLOCK);
    let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), most);
    for piece in pieces {
        let mut start = 0;
        while start < piece.bytes {
            let bytes = room.min(piece.bytes - start);
            let behind = |ends: &[(_, u64)]| ends.iter().map(|&(rank, at)| (rank, at + start)).collect();
            let (sources, destinations) = (behind(&piece.sources), behind(&piece.destinations));
            part.push(Piece { sources, destinations, bytes });
            start += bytes;
            room -= bytes;
            if room == 0 {
                parts.push(std::mem::take(&mut part));
                room = most;
            }
        }
    }
    parts.extend((!part.is_empty()).then_some(part));
    parts
}

impl Source {
    /// Returns what the rank contributes. `extent` returns the number of bytes that are read.
    fn input(&self, memories: &Memories<'_>, extent: impl FnOnce() -> u64) -> Input<'_> {
        match self {
            Self::Elsewhere(arrived) => Input::Bytes(Cow::Borrowed(&arrived.payload)),
            Self::Here(location) => {
                let not_full =
                    location.allocation(memories).filter(|allocation| !allocation.is_fully_written());
                let seen =
                    not_full.map(|allocation| allocation.seen(location.offset..location.offset + extent()));
                match seen {
                    Some(Cow::Owned(copy)) => Input::Bytes(Cow::Owned(copy)),
                    _ => Input::Here(*location),
                }
            }
        }
    }
}

/// What every thread needs.
struct Mover<'a> {
    reduction: Option<&'a Reduction>,
    inputs: Ranks<Option<Input<'a>>>,
    receive: &'a Ranks<Option<BufferLocation>>,
}

impl Mover<'_> {
    /// Moves all pieces, on several threads unless these would need the same bytes.
    fn run(&self, pieces: &[Piece], memories: &mut Memories<'_>, threads: u64, is_beyond_caches: bool) {
        let several = (threads > 1).then(|| parts(pieces, threads * PARTS_PER_THREAD));
        let with_regions = several.and_then(|parts| Some((self.regions(memories, &parts)?, parts)));
        let Some((regions, parts)) = with_regions else {
            let regions = self.regions(memories, &[pieces]);
            regions
                .into_iter()
                .flatten()
                .for_each(|regions| self.run_part(pieces, regions, is_beyond_caches));
            return;
        };
        let queue = Mutex::new(parts.iter().zip(regions));
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((part, regions)) = next() {
                self.run_part(part, regions, is_beyond_caches);
            }
        };
        run_together(threads as usize - 1, &work);
    }

    /// Returns the bytes that each part needs. Returns `None` if two parts need the same bytes.
    fn regions<'a, P: AsRef<[Piece]>>(
        &self,
        memories: &'a mut Memories<'_>,
        parts: &[P],
    ) -> Option<Vec<Vec<Region<'a>>>> {
        let mut needs: Vec<Need> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            // From the first byte that the part needs of each buffer to the last.
            let mut sent: Ranks<Option<Range<u64>>> = Ranks::new(self.inputs.len(), |_| None);
            let mut received: Ranks<Option<Range<u64>>> = Ranks::new(self.receive.len(), |_| None);
            for piece in part.as_ref() {
                for (ends, of_ranks) in [(&piece.sources, &mut sent), (&piece.destinations, &mut received)] {
                    for &(rank, at) in ends {
                        let end = at + piece.bytes;
                        let range = of_ranks[rank].get_or_insert(at..end);
                        *range = range.start.min(at)..range.end.max(end);
                    }
                }
            }
            let inputs = self.inputs.values().map(|input| match input {
                Some(Input::Here(location)) => Some(*location),
                _ => None,
            });
            let locations = inputs.chain(self.receive.values().copied());
            let ranges = sent.into_values().chain(received.into_values());
            needs.extend(locations.zip(ranges).filter_map(|(location, range)| {
                let (BufferLocation { device, slot, offset }, Range { start, end }) = (location?, range?);
                Some(Need { place: (device, slot), range: offset + start..offset + end, part: number })
            }));
        }
        needs.sort_unstable_by_key(|need| (need.place, need.range.start));
        let mut apart: Vec<Need> = Vec::with_capacity(needs.len());
        for need in needs {
            match apart
                .last_mut()
                .filter(|last| last.place == need.place && need.range.start < last.range.end)
            {
                Some(last) if last.part == need.part => last.range.end = last.range.end.max(need.range.end),
                Some(_) => return None,
                None => apart.push(need),
            }
        }
        let mut regions: Vec<Vec<Region<'_>>> = parts.iter().map(|_| Vec::new()).collect();
        let mut memories = memories.iter_mut();
        for of_device in apart.chunk_by(|one, next| one.place.0 == next.place.0) {
            let (_, memory) = memories.find(|(device, _)| **device == of_device[0].place.0)?;
            let of_slots = || of_device.chunk_by(|one, next| one.place == next.place);
            let allocations = memory.in_slots_mut(of_slots().map(|of_slot| of_slot[0].place.1));
            for (allocation, of_slot) in allocations.zip(of_slots()) {
                let (mut rest, mut passed) = (allocation.bytes_mut(), 0);
                for &Need { place, range: Range { start, end }, part } in of_slot {
                    let (bytes, behind) = std::mem::take(&mut rest).split_at_mut((end - passed) as usize);
                    regions[part].push(Region {
                        place,
                        start,
                        bytes: &mut bytes[(start - passed) as usize..],
                    });
                    (rest, passed) = (behind, end);
                }
            }
        }
        Some(regions)
    }

    /// Moves the pieces of one part.
    fn run_part(&self, pieces: &[Piece], mut regions: Vec<Region<'_>>, is_beyond_caches: bool) {
        let past_caches = is_beyond_caches.then(PastCaches::new);
        let longest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
        let mut block = vec![0; longest.min(BLOCK) as usize];
        for piece in pieces {
            let sources: Vec<(usize, Found<'_>)> = piece
                .sources
                .iter()
                .filter_map(|&(rank, at)| {
                    let found = match self.inputs[rank].as_ref()? {
                        Input::Here(location) => {
                            let (region, offset) = find(&regions, location, at)?;
                            Found::In(region, offset)
                        }
                        Input::Bytes(bytes) => {
                            Found::Bytes(bytes.get(at as usize..(at + piece.bytes) as usize)?)
                        }
                    };
                    Some((rank.0, found))
                })
                .collect();
            let destinations = piece.destinations.iter();
            let destinations: Vec<(usize, u64)> = destinations
                .filter_map(|&(rank, at)| find(&regions, self.receive[rank].as_ref()?, at))
                .collect();
            for start in (0..piece.bytes).step_by(BLOCK as usize) {
                let len = BLOCK.min(piece.bytes - start);
                let range = |offset: u64| (offset + start) as usize..(offset + start + len) as usize;
                let out = &mut block[..len as usize];
                let inputs: Vec<(usize, &[u8])> = sources
                    .iter()
                    .map(|(rank, found)| match found {
                        Found::In(region, offset) => (*rank, &regions[*region].bytes[range(*offset)]),
                        Found::Bytes(bytes) => (*rank, &bytes[range(0)]),
                    })
                    .collect();
                match self.reduction {
                    Some(reduction) => reduction.reduce(out, &inputs),
                    None => inputs.iter().for_each(|(_, input)| out.copy_from_slice(input)),
                }
                for &(region, offset) in &destinations {
                    let to = &mut regions[region].bytes[range(offset)];
                    match &past_caches {
                        Some(past_caches) => past_caches.copy(to, out),
                        None => to.copy_from_slice(out),
                    }
                }
            }
        }
    }
}

/// Returns where the bytes of a buffer from an offset are: in which region, and from which byte.
fn find(regions: &[Region<'_>], buffer: &BufferLocation, at: u64) -> Option<(usize, u64)> {
    let (place, offset) = ((buffer.device, buffer.slot), buffer.offset + at);
    let behind = regions.partition_point(|region| (region.place, region.start) <= (place, offset));
    let region = behind.checked_sub(1)?;
    Some((region, offset - regions[region].start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Collective, Operation, ReductionOrder};
    use virtual_gpu_core::handle::Rank;
    use virtual_gpu_core::memory::DeviceMemory;
    use virtual_gpu_core::source_location::CallSite;
    use virtual_gpu_core::sync::Mutex;
    use virtual_gpu_machine::reduction::{DataType, Operator};

    const RANKS: usize = 3;

    /// Runs a collective whose ranks each have a GPU. Returns the bytes that each rank has in the end.
    fn run(operation: Operation, in_place: bool, threads: u64, is_beyond_caches: bool) -> Vec<Vec<u8>> {
        let given = operation.given(Rank(0), RANKS).unwrap();
        let got = operation.got(Rank(0), RANKS).unwrap();
        let gpus: Vec<_> = (0..RANKS as u64)
            .map(|gpu| Mutex::new(DeviceMemory::new((gpu + 1) << 40..(gpu + 2) << 40, 1 << 30)))
            .collect();
        let mut memories: Memories<'_> = gpus.iter().map(|gpu| gpu.lock().unwrap()).enumerate().collect();
        let (mut inputs, mut receive) = (Vec::new(), Vec::new());
        for (device, memory) in &mut memories {
            let base = memory.allocate(given + got, CallSite::unknown()).unwrap();
            let (allocation, _) = memory.range_mut(base, given + got).unwrap();
            for (at, byte) in allocation.bytes_mut().iter_mut().enumerate() {
                *byte = (at * 7 + device * 31) as u8;
            }
            allocation.mark_written(0..given);
            let target = if in_place { base } else { base + given };
            inputs.push(BufferLocation::of(memory, *device, base, given).map(Input::Here));
            receive.push(BufferLocation::of(memory, *device, target, got));
        }
        let reduction = operation.operator().map(|operator| Reduction {
            data_type: operation.data_type,
            operator,
            ranks: RANKS,
            scales: vec![[0; 8]; RANKS],
        });
        let pieces = operation.pieces(RANKS, ReductionOrder::Ring);
        let receive = receive.into();
        let mover = Mover { reduction: reduction.as_ref(), inputs: inputs.into(), receive: &receive };
        mover.run(&pieces, &mut memories, threads, is_beyond_caches);
        memories.values().flat_map(|memory| memory.allocations()).map(|it| it.bytes().to_vec()).collect()
    }

    #[test]
    fn several_threads_get_the_same_bytes_as_one() {
        let collectives = [
            Collective::AllReduce(Operator::Sum),
            Collective::AllGather,
            Collective::ReduceScatter(Operator::Max),
        ];
        for collective in collectives {
            for count in [1, 5, 70_001] {
                let operation = Operation { collective, count, data_type: DataType::Int32 };
                for in_place in [false, operation.given(Rank(0), RANKS) == operation.got(Rank(0), RANKS)] {
                    let one = run(operation, in_place, 1, false);
                    for (threads, is_beyond_caches) in [(1, true), (2, false), (3, true)] {
                        assert!(
                            run(operation, in_place, threads, is_beyond_caches) == one,
                            "{operation}, {threads}"
                        );
                    }
                }
            }
        }
    }
}
