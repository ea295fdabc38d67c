//! Records which bytes have ever been written.

use std::ops::Range;

/// A record of the bytes that have been written, with one bit per byte.
#[derive(Clone, Debug, Default)]
pub struct Written {
    words: Vec<u64>,
    /// The number of bytes not yet written. At 0, every check is a single comparison.
    missing: u64,
}

impl Written {
    /// Creates a record of `len` unwritten bytes.
    pub(super) fn none(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], missing: len }
    }

    /// Creates a record in which every byte is marked as written.
    pub(super) fn all() -> Self {
        Self { words: Vec::new(), missing: 0 }
    }

    /// Clears the record and starts again with `len` bytes.
    pub fn reset(&mut self, len: u64) {
        self.words.clear();
        self.words.resize(len.div_ceil(64) as usize, 0);
        self.missing = len;
    }

    /// Appends the record of `more` bytes to one of `len` bytes. Both are multiples of 64.
    pub(super) fn append(&mut self, len: u64, next: Self, more: u64) {
        let words = |record: Self, len: u64| match record.missing {
            0 => vec![u64::MAX; len.div_ceil(64) as usize],
            _ => record.words,
        };
        let missing = self.missing + next.missing;
        let mut all = words(std::mem::take(self), len);
        all.extend(words(next, more));
        *self = Self { words: all, missing };
    }

    /// Splits a record of `len` bytes after `at`, and returns the second part. Both are multiples of 64.
    pub(super) fn split_off(&mut self, at: u64, len: u64) -> Self {
        if self.missing == 0 {
            return Self::all();
        }
        let words = self.words.split_off((at / 64) as usize);
        let written: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let missing = len - at - written;
        self.missing -= missing;
        Self { words, missing }
    }

    /// Returns the index of each word that overlaps `range` and the mask of the bits in `range`.
    #[inline(always)]
    fn masks(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (start, word_end) = (at, (at / 64 + 1) * 64);
            at = word_end.min(range.end);
            let ones = at - start;
            let mask = if ones == 64 { u64::MAX } else { ((1 << ones) - 1) << (start % 64) };
            Some(((start / 64) as usize, mask))
        })
    }

    /// Returns whether all `len` bytes starting at `start` have been written. The range must be in bounds and not
    /// empty.
    #[inline(always)]
    pub fn covers(&self, start: u64, len: u64) -> bool {
        if self.missing == 0 {
            return true;
        }
        let (first, last) = ((start / 64) as usize, ((start + len - 1) / 64) as usize);
        let head = u64::MAX << (start % 64);
        let tail = u64::MAX >> (63 - (start + len - 1) % 64);
        match last - first {
            0 => !self.words[first] & head & tail == 0,
            1 => !self.words[first] & head == 0 && !self.words[last] & tail == 0,
            _ => self.first_missing(start..start + len).is_none(),
        }
    }

    /// Returns whether all bytes have been written.
    pub(super) fn is_full(&self) -> bool {
        self.missing == 0
    }

    /// Marks the bytes of `range` as written.
    #[inline(always)]
    pub fn mark(&mut self, range: Range<u64>) {
        if self.missing != 0 {
            self.mark_missing(range);
        }
    }

    fn mark_missing(&mut self, range: Range<u64>) {
        let (words, missing) = (&mut self.words, &mut self.missing);
        for (word, mask) in Self::masks(range) {
            *missing -= u64::from((mask & !words[word]).count_ones());
            words[word] |= mask;
        }
    }

    /// Returns the first byte of `range` that has not been written.
    pub fn first_missing(&self, range: Range<u64>) -> Option<u64> {
        if self.missing == 0 {
            return None;
        }
        Self::masks(range).find_map(|(word, mask)| {
            let missing = mask & !self.words[word];
            (missing != 0).then(|| word as u64 * 64 + u64::from(missing.trailing_zeros()))
        })
    }
}
