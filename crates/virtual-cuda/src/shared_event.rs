//! Events that processes share: who has recorded them, and which records are done.

use std::sync::atomic::{AtomicU64, Ordering};

use virtual_gpu::engine::SharedEvent;
use virtual_gpu_core::memory::FileKey;

use crate::shared_file::{Kind, Process, SharedFile};

/// The number of records of one event that may be pending.
const PLACES: usize = 128;

/// The words of a record: its number, doubled, plus 1 if it is done; the id of the process; and the time when that
/// started.
const WORDS: usize = 3;

/// The size of the file's content in bytes: the number of the last record, and the records.
const SIZE: u64 = ((1 + PLACES * WORDS) * size_of::<u64>()) as u64;

/// An event's file.
#[derive(Debug)]
pub(crate) struct EventFile(SharedFile);

impl EventFile {
    /// Makes a file for an event of a GPU.
    pub(crate) fn new(gpu: usize) -> std::io::Result<Self> {
        SharedFile::new(Kind::Event, SIZE, gpu).map(Self)
    }

    /// Returns the event in a file of another process, unless the file has another size.
    pub(crate) fn of_file(file: SharedFile) -> Option<Self> {
        (file.size() == SIZE).then_some(Self(file))
    }

    fn last_number(&self) -> &AtomicU64 {
        &self.0.words()[0]
    }

    /// Returns the words of the record with this number.
    fn place(&self, number: u64) -> &[AtomicU64] {
        let start = 1 + (number % PLACES as u64) as usize * WORDS;
        &self.0.words()[start..start + WORDS]
    }
}

impl SharedEvent for EventFile {
    fn begin(&self) -> Option<u64> {
        let number = loop {
            let last = self.last_number().load(Ordering::Acquire);
            let next = last.checked_add(1)?;
            let earlier = self.place(next)[0].load(Ordering::Acquire);
            // A process that has ended will never end its record.
            let has_ended = || self.process(earlier >> 1).is_some_and(|(_, has_ended)| has_ended);
            if earlier != 0 && earlier & 1 == 0 && !has_ended() {
                return None;
            }
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.last_number().compare_exchange(last, next, order, failed).is_ok() {
                break next;
            }
        };
        let this = Process::this();
        let place = self.place(number);
        place[1].store(u64::from(this.id), Ordering::Relaxed);
        place[2].store(this.started, Ordering::Relaxed);
        place[0].store(number << 1, Ordering::Release);
        Some(number)
    }

    fn end(&self, number: u64) {
        self.place(number)[0].store(number << 1 | 1, Ordering::Release);
    }

    fn last(&self) -> u64 {
        self.last_number().load(Ordering::Acquire)
    }

    fn is_done(&self, number: u64) -> bool {
        let state = self.place(number)[0].load(Ordering::Acquire);
        // A later record has this place only after this one was done, or its process had ended.
        state >> 1 > number || state == number << 1 | 1
    }

    fn process(&self, number: u64) -> Option<(u32, bool)> {
        let place = self.place(number);
        if place[0].load(Ordering::Acquire) >> 1 != number {
            return None;
        }
        let id = u32::try_from(place[1].load(Ordering::Relaxed)).ok()?;
        let started = place[2].load(Ordering::Relaxed);
        Some((id, Process { id, started }.has_ended()))
    }

    fn key(&self) -> Option<FileKey> {
        self.0.key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_in_any_order() {
        let event = EventFile::new(0).unwrap();
        assert_eq!(event.last(), 0);
        let [first, second] = [event.begin().unwrap(), event.begin().unwrap()];
        assert_eq!((first, second, event.last()), (1, 2, 2));
        event.end(second);
        assert!(event.is_done(second) && !event.is_done(first));
        assert_eq!(event.process(first), Some((std::process::id(), false)));
        event.end(first);
        assert!(event.is_done(first));
    }

    #[test]
    fn a_place_is_not_used_again_before_its_record_is_done() {
        let event = EventFile::new(0).unwrap();
        let numbers: Vec<u64> = std::iter::from_fn(|| event.begin()).take(1000).collect();
        assert_eq!(numbers.len(), PLACES);
        event.end(1);
        let next = event.begin().unwrap();
        assert!(event.is_done(1) && !event.is_done(next));
    }
}
