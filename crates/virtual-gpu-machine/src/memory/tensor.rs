//! `cp.async.bulk.tensor`: copies between a tensor in global memory and shared memory, in pieces of 16 bytes.

use super::bulk::Target;
use crate::arithmetic::single::flush;
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_core::tensor_map::{BYTES, ElementType, PIECE, Part, Piece, TensorMap};
use virtual_gpu_ptx::instruction::{AtomicOp, AtomicType, Scope, Space, TensorCopy};

/// The alignment of a part in shared memory, from the section on tensor copies in the CUDA C++ Programming Guide.
const ALIGNMENT: u64 = 128;
/// The alignment of a tensor map.
const MAP_ALIGNMENT: usize = 64;

/// A part of a tensor, as one thread copies it.
struct Copied<'a> {
    thread: usize,
    map: &'a TensorMap,
    /// The first address in shared memory.
    shared: u64,
}

impl Copied<'_> {
    /// Returns the address of a piece in shared memory.
    fn place(&self, piece: &Piece) -> u64 {
        self.map.swizzle.place(self.shared + piece.offset)
    }
}

impl Machine<'_> {
    /// Executes `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`. It is not inlined, because that would make every
    /// other operation slower.
    #[inline(never)]
    pub(crate) fn tensor_copy(&mut self, copy: &TensorCopy, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.looks += 1;
        for thread in mask.threads() {
            let map = self.tensor_map(copy, thread)?;
            let words = &self.block.files;
            let coordinates: Vec<i32> =
                copy.coordinates.iter().map(|&slot| words.word_of(slot, thread).cast_signed()).collect();
            let offsets: Vec<u16> =
                copy.offsets.iter().map(|&slot| words.word_of(slot, thread) as u16).collect();
            let shared = self.address_of(copy.shared, thread);
            let kind = if copy.mbarrier.is_some() { Kind::Write } else { Kind::Read };
            if !shared.is_multiple_of(ALIGNMENT) {
                let fault = FaultKind::Misaligned { needed: ALIGNMENT as u32 };
                return Err(self.access_fault(fault, Space::Shared, kind, thread, shared, PIECE as u64));
            }
            let extent = map.extent();
            if self.locate(Space::Shared, shared, extent).is_none() {
                return Err(self.bad_address(Space::Shared, kind, thread, shared, extent));
            }
            let copied = Copied { thread, map: &map, shared };
            let targets = match copy.mbarrier {
                Some(mbarrier) => self.targets(shared, mbarrier, copy.blocks, thread)?,
                None => Vec::new(),
            };
            map.each_piece(&coordinates, &offsets, |piece| match (copy.mbarrier, copy.reduction) {
                (Some(_), _) => self.load_piece(&copied, piece, &targets),
                (None, None) => self.store_piece(&copied, piece),
                (None, Some(op)) => self.reduce_piece(&copied, piece, op),
            })?;
            self.complete_targets(&targets, thread, map.part_bytes() as u32)?;
        }
        Ok(())
    }

    /// Reads a thread's tensor map, which may be a parameter or in global memory.
    fn tensor_map(&mut self, copy: &TensorCopy, thread: usize) -> Result<TensorMap, Stop> {
        let address = self.address_of(copy.map, thread);
        let mut bytes = [0; BYTES];
        for (at, part) in (0..).step_by(MAP_ALIGNMENT).zip(bytes.chunks_exact_mut(MAP_ALIGNMENT)) {
            self.read_bytes(Space::Generic, Kind::Read, thread, address + at, part)?;
        }
        let map = TensorMap::from_bytes(&bytes);
        let why = match map {
            None => "there is no tensor map at this address",
            Some(map) if map.rank != copy.coordinates.len() => {
                "the tensor map has another number of dimensions than the instruction"
            }
            Some(map) if matches!(map.part, Part::Im2col { .. }) != copy.is_im2col => {
                "the tensor map and the instruction are not for the same mode, which is tile or im2col"
            }
            Some(map) => return Ok(map),
        };
        Err(self.undefined(why, thread))
    }

    /// Copies a piece to the shared memory of each target.
    fn load_piece(&mut self, copied: &Copied<'_>, piece: Piece, targets: &[Target]) -> Result<(), Stop> {
        let mut bytes = copied.map.fill();
        let inside = &mut bytes[piece.skipped..piece.skipped + piece.len];
        if !inside.is_empty() {
            self.read_located(Space::Global, Kind::Read, copied.thread, piece.address, inside)?;
        }
        if copied.map.element == ElementType::F32Flushed {
            for element in bytes.as_chunks_mut().0 {
                *element = flush(f32::from_le_bytes(*element)).to_le_bytes();
            }
        }
        for target in targets {
            let place = copied.map.swizzle.place(target.to + piece.offset);
            self.begin_piece(copied.thread, place, &bytes, None)?;
        }
        Ok(())
    }

    /// Copies a piece to the tensor.
    fn store_piece(&mut self, copied: &Copied<'_>, piece: Piece) -> Result<(), Stop> {
        let Some(bytes) = self.shared_piece(copied, piece)? else { return Ok(()) };
        let inside = &bytes[piece.skipped..piece.skipped + piece.len];
        self.write_located(Space::Global, Kind::Write, copied.thread, piece.address, inside)
    }

    /// Combines a piece with the tensor, element by element.
    fn reduce_piece(&mut self, copied: &Copied<'_>, piece: Piece, op: AtomicOp) -> Result<(), Stop> {
        let element = copied.map.element;
        let Some(kind) = atomic_type(op, element) else {
            let why = "the elements of the tensor can't be combined with this operation";
            return Err(self.undefined(why, copied.thread));
        };
        let Some(bytes) = self.shared_piece(copied, piece)? else { return Ok(()) };
        let inside = &bytes[piece.skipped..piece.skipped + piece.len];
        self.reduce_elements(copied.thread, piece.address, inside, (op, kind))
    }

    /// Combines elements with those in global memory.
    pub(super) fn reduce_elements(
        &mut self,
        thread: usize,
        address: u64,
        elements: &[u8],
        (op, kind): (AtomicOp, AtomicType),
    ) -> Result<(), Stop> {
        // Manual: each reduction has the semantics `.relaxed.gpu`.
        self.scope = Some(Scope::Gpu);
        let size = usize::from(kind.bytes());
        for (at, element) in (address..).step_by(size).zip(elements.chunks_exact(size)) {
            let mut value = [0; 8];
            value[..size].copy_from_slice(element);
            self.update(Space::Global, thread, at, (op, kind), [u64::from_le_bytes(value), 0])?;
        }
        self.scope = None;
        Ok(())
    }

    /// Reads those bytes of a piece that are inside of the tensor from shared memory; `None` if there are none.
    fn shared_piece(&mut self, copied: &Copied<'_>, piece: Piece) -> Result<Option<[u8; PIECE]>, Stop> {
        if piece.len == 0 {
            return Ok(None);
        }
        let (thread, place) = (copied.thread, copied.place(&piece));
        self.watch_read(Space::Shared, thread, place, PIECE as u64, false);
        let mut bytes = [0; PIECE];
        let inside = &mut bytes[piece.skipped..piece.skipped + piece.len];
        self.read_located(Space::Shared, Kind::Read, thread, place + piece.skipped as u64, inside)?;
        Ok(Some(bytes))
    }
}

/// Returns how `cp.reduce.async.bulk.tensor` interprets elements; `None` if it doesn't accept them.
fn atomic_type(op: AtomicOp, element: ElementType) -> Option<AtomicType> {
    use AtomicOp::{Add, And, Dec, Inc, Max, Min, Or, Xor};
    Some(match (op, element) {
        (Add | Min | Max | Inc | Dec | And | Or | Xor, ElementType::U32) => AtomicType::U32,
        (Add | Min | Max | And | Or | Xor, ElementType::I32) => AtomicType::S32,
        (Add | Min | Max | And | Or | Xor, ElementType::U64) => AtomicType::U64,
        (Min | Max | And | Or | Xor, ElementType::I64) => AtomicType::S64,
        (Add | Min | Max, ElementType::F16) => AtomicType::F16,
        (Add | Min | Max, ElementType::Bf16) => AtomicType::Bf16,
        (Add, ElementType::F32 | ElementType::F32Flushed) => AtomicType::F32,
        (Add, ElementType::F64) => AtomicType::F64,
        _ => return None,
    })
}
