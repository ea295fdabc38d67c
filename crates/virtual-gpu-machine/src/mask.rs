//! Sets of threads in a block.

/// The number of threads in a chunk: a cache line of 32-bit values.
pub(crate) const WIDTH: usize = 16;

/// The maximum number of threads in a block.
pub(crate) const MAX_THREADS: usize = 1024;

/// The maximum number of chunks in a block.
pub(crate) const MAX_CHUNKS: usize = MAX_THREADS / WIDTH;

/// All threads in a chunk.
pub(crate) const FULL: u16 = u16::MAX;

/// A set of threads in a block, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mask(pub(crate) [u16; MAX_CHUNKS]);

impl Default for Mask {
    fn default() -> Self {
        Self::NONE
    }
}

impl Mask {
    pub(crate) const NONE: Self = Self([0; MAX_CHUNKS]);

    /// Returns a mask with only this thread.
    pub(crate) fn of(thread: usize) -> Self {
        let mut mask = Self::NONE;
        mask.0[thread / WIDTH] = 1 << (thread % WIDTH);
        mask
    }

    /// Returns a mask with the threads in the first chunk.
    pub(crate) fn of_first_chunk() -> Self {
        let mut mask = Self::NONE;
        mask.0[0] = FULL;
        mask
    }

    pub(crate) fn has(&self, thread: usize) -> bool {
        self.0[thread / WIDTH] & 1 << (thread % WIDTH) != 0
    }

    pub(crate) fn first_threads(threads: usize) -> Self {
        let mut mask = Self::NONE;
        mask.0[..threads / WIDTH].fill(FULL);
        if let Some(bits) = mask.0.get_mut(threads / WIDTH) {
            *bits = (1 << (threads % WIDTH)) - 1;
        }
        mask
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, &bits| all | bits) == 0
    }

    pub(crate) fn count(&self) -> u64 {
        // The sum is at most `MAX_THREADS`, and summing is faster if the sum is as wide as the counts.
        self.0.iter().map(|bits| bits.count_ones() as u16).sum::<u16>().into()
    }

    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits &= other);
        self
    }

    pub(crate) fn or(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits |= other);
        self
    }

    pub(crate) fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits &= !other);
        self
    }

    /// Returns the threads, lowest first.
    pub(crate) fn threads(&self) -> Threads<'_> {
        Threads { chunks: &self.0, chunk: 0, rest: self.0[0] }
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.threads().next()
    }

    /// Returns a warp's 32 lanes.
    pub(crate) fn warp(&self, warp: usize) -> u32 {
        u32::from(self.0[2 * warp]) | u32::from(self.0[2 * warp + 1]) << 16
    }

    pub(crate) fn set_warp(&mut self, warp: usize, lanes: u32) {
        self.0[2 * warp] = lanes as u16;
        self.0[2 * warp + 1] = (lanes >> 16) as u16;
    }
}

/// Iterates over the threads in a mask.
pub(crate) struct Threads<'m> {
    chunks: &'m [u16; MAX_CHUNKS],
    chunk: usize,
    rest: u16,
}

impl Iterator for Threads<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.rest == 0 {
            self.chunk += 1;
            self.rest = *self.chunks.get(self.chunk)?;
        }
        let i = self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some(self.chunk * WIDTH + i)
    }
}

/// Returns the set bits of a chunk's mask, lowest first.
pub(crate) fn bits(mut mask: u16) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let i = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (i < WIDTH).then_some(i)
    })
}

/// Returns the set bits of a warp's mask, lowest first.
pub(crate) fn lanes_of(mut lanes: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = lanes.trailing_zeros() as usize;
        lanes &= lanes.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}
