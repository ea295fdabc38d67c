//! Applies a function to the registers of each thread of a mask, one chunk of threads at a time.

use crate::mask::WIDTH;
use crate::registers::{Chunk, Span};

/// What happens to an operation's definition: it is applied to the values of one thread, or in a loop.
///
/// A function from an operation to its definition takes one of these, so that one list serves both.
pub(super) trait Apply<T> {
    type Output;

    fn apply(self, definition: impl Fn(T, T, T) -> T) -> Self::Output;
}

/// The sources of one thread.
pub(super) struct One<T>(pub(super) T, pub(super) T, pub(super) T);

impl<T> Apply<T> for One<T> {
    type Output = T;

    #[inline(always)]
    fn apply(self, definition: impl Fn(T, T, T) -> T) -> T {
        definition(self.0, self.1, self.2)
    }
}

/// The registers of all threads of a mask; `spans` are those of the destination and of three sources.
pub(super) struct Each<'f, T> {
    pub(super) file: &'f mut [Chunk<T>],
    pub(super) mask: &'f [u16],
    pub(super) spans: [Span; 4],
}

impl<T: Copy + Default> Apply<T> for Each<'_, T> {
    type Output = ();

    #[inline(always)]
    fn apply(self, definition: impl Fn(T, T, T) -> T) {
        let Self { file, mask, spans: [d, a, b, c] } = self;
        for (chunk, &active) in mask.iter().enumerate() {
            if active == 0 {
                continue;
            }
            let (x, y, z) = (file[a.at(chunk)], file[b.at(chunk)], file[c.at(chunk)]);
            let mut result = Chunk::zero();
            for i in 0..WIDTH {
                result.0[i] = definition(x.0[i], y.0[i], z.0[i]);
            }
            file[d.at(chunk)].take(result, active);
        }
    }
}
