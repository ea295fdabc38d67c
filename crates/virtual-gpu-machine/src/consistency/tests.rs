//! Tests the rules with two threads on two GPUs, without a kernel.

use super::observer::Observer;
use super::*;
use crate::fault::Access;
use virtual_gpu_ptx::instruction::Fence;

const DATA: (u64, AllocationId) = (0x1000, AllocationId(0));
const FLAG: (Place, u64) = (Place::Device(0x2000, AllocationId(1)), 0);

/// Two launches with one block each, on GPUs 0 and 1.
struct Two {
    record: Consistency,
    observers: [Observer; 2],
}

impl Two {
    fn new(threads: usize) -> Self {
        let mut observers = [Observer::default(), Observer::default()];
        for (launch, observer) in (0..).zip(&mut observers) {
            observer.start((launch, 0), 0, launch as u16, &Arc::default(), threads);
        }
        Self { record: Consistency::default(), observers }
    }

    /// Accesses the data and returns whether that races with an earlier access.
    fn data(&mut self, gpu: usize, thread: usize, access: Access) -> bool {
        let observer = &self.observers[gpu];
        let now = Stamp { access, ..observer.stamp(thread, 0) };
        self.record.access(DATA, 0, 4, now, observer.knowledge(thread), true).is_some()
    }

    fn fence(&mut self, gpu: usize, thread: usize, scope: Scope, is_sequential: bool) {
        let fence = Fence { scope, acquires: true, releases: true, is_sequential, is_implied: false };
        self.record.fence(&mut self.observers[gpu], thread, &fence);
    }

    fn set(&mut self, gpu: usize, thread: usize, scope: Scope, value: u32) {
        let published = self.observers[gpu].write(thread, scope);
        let now = Stamp { scope: Some(scope), access: Access::Write, ..self.observers[gpu].stamp(thread, 0) };
        let old = (value - 1).to_le_bytes();
        self.record.write(FLAG, now, published, [&old, &value.to_le_bytes()], false);
        self.observers[gpu].end_write(thread);
    }

    /// Reads the flag, which has this value in memory.
    fn get(&mut self, gpu: usize, thread: usize, scope: Scope, in_memory: u32) -> u32 {
        let now = Stamp { scope: Some(scope), ..self.observers[gpu].stamp(thread, 0) };
        let mut bytes = in_memory.to_le_bytes();
        self.record.read(FLAG, now, &mut self.observers[gpu], &mut bytes, false);
        u32::from_le_bytes(bytes)
    }
}

/// Sends a message with these scopes, and returns whether the reader's access races.
fn message(fences: [Scope; 2], flags: [Scope; 2]) -> bool {
    let mut two = Two::new(1);
    assert!(!two.data(0, 0, Access::Write));
    two.fence(0, 0, fences[0], false);
    two.set(0, 0, flags[0], 1);
    while two.get(1, 0, flags[1], 1) == 0 {}
    two.fence(1, 0, fences[1], false);
    two.data(1, 0, Access::Read)
}

#[test]
fn a_message_needs_four_scopes_that_include_both_threads() {
    let system = [Scope::System; 2];
    assert!(!message(system, system));
    for narrow in [[Scope::Gpu, Scope::System], [Scope::System, Scope::Block]] {
        assert!(message(narrow, system), "fences {narrow:?}");
        assert!(message(system, narrow), "flags {narrow:?}");
    }
}

#[test]
fn a_thread_sees_each_value_and_never_an_older_one_again() {
    let mut two = Two::new(1);
    for value in 1..=3 {
        two.set(0, 0, Scope::System, value);
    }
    let seen: Vec<u32> = (0..5).map(|_| two.get(1, 0, Scope::System, 3)).collect();
    assert_eq!(seen, [0, 1, 2, 3, 3]);
    assert_eq!(two.get(0, 0, Scope::System, 3), 3, "the writer itself knows the last value");
}

#[test]
fn sequential_fences_show_the_newest_value_but_order_no_other_accesses() {
    let mut two = Two::new(1);
    two.data(0, 0, Access::Write);
    two.set(0, 0, Scope::System, 1);
    two.fence(0, 0, Scope::System, true);
    two.fence(1, 0, Scope::System, true);
    assert_eq!(two.get(1, 0, Scope::System, 1), 1);
    assert!(two.data(1, 0, Access::Read), "in another run, the fences may come in the other order");
}

#[test]
fn a_barrier_passes_on_what_one_thread_has_received() {
    let mut two = Two::new(2);
    two.data(0, 1, Access::Write);
    two.observers[0].barrier(&[0, 1], &[0, 1]);
    two.fence(0, 0, Scope::System, false);
    two.set(0, 0, Scope::System, 1);
    while two.get(1, 0, Scope::System, 1) == 0 {}
    two.fence(1, 0, Scope::System, false);
    assert!(two.data(1, 1, Access::Read), "thread 1 has not waited for thread 0");
    two.observers[1].barrier(&[0, 1], &[0, 1]);
    assert!(!two.data(1, 1, Access::Read));
}

#[test]
fn messages_that_no_fence_receives_stay_few() {
    let mut two = Two::new(2);
    for value in 1..=2 {
        two.fence(0, 0, Scope::System, false);
        two.set(0, 0, Scope::System, value);
        while two.get(1, 0, Scope::System, value) != value {}
    }
    assert_eq!(two.observers[1].pending(), [2, 0]);
    for _ in 0..5 {
        two.observers[1].barrier(&[0, 1], &[0, 1]);
    }
    assert_eq!(two.observers[1].pending(), [2, 2], "each thread has each message once");
}

#[test]
fn a_launch_knows_those_that_came_before_it_and_what_they_learned() {
    let mut clock = Clock::of_launches([0, 70].into_iter());
    assert_eq!(clock.all_launches().collect::<Vec<_>>(), [0, 70]);
    clock.know_block((3, 0), 2);
    let stamp = |launch, barriers| {
        let mut observer = Observer::default();
        observer.start((launch, 0), 0, 0, &Arc::default(), 1);
        Stamp { barriers, ..observer.stamp(0, 0) }
    };
    assert!(clock.covers(&stamp(70, 9)) && !clock.covers(&stamp(69, 0)));
    assert!(clock.covers(&stamp(3, 1)) && !clock.covers(&stamp(3, 2)));
}
