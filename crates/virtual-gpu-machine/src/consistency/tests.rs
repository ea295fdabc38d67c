//! Tests the rules with two threads on two GPUs, without a kernel.

use super::observer::Observer;
use super::*;
use crate::fault::Access;
use test_data::random::SplitMix64;
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

/// Accesses by threads to `unit` bytes each: the first thread, the number of threads, and whether all are to the same bytes.
#[derive(Clone, Copy)]
struct Accesses {
    gpu: usize,
    access: Access,
    offset: u64,
    unit: u64,
    threads: (usize, usize),
    are_same: bool,
}

impl Two {
    /// Records accesses together. Returns whether that was possible.
    fn at_once(&mut self, all: Accesses) -> bool {
        let Accesses { gpu, access, offset, unit, threads: (first, count), are_same } = all;
        let observer = &self.observers[gpu];
        let now = Stamp { access, ..observer.stamp(first, 0) };
        self.record.access_together(DATA, (offset, unit), now, (first..first + count, are_same), observer)
    }

    /// Records accesses one by one. Returns the races.
    fn one_by_one(&mut self, all: Accesses) -> Vec<(Stamp, u64)> {
        let Accesses { gpu, access, offset, unit, threads: (first, count), are_same } = all;
        let observer = &self.observers[gpu];
        let found = (0..count).filter_map(|after| {
            let now = Stamp { access, ..observer.stamp(first + after, 0) };
            let offset = offset + if are_same { 0 } else { unit * after as u64 };
            self.record.access(DATA, offset, unit, now, observer.knowledge(first + after), true)
        });
        found.collect()
    }
}

#[test]
fn accesses_recorded_together_are_those_recorded_one_by_one() {
    const THREADS: usize = 16;
    let mut random = SplitMix64::new(1);
    let mut outcomes = [0; 3];
    for _ in 0..200 {
        let [mut together, mut alone] = [(); 2].map(|()| Two::new(THREADS));
        let mut value = 0;
        for _ in 0..100 {
            let (gpu, thread) = (random.below(2), random.below(THREADS));
            let mut both = |act: &dyn Fn(&mut Two)| [&mut together, &mut alone].map(act);
            match random.below(10) {
                0 => {
                    let all: Vec<usize> = (0..THREADS).collect();
                    both(&|two| two.observers[gpu].barrier(&all, &all));
                }
                1 => drop(both(&|two| two.fence(gpu, thread, Scope::System, false))),
                2 => {
                    value += 1;
                    both(&|two| two.set(gpu, thread, Scope::System, value));
                }
                3 => drop(both(&|two| _ = two.get(gpu, thread, Scope::System, value))),
                _ => {
                    let count = 1 + random.below(THREADS - thread);
                    let unit = [2, 4, 4, 8, 16][random.below(5)];
                    let access = [Access::Read, Access::Write][random.below(2)];
                    // Some cross the end of a page.
                    let offset = 1000 + unit * random.below(8) as u64;
                    let are_same = access == Access::Read && random.below(3) == 0;
                    let all = Accesses { gpu, access, offset, unit, threads: (thread, count), are_same };
                    let races = alone.one_by_one(all);
                    if together.at_once(all) {
                        assert_eq!(races, []);
                        outcomes[0] += 1;
                    } else {
                        outcomes[1 + usize::from(races.is_empty())] += 1;
                        assert_eq!(together.one_by_one(all), races);
                    }
                }
            }
        }
    }
    let [at_once, races, others] = outcomes;
    assert!(at_once > 1000 && races > 1000 && others > 100, "{outcomes:?}");
}

#[test]
fn a_page_keeps_only_stamps_that_an_access_has() {
    let mut two = Two::new(1);
    for _ in 0..10_000 {
        // Each release changes the stamp of the next access.
        two.fence(0, 0, Scope::System, false);
        two.data(0, 0, Access::Write);
    }
    let stamps = two.record.cells.values().map(Cells::stamps).max();
    assert!(stamps.is_some_and(|stamps| (1..1000).contains(&stamps)), "{stamps:?}");
    assert!(two.data(1, 0, Access::Read), "the last write is still known");
}
