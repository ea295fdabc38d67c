//! Synchronizations of part of a block.

use super::stamp::Stamp;
use crate::mask::Mask;
use crate::order::Order;

/// The maximum number of a block's partial synchronizations that are kept. An access older than all of them is
/// considered ordered.
const KEPT: usize = 1024;

/// An event that makes some of a block's threads wait for others.
#[derive(Debug)]
pub(super) struct Event {
    time: u32,
    what: Order,
}

/// The partial synchronizations since all threads were last synchronized.
#[derive(Debug, Default)]
pub(super) struct Log {
    events: Vec<Event>,
}

impl Log {
    pub(super) fn clear(&mut self) {
        self.events.clear();
    }

    /// Adds a synchronization. Returns the time of the last synchronization that was dropped to make room.
    pub(super) fn push(&mut self, time: u32, what: Order) -> Option<u32> {
        let mut forgotten = None;
        if self.events.len() == KEPT {
            forgotten = self.events.drain(..KEPT / 2).next_back().map(|event| event.time);
        }
        self.events.push(Event { time, what });
        forgotten
    }

    /// Adds an exchange. A loop may repeat it: if it is among the last events, and they are all exchanges, it is moved.
    pub(super) fn push_exchange(&mut self, time: u32, threads: Mask) -> Option<u32> {
        let is_exchange = |event: &Event| match event.what {
            Order::Exchange(among) => Some(among == threads),
            _ => None,
        };
        let mut last =
            self.events.iter().enumerate().rev().map_while(|(at, it)| Some((at, is_exchange(it)?)));
        if let Some((at, _)) = last.find(|(_, is_same)| *is_same) {
            self.events.remove(at);
        }
        self.push(time, Order::Exchange(threads))
    }

    /// Returns whether `thread` has waited, directly or through other threads, for the thread that made the access
    /// `earlier`.
    pub(super) fn orders(&self, earlier: Stamp, thread: usize) -> bool {
        let mut reached = Mask::of(earlier.thread());
        let mut is_published = false;
        // The threads among those reached that have passed a fence since.
        let mut fenced = Mask::NONE;
        let mut phases = Vec::new();
        let since = self.events.partition_point(|event| event.time <= earlier.time());
        self.events[since..].iter().any(|event| {
            match &event.what {
                Order::Barrier { from, to } => {
                    if !reached.and(from).is_empty() {
                        reached = reached.or(to);
                    }
                }
                Order::Warps(threads) => {
                    for warp in 0..32 {
                        if reached.warp(warp) & threads.warp(warp) != 0 {
                            reached.set_warp(warp, reached.warp(warp) | threads.warp(warp));
                        }
                    }
                }
                Order::Exchange(threads) => {
                    let own = earlier.thread() / 32;
                    for warp in (0..32).filter(|&warp| warp != own || earlier.is_atomic()) {
                        if reached.warp(warp) & threads.warp(warp) != 0 {
                            reached.set_warp(warp, reached.warp(warp) | threads.warp(warp));
                        }
                    }
                }
                Order::Arrival(threads, phase) => {
                    if !reached.and(threads).is_empty() {
                        phases.push(*phase);
                    }
                }
                Order::RelaxedArrival(threads, phase) => {
                    if !fenced.and(threads).is_empty() {
                        phases.push(*phase);
                    }
                }
                Order::Wait(threads, phase) => {
                    if phases.contains(phase) {
                        reached = reached.or(threads);
                    }
                }
                Order::Fence(threads, _) => {
                    let publishes = !reached.and(threads).is_empty();
                    fenced = fenced.or(&reached.and(threads));
                    if is_published {
                        reached = reached.or(threads);
                    }
                    is_published |= publishes;
                }
            }
            reached.has(thread)
        })
    }
}
