//! Writes that go past the processor's caches to memory.

/// Copies bytes past the caches, until it is dropped.
///
/// An ordinary write first reads the cache line, and later evicts another one. If more is written than the caches hold,
/// that is half of the traffic for nothing.
#[derive(Debug)]
pub struct PastCaches(());

/// The size of the writes that go past the caches, which must be aligned.
#[cfg(target_arch = "x86_64")]
const WRITE: usize = 16;

impl PastCaches {
    /// Begins to copy. Other threads see the copies once the value has been dropped.
    #[expect(clippy::new_without_default, reason = "dropping it right away has a cost and no use")]
    pub fn new() -> Self {
        Self(())
    }

    /// Copies bytes. Both slices must have the same length.
    pub fn copy(&self, to: &mut [u8], from: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
            let unaligned = to.as_ptr().align_offset(WRITE).min(to.len());
            let (head, to) = to.split_at_mut(unaligned);
            let (head_from, from) = from.split_at(unaligned);
            let ((middle, tail), (middle_from, tail_from)) =
                (to.as_chunks_mut::<WRITE>(), from.as_chunks::<WRITE>());
            head.copy_from_slice(head_from);
            for (to, from) in middle.iter_mut().zip(middle_from) {
                // SAFETY: every x86-64 processor has both instructions. Both places have 16 bytes, and `to` is aligned.
                unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
            }
            tail.copy_from_slice(tail_from);
        }
        #[cfg(not(target_arch = "x86_64"))]
        to.copy_from_slice(from);
    }
}

impl Drop for PastCaches {
    fn drop(&mut self) {
        // Writes past the caches are not ordered with others, such as the one that unlocks a mutex.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has this instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let from: Vec<u8> = (1..=100).collect();
        for (start, len) in [(0, 0), (0, 100), (1, 3), (3, 60), (7, 93), (16, 16)] {
            let mut to = [0; 100];
            PastCaches::new().copy(&mut to[start..start + len], &from[..len]);
            assert!(to[start..start + len] == from[..len], "{start}, {len}");
            assert!(to[..start].iter().chain(&to[start + len..]).all(|&byte| byte == 0), "{start}, {len}");
        }
    }
}
