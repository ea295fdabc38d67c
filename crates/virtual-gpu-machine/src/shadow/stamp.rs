//! When, where, and by which thread a cell was accessed, in one number.

/// The bits of a stamp that contain the instruction.
pub(super) const PC_BITS: u32 = 21;

/// The bit of a stamp that marks an atomic access.
pub(super) const ATOMIC: u64 = 1 << PC_BITS;

/// The bit of a write's stamp that marks a pending write, which is treated as later than any time.
pub(super) const UNDER_WAY: i64 = 1 << 62;

/// An access: whether it is pending (1 bit), its time (30 bits), its thread within the block (10 bits), whether it is
/// atomic (1 bit), and its instruction (21 bits).
///
/// 0 means no access. A stamp is positive as a signed number, because vector units compare signed numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub(super) i64);

impl Stamp {
    #[inline(always)]
    pub(super) fn new(time: u32, thread: usize, pc: usize) -> Self {
        Self((u64::from(time) << 32 | (thread as u64) << (PC_BITS + 1) | pc as u64) as i64)
    }

    pub(crate) fn time(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn thread(self) -> usize {
        (self.0 >> (PC_BITS + 1)) as usize & 0x3ff
    }

    pub(crate) fn pc(self) -> usize {
        self.0 as usize & (ATOMIC as usize - 1)
    }

    pub(crate) fn is_atomic(self) -> bool {
        self.0 as u64 & ATOMIC != 0
    }

    /// Returns whether the access is a copy that its thread has not waited for.
    pub(crate) fn is_under_way(self) -> bool {
        self.0 & UNDER_WAY != 0
    }
}
