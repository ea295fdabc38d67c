//! Applies a function to the registers of each thread in a mask, one chunk of threads at a time.

use crate::mask::WIDTH;
use crate::registers::{Chunk, Span};

/// How an operation's definition is used: applied to one thread's sources, or in a loop over threads.
///
/// The functions that map an operation to its definition take a value of this trait, so that one list serves both uses.
/// A definition takes as many arguments as the operation has sources.
pub(super) trait Apply<T> {
    type Output;

    fn apply<const N: usize>(self, definition: impl Fn([T; N]) -> T) -> Self::Output;
}

/// One thread's sources.
pub(super) struct One<T>(pub(super) [T; 3]);

impl<T: Copy> Apply<T> for One<T> {
    type Output = T;

    #[inline(always)]
    fn apply<const N: usize>(self, definition: impl Fn([T; N]) -> T) -> T {
        definition(gather(self.0[0], |n| self.0[n]))
    }
}

/// The registers of all threads in a mask; `spans` are the spans of the destination and the three sources.
pub(super) struct Each<'f, T> {
    pub(super) file: &'f mut [Chunk<T>],
    pub(super) mask: &'f [u16],
    pub(super) spans: [Span; 4],
}

impl<T: Copy + Default> Apply<T> for Each<'_, T> {
    type Output = ();

    #[inline(always)]
    fn apply<const N: usize>(self, definition: impl Fn([T; N]) -> T) {
        let Self { file, mask, spans: [d, from @ ..] } = self;
        for (chunk, &active) in mask.iter().enumerate() {
            if active == 0 {
                continue;
            }
            let sources: [Chunk<T>; N] = gather(Chunk::zero(), |n| file[from[n].at(chunk)]);
            let mut result = Chunk::zero();
            let mut i = 0;
            while i < WIDTH {
                result.0[i] = definition(gather(T::default(), |n| sources[n].0[i]));
                i += 1;
            }
            file[d.at(chunk)].take(result, active);
        }
    }
}

/// Returns an array of the values of `element`. `std::array::from_fn` does the same but gives the compiler five times
/// as much code to optimize.
#[inline(always)]
pub(super) fn gather<T: Copy, const N: usize>(any: T, element: impl Fn(usize) -> T) -> [T; N] {
    let mut elements = [any; N];
    let mut n = 0;
    while n < N {
        elements[n] = element(n);
        n += 1;
    }
    elements
}
