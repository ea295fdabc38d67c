//! A thread's calls that have not returned, and the registers that they have saved.

use crate::mask::WIDTH;
use crate::registers::Files;
use virtual_gpu_ptx::Frame;
use virtual_gpu_ptx::instruction::{Predicate, Slot};

/// A thread's calls that have not returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallStack {
    pub(crate) calls: Vec<Activation>,
    /// The callers' registers.
    saved: Vec<u32>,
}

/// An active call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Activation {
    /// The index of the function's frame in the kernel.
    pub(crate) frame: u32,
    /// The program counter of the call.
    pub(crate) pc: usize,
    /// The frame's first byte in local memory.
    pub(crate) base: u64,
}

impl CallStack {
    pub(crate) fn saved_words(&self) -> usize {
        self.saved.len()
    }

    /// Saves those of a thread's registers that a call with `frame` overwrites.
    pub(crate) fn save(&mut self, files: &Files, frame: &Frame, thread: usize) {
        for word in frame.words.clone() {
            self.saved.push(files.word_of(Slot::register(word), thread));
        }
        for long in frame.longs.clone() {
            let value = files.long_of(Slot::register(long), thread);
            self.saved.extend([value as u32, (value >> 32) as u32]);
        }
        for predicate in frame.predicates.clone() {
            let bits = files.predicates[files.predicate(Predicate(predicate)) + thread / WIDTH];
            self.saved.push(u32::from(bits >> (thread % WIDTH) & 1));
        }
    }

    /// Restores the registers most recently saved by [`Self::save`].
    pub(crate) fn restore(&mut self, files: &mut Files, frame: &Frame, thread: usize) {
        let mut values = self.saved.split_off(self.saved.len() - words_of(frame)).into_iter();
        let mut next = || values.next().unwrap_or(0);
        for word in frame.words.clone() {
            files.set_word(Slot::register(word), thread, next());
        }
        for long in frame.longs.clone() {
            let value = u64::from(next()) | u64::from(next()) << 32;
            files.set_long(Slot::register(long), thread, value);
        }
        for predicate in frame.predicates.clone() {
            let bits = if next() != 0 { u16::MAX } else { 0 };
            files.set_predicate(Predicate(predicate), thread / WIDTH, bits, 1 << (thread % WIDTH));
        }
    }
}

/// Returns the number of 32-bit values that a call saves.
pub(crate) fn words_of(frame: &Frame) -> usize {
    frame.words.len() + 2 * frame.longs.len() + frame.predicates.len()
}
