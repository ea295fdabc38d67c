//! Applies a function to the registers of each thread in a mask, one chunk of threads at a time.

use crate::registers::{Chunk, Span};

/// How an operation's definition is used: applied to one thread's sources, or in a loop over a chunk's threads.
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

/// The sources of each thread in a chunk.
pub(super) struct Each<'f, T>([&'f Chunk<T>; 3]);

impl<'f, T> Each<'f, T> {
    /// Returns the values of three registers for the threads in a chunk.
    #[inline(always)]
    pub(super) fn of(file: &'f [Chunk<T>], [a, b, c]: [Span; 3], chunk: usize) -> Self {
        Self([&file[a.at(chunk)], &file[b.at(chunk)], &file[c.at(chunk)]])
    }
}

impl<T: Copy + Default> Apply<T> for Each<'_, T> {
    type Output = Chunk<T>;

    #[inline(always)]
    fn apply<const N: usize>(self, definition: impl Fn([T; N]) -> T) -> Chunk<T> {
        Chunk::of(|i| definition(gather(T::default(), |n| self.0[n].0[i])))
    }
}

/// The registers of an operation: `d` and its sources, for the threads in `mask`.
///
/// The loop over chunks is compiled for each operation, so that the operation is chosen once for all of them.
pub(super) struct Rows<'f, T> {
    pub(super) file: &'f mut [Chunk<T>],
    pub(super) mask: &'f [u16],
    pub(super) d: Span,
    pub(super) from: [Span; 3],
}

impl<T: Copy + Default> Apply<T> for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn apply<const N: usize>(self, definition: impl Fn([T; N]) -> T) {
        let Self { file, mask, d, from } = self;
        for (chunk, &active) in mask.iter().enumerate() {
            if active != 0 {
                let sources: [&Chunk<T>; N] = gather(&file[from[0].at(chunk)], |n| &file[from[n].at(chunk)]);
                let result = Chunk::of(|i| definition(gather(T::default(), |n| sources[n].0[i])));
                file[d.at(chunk)].take(result, active);
            }
        }
    }
}

/// Writes `$result`, a chunk, to the register `$d` of the threads in `$mask`, for each `$chunk` that has such threads.
///
/// It is a macro so that the result is compiled for the same CPU features as the function around it.
macro_rules! write_each_chunk {
    ($file:ident, $mask:expr, $d:expr, |$chunk:ident| $result:expr) => {
        for ($chunk, &active) in $mask.iter().enumerate() {
            if active != 0 {
                let result = $result;
                $file[$d.at($chunk)].take(result, active);
            }
        }
    };
}
pub(super) use write_each_chunk;

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
