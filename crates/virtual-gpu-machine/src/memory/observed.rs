//! Accesses to device memory that launches on other GPUs access, too.

use super::contiguous::{Pattern, addresses, is_inside, pattern};
use crate::consistency::Stamp;
use crate::fault::Access as Kind;
use crate::machine::Machine;
use crate::mask::{Mask, WIDTH, bits};
use virtual_gpu_ptx::instruction::Access;

impl Machine<'_> {
    /// Records the weak accesses of whole chunks of threads to the allocation in a slot, from the first chunk on, as long as
    /// it is clear that they don't race. Returns these threads; the others have to be observed one by one, in order. Returns
    /// `None` if accesses are not compared with those of other launches.
    #[inline]
    pub(super) fn observe_chunks(
        &mut self,
        access: &Access,
        slot: usize,
        mask: &Mask,
        kind: Kind,
    ) -> Option<Mask> {
        self.is_observed().then(|| self.first_harmless_chunks(access, slot, mask, kind))
    }

    fn first_harmless_chunks(&mut self, access: &Access, slot: usize, mask: &Mask, kind: Kind) -> Mask {
        let (Some(together), Some(allocation)) = (&mut self.together, self.memory.in_slot(slot)) else {
            return Mask::NONE;
        };
        if allocation.is_shared_with_processes() {
            return *mask;
        }
        let (base, place) = (allocation.base(), (allocation.base(), allocation.id()));
        let size = allocation.parts().0.len();
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        let (files, observer) = (&self.block.files, &self.block.observer);
        let mut observed = Mask::NONE;
        for (chunk, &active) in mask.0.iter().enumerate().take(files.chunks) {
            if active == 0 {
                continue;
            }
            let addresses = addresses(files, access.address, chunk);
            let first = active.trailing_zeros() as usize;
            let offset = addresses.0[first].wrapping_sub(base);
            let (len, are_same) = match pattern(&addresses, active, first, unit) {
                Pattern::Row => (u64::from(active.count_ones()) * unit, false),
                Pattern::Same if kind == Kind::Read => (unit, true),
                Pattern::Same | Pattern::Scattered => break,
            };
            let stamp = Stamp { access: kind, ..observer.stamp(chunk * WIDTH + first, self.pc) };
            let threads = (bits(active).map(|i| chunk * WIDTH + i), are_same);
            let consistency = &mut *together.consistency;
            if !is_inside(offset, len, size)
                || !consistency.access_together(place, (offset, unit), stamp, threads, observer)
            {
                break;
            }
            observed.0[chunk] = active;
        }
        observed
    }
}
