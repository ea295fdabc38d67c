//! The recent values of a variable that threads access with strong instructions.
//!
//! Without synchronization, a read may return an older value than the last one. Here, a thread sees all values, one after
//! another, each late: a read returns the value after the one that the thread has read before. If the thread has seen a new
//! value of another variable since then, it sees the same old value once more. A program that relies on an order that
//! nothing guarantees gets a wrong result, on every run.

use super::clock::Knowledge;
use super::stamp::Stamp;
use virtual_gpu_core::map::Map;

/// The maximum number of bytes of a variable: those of the largest vector of 32-bit elements.
pub(crate) const SIZE: usize = 16;

/// The maximum number of values that are kept.
const VALUES: usize = 64;

/// The maximum number of threads that are known to have read a value.
const READERS: usize = 16;

/// What a write publishes to its readers, by the scope that contains both threads.
pub(crate) type Messages = [Option<Knowledge>; 4];

/// A value, and who wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    bytes: [u8; SIZE],
    /// `None` if a weak write or a copy wrote it, which this record doesn't observe.
    pub(crate) writer: Option<Writer>,
    readers: Vec<Stamp>,
}

#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) stamp: Stamp,
    pub(crate) messages: Messages,
    /// Everything that the writer knew. A reader learns only what `messages` contain.
    pub(crate) knew: Knowledge,
}

/// The recent values, oldest first.
#[derive(Debug)]
pub(crate) struct Variable {
    size: usize,
    values: Vec<Value>,
    /// The number of the first of them, counted from the first value ever.
    first: u64,
    /// The number of the value that each thread has read last, and how many new values it had seen by then.
    read: Map<(u32, u32, u16), (u64, u64)>,
}

impl Variable {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { size: bytes.len(), values: vec![Value::of(bytes, None)], first: 0, read: Map::default() }
    }

    /// Adds a value that memory has although no strong write wrote it.
    pub(crate) fn notice(&mut self, bytes: &[u8]) {
        let is_known = self.values.last().is_some_and(|last| last.bytes[..self.size] == *bytes);
        if bytes.len() != self.size || !is_known {
            self.size = bytes.len();
            self.first += self.values.len() as u64;
            self.values = vec![Value::of(bytes, None)];
        }
    }

    /// Returns the last value.
    pub(crate) fn last(&mut self) -> Option<&mut Value> {
        self.values.last_mut()
    }

    /// Adds a value.
    pub(crate) fn write(&mut self, bytes: &[u8], writer: Writer) {
        if self.values.len() == VALUES {
            self.values.remove(0);
            self.first += 1;
        }
        self.values.push(Value::of(bytes, Some(writer)));
    }

    /// Returns the value that a thread reads, stores it in `bytes`, and returns whether it is not the newest. `seen` counts the
    /// new values that the thread has seen.
    pub(crate) fn read(
        &mut self,
        now: Stamp,
        known: &Knowledge,
        seen: &mut u64,
        bytes: &mut [u8],
    ) -> Option<(&mut Value, bool)> {
        let newest = self.values.len().checked_sub(1)?;
        let is_seen = |stamp: &Stamp| stamp.is_by_thread_of(&now) || known.must_see(stamp);
        let must_see = |value: &Value| {
            value.writer.as_ref().is_none_or(|writer| is_seen(&writer.stamp))
                || value.readers.iter().any(is_seen)
        };
        let oldest = self.values.iter().rposition(must_see).unwrap_or(0);
        let thread = (now.launch, now.block, now.thread);
        let (last, seen_then) = self.read.get(&thread).copied().unwrap_or_default();
        let is_first = !self.read.contains_key(&thread);
        let step = u64::from(!is_first && *seen == seen_then);
        let next = (last + step).saturating_sub(self.first) as usize;
        let chosen = next.clamp(oldest, newest);
        let number = self.first + chosen as u64;
        *seen += u64::from(!is_first && number > last);
        self.read.insert(thread, (number, *seen));
        let value = &mut self.values[chosen];
        bytes.copy_from_slice(&value.bytes[..bytes.len()]);
        value.note_reader(now);
        Some((value, chosen != newest))
    }
}

impl Value {
    fn of(bytes: &[u8], writer: Option<Writer>) -> Self {
        let mut all = [0; SIZE];
        all[..bytes.len()].copy_from_slice(bytes);
        Self { bytes: all, writer, readers: Vec::new() }
    }

    pub(crate) fn note_reader(&mut self, now: Stamp) {
        match self.readers.iter().position(|reader| reader.is_by_thread_of(&now)) {
            Some(at) => self.readers[at] = now,
            None if self.readers.len() < READERS => self.readers.push(now),
            None => {}
        }
    }
}
