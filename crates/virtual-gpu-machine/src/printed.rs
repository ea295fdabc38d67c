//! The `printf` output.

use std::collections::VecDeque;

/// `printf` output that has not been flushed yet. The buffer has a fixed size and drops the oldest calls' text to make
/// room for the newest.
#[derive(Debug, Default)]
pub struct Printed {
    calls: VecDeque<Box<[u8]>>,
    bytes: u64,
}

impl Printed {
    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a call's text and drops the oldest texts until the rest fits into `capacity` bytes.
    pub fn push(&mut self, text: Box<[u8]>, capacity: u64) {
        self.bytes += text.len() as u64;
        self.calls.push_back(text);
        while self.bytes > capacity
            && let Some(oldest) = self.calls.pop_front()
        {
            self.bytes -= oldest.len() as u64;
        }
    }

    /// Appends the contents of another buffer.
    pub fn append(&mut self, other: Self, capacity: u64) {
        for text in other.calls {
            self.push(text, capacity);
        }
    }

    /// Returns the text from all calls, oldest first.
    pub fn concat(&self) -> Vec<u8> {
        self.calls.iter().flat_map(|text| text.iter().copied()).collect()
    }
}
