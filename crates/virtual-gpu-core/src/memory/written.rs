//! Records which bytes have ever been written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::SharedRecord;

/// A record of the bytes that have been written, with one bit per byte.
#[derive(Clone, Debug, Default)]
pub struct Written {
    words: Vec<u64>,
    /// The number of bytes not yet written. At 0, every check is a single comparison. If processes share the record, it
    /// is unknown, and never 0.
    missing: u64,
    /// The record, if processes share it.
    shared: Option<Arc<dyn SharedRecord>>,
}

impl Written {
    /// Creates a record of `len` unwritten bytes.
    pub(super) fn none(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], missing: len, shared: None }
    }

    /// Creates a record in which every byte is marked as written.
    pub(super) fn all() -> Self {
        Self { words: Vec::new(), missing: 0, shared: None }
    }

    /// Creates a record that processes share.
    pub(super) fn shared_by(record: Arc<dyn SharedRecord>) -> Self {
        Self { words: Vec::new(), missing: u64::MAX, shared: Some(record) }
    }

    /// Returns the record that processes share.
    pub(super) fn shared(&self) -> Option<&dyn SharedRecord> {
        self.shared.as_deref()
    }

    /// Marks what has been written in the words of another record for as many bytes.
    pub(super) fn copy_to(&self, words: &[AtomicU64]) {
        for (at, word) in words.iter().enumerate() {
            let written = if self.missing == 0 { u64::MAX } else { self.words.get(at).copied().unwrap_or(0) };
            // A word that nothing changes takes no memory.
            if written != 0 {
                word.fetch_or(written, Ordering::Relaxed);
            }
        }
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
        *self = Self { words: all, missing, shared: None };
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
        Self { words, missing, shared: None }
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
        if self.shared.is_some() {
            return self.first_missing(start..start + len).is_none();
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

    /// Returns whether a byte of `range` has been written. No other process may share the record.
    pub(super) fn has_any(&self, range: Range<u64>) -> bool {
        self.missing == 0 || Self::masks(range).any(|(word, mask)| self.words[word] & mask != 0)
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
        if let Some(shared) = &self.shared {
            let words = shared.words();
            return Self::masks(range).for_each(|(word, mask)| {
                if mask & !words[word].load(Ordering::Relaxed) != 0 {
                    words[word].fetch_or(mask, Ordering::Relaxed);
                }
            });
        }
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
        let shared = self.shared.as_ref().map(|shared| shared.words());
        Self::masks(range).find_map(|(word, mask)| {
            let written = match shared {
                Some(words) => words[word].load(Ordering::Relaxed),
                None => self.words[word],
            };
            let missing = mask & !written;
            (missing != 0).then(|| word as u64 * 64 + u64::from(missing.trailing_zeros()))
        })
    }
}
