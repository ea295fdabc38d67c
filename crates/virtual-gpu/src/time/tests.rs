use super::*;
use virtual_gpu_core::handle::{CommId, SequenceNumber};

/// Returns a clock that uses a DGX H100's figures.
fn dgx(gpus: usize) -> Time {
    Time::new(Preset::find("dgx-h100").unwrap(), gpus, false, false)
}

/// Returns the cost of a kernel that takes this long and uses almost none of the GPU.
fn kernel(blocks: u64, nanoseconds: u64) -> Cost {
    let traffic = Traffic::default();
    Cost::Kernel {
        blocks,
        resident: 1,
        instructions: 0,
        traffic,
        longest_thread: nanoseconds,
        partners: Vec::new(),
    }
}

/// Returns the cost of a kernel that fills `blocks` multiprocessors and transfers this many bytes.
fn reader(blocks: u64, bytes: u64) -> Cost {
    let traffic = Traffic { memory: bytes, l2: bytes, l1: bytes, shared: 0, link: 0 };
    Cost::Kernel { blocks, resident: 16, instructions: 0, traffic, longest_thread: 0, partners: Vec::new() }
}

fn engine(time: &mut Time, gpu: usize, stream: u64, after: Vec<When>) -> Ticket {
    time.enqueue(ThreadKey::current(), (gpu, StreamHandle(stream)), Class::Engine, after)
}

fn span(when: &When) -> Span {
    *when.get().expect("it has a time")
}

fn length(when: &When) -> u64 {
    span(when).end - span(when).start
}

/// Returns the times of two operations on two streams of one GPU.
fn side_by_side(costs: [Cost; 2]) -> [When; 2] {
    let mut time = dgx(1);
    let tickets = [1, 2].map(|stream| engine(&mut time, 0, stream, vec![]));
    let whens = tickets.each_ref().map(|ticket| ticket.when.clone());
    tickets.into_iter().zip(costs).for_each(|(ticket, cost)| time.finish(ticket, cost));
    time.settle();
    whens
}

#[test]
fn small_kernels_of_two_streams_overlap_and_full_ones_don_t() {
    for (blocks, overlap) in [(1, true), (66, true), (67, false), (132, false), (1000, false)] {
        let [first, second] = side_by_side([kernel(blocks, 1_000_000), kernel(blocks, 1_000_000)]);
        assert_eq!(span(&second).start < span(&first).end, overlap, "{blocks} blocks");
    }
}

#[test]
fn concurrent_kernels_share_the_memory_and_lose_none_of_its_throughput() {
    let bytes = 3_350_000_000;
    let [alone, _] = side_by_side([reader(132, bytes), kernel(1, 1)]);
    assert_eq!(length(&alone), 1_000_000);
    let [first, second] = side_by_side([reader(132, bytes), reader(132, bytes)]);
    assert_eq!((length(&first), span(&second).end - span(&first).start), (1_000_000, 2_000_000));
    // Ten multiprocessors can't use all of the bandwidth, so the other kernel gets the rest.
    let [few, many] = side_by_side([reader(10, bytes), reader(1320, bytes)]);
    let few_alone = 3.35 / (10.0 * 0.1267) * 1e6;
    assert!((length(&few) as f64 / few_alone - 1.0).abs() < 1e-3, "{} ns", length(&few));
    let left = 1.0 - 10.0 * 0.1267 / 3.35;
    assert!((length(&many) as f64 * left / 1e6 - 1.0).abs() < 1e-3, "{} ns", length(&many));
}

#[test]
fn a_partial_wave_takes_as_long_as_a_full_one() {
    let cost = |blocks| Cost::Kernel {
        blocks,
        resident: 1,
        instructions: 33_450_000 * blocks,
        traffic: Traffic::default(),
        longest_thread: 0,
        partners: Vec::new(),
    };
    let [one_wave, _] = side_by_side([cost(132), kernel(1, 1)]);
    let [two_waves, _] = side_by_side([cost(133), kernel(1, 1)]);
    assert_eq!((length(&one_wave), length(&two_waves)), (132_000, 264_000));
}

#[test]
fn only_copies_in_the_same_direction_wait_for_each_other() {
    let [first, second] = side_by_side([Cost::Upload(55_000), Cost::Upload(55_000)]);
    assert_eq!(span(&second).start, span(&first).end);
    let [first, second] = side_by_side([Cost::Upload(55_000), Cost::Download(53_000)]);
    assert_eq!((length(&first), length(&second)), (2_500, 2_500));
    assert!(span(&second).start < span(&first).end);
}

#[test]
fn compute_is_slower_while_a_collective_holds_multiprocessors() {
    let thread = ThreadKey::current();
    let mut time = dgx(1);
    let part = time.enqueue(thread, (0, StreamHandle(1)), Class::Communication, vec![]);
    time.communicates(&part.when, 500_000, || Label::new("", ""));
    let meanwhile = engine(&mut time, 0, 2, vec![]);
    let waits = engine(&mut time, 0, 3, vec![]);
    let [slow, spin] = [&meanwhile, &waits].map(|ticket| ticket.when.clone());
    time.finish(meanwhile, reader(132, 3_350_000_000));
    time.finish(waits, kernel(1, 700_000));
    time.settle();
    // The collective is not done, because other ranks may arrive late. It occupies its share as soon as its own stream
    // reaches it.
    let done_beside = 500_000.0 / 1.19;
    assert_eq!(length(&slow), 500_000 + (1_000_000.0 - done_beside) as u64 + 1);
    assert_eq!(length(&spin), 700_000, "work that only waits takes no longer");
}

#[test]
fn an_operation_starts_after_all_that_it_waits_for() {
    let mut time = dgx(2);
    let first = engine(&mut time, 0, 1, vec![]);
    let second = engine(&mut time, 1, 2, vec![first.when.clone()]);
    let (a, b) = (first.when.clone(), second.when.clone());
    // The operations complete in reverse order, but the times are the same.
    time.finish(second, Cost::Upload(1_000));
    time.settle();
    assert!(b.get().is_none());
    time.finish(first, kernel(1, 5_000));
    time.settle();
    assert_eq!(span(&b).start, span(&a).end);
}

#[test]
fn a_poll_answers_no_until_the_host_s_clock_has_reached_the_end() {
    let mut time = dgx(1);
    let (call, launch) = (time.preset().call_ns, time.preset().launch_ns);
    let ticket = engine(&mut time, 0, 1, vec![]);
    let when = ticket.when.clone();
    time.finish(ticket, kernel(1, 20_000));
    let polls = (0..1000).take_while(|_| !time.has_ended(ThreadKey::current(), &when)).count();
    assert_eq!(polls as u64, (launch + 20_000) / call - 1);
}

#[test]
fn a_collective_starts_when_its_last_rank_is_ready() {
    let thread = ThreadKey::current();
    let mut time = dgx(2);
    let slow = engine(&mut time, 1, 1, vec![]);
    let parts = [(0, vec![]), (1, vec![slow.when.clone()])]
        .map(|(gpu, after)| time.enqueue(thread, (gpu, StreamHandle(1)), Class::Communication, after));
    let whens = [slow.when.clone(), parts[0].when.clone(), parts[1].when.clone()];
    let call = collective(1);
    for part in parts {
        time.finish(part, Cost::Collective { call, ranks: 2, others_ready: 0, duration: 7_000 });
    }
    time.finish(slow, kernel(1, 90_000));
    time.settle();
    assert_eq!(span(&whens[1]), span(&whens[2]));
    assert_eq!(span(&whens[1]).start, span(&whens[0]).end);
    assert_eq!(length(&whens[1]), 7_000);
}

#[test]
fn strict_communicators_that_share_a_gpu_communicate_one_after_another() {
    let thread = ThreadKey::current();
    for (one_at_a_time, together) in [(false, true), (true, false)] {
        let mut time = Time::new(Preset::find("dgx-h100").unwrap(), 1, false, one_at_a_time);
        let mut communicate = |stream, cost| {
            let ticket = time.enqueue(thread, (0, StreamHandle(stream)), Class::Communication, vec![]);
            let when = ticket.when.clone();
            time.finish(ticket, cost);
            time.settle();
            when
        };
        let partners = || vec![(Ticket::elsewhere(0), 9_000)];
        let message = communicate(1, Cost::PointToPoint { partners: partners() });
        let call = collective(1);
        let sum = communicate(2, Cost::Collective { call, ranks: 1, others_ready: 0, duration: 9_000 });
        let reply = communicate(3, Cost::PointToPoint { partners: partners() });
        for (one, next) in [(&message, &sum), (&sum, &reply)] {
            assert_eq!(span(next).start < span(one).end, together);
        }
    }
}

#[test]
fn recording_and_waiting_take_a_microsecond_together() {
    let thread = ThreadKey::current();
    let mut time = dgx(1);
    let kernel_ticket = engine(&mut time, 0, 1, vec![]);
    let place = |stream| (0, StreamHandle(stream));
    let record = time.enqueue(thread, place(1), Class::Record, vec![kernel_ticket.when.clone()]);
    let wait = time.enqueue(thread, place(2), Class::Wait, vec![record.when.clone(), Moment::start(0)]);
    let [ran, waited] = [&kernel_ticket, &wait].map(|ticket| ticket.when.clone());
    for (ticket, cost) in [(kernel_ticket, kernel(1, 9_000)), (record, Cost::Nothing), (wait, Cost::Nothing)]
    {
        time.finish(ticket, cost);
    }
    time.settle();
    assert_eq!(span(&waited).end - span(&ran).end, 1_000);
    assert_eq!(span(&waited).start, time.preset().launch_ns, "its stream reaches it immediately");
}

/// Random-looking numbers that are the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// An operation of a generated program.
struct Made {
    ticket: Ticket,
    cost: Cost,
    /// The indices of the operations that run before it.
    behind: Vec<usize>,
    /// The other rank's part of a collective.
    with: Option<usize>,
}

fn collective(number: u64) -> CollectiveId {
    CollectiveId { comm: CommId(1), sequence: SequenceNumber(number) }
}

fn some_thread() -> ThreadKey {
    std::thread::spawn(ThreadKey::current).join().unwrap()
}

/// A program that enqueues operations.
struct Program<'a> {
    time: &'a mut Time,
    made: Vec<Made>,
    /// The last operation on each stream; each GPU has two streams.
    last: [Option<usize>; 4],
    /// The thread that enqueues work on each GPU.
    threads: [ThreadKey; 2],
}

impl Program<'_> {
    fn add(&mut self, stream: usize, class: Class, cost: Cost, behind: &[usize], with: Option<usize>) {
        let gpu = stream / 2;
        let thread = self.threads[gpu];
        let behind: Vec<usize> = behind.iter().filter_map(|&stream| self.last[stream]).collect();
        let after: Vec<When> = behind.iter().map(|&at| self.made[at].ticket.when.clone()).collect();
        self.time.call(thread, gpu, String::new);
        let ticket = self.time.enqueue(thread, (gpu, StreamHandle(stream as u64)), class, after);
        if let Cost::Collective { duration, .. } = cost {
            self.time.communicates(&ticket.when, duration, || Label::new("", ""));
        }
        self.last[stream] = Some(self.made.len());
        self.made.push(Made { ticket, cost, behind, with });
    }
}

/// Generates kernels, copies, waits for the other stream, and collectives on both GPUs.
fn program(time: &mut Time, seed: u64) -> Vec<Made> {
    let mut numbers = Numbers(seed);
    let mut program =
        Program { time, made: Vec::new(), last: [None; 4], threads: [some_thread(), some_thread()] };
    for number in 0..60 {
        let stream = numbers.below(4);
        let (class, cost) = match numbers.below(7) {
            0 => {
                program.add(stream, Class::Wait, Cost::Nothing, &[stream ^ 1, stream], None);
                continue;
            }
            1 => {
                let call = collective(number);
                let next = program.made.len();
                for (stream, with) in [(stream % 2, next + 1), (stream % 2 + 2, next)] {
                    let cost = Cost::Collective { call, ranks: 2, others_ready: 0, duration: 9_000 };
                    program.add(stream, Class::Communication, cost, &[stream], Some(with));
                }
                continue;
            }
            2 => (Class::Engine, Cost::Upload(20_000 << numbers.below(4))),
            3 => (Class::Engine, kernel(1 + numbers.below(132) as u64, 1_000 << numbers.below(5))),
            _ => (Class::Engine, reader(1 + numbers.below(400) as u64, 10_000_000 << numbers.below(4))),
        };
        program.add(stream, class, cost, &[stream], None);
    }
    program.made
}

/// The times depend neither on which operation runs first nor on when a thread asks.
#[test]
fn times_do_not_depend_on_which_operation_runs_first_or_when_a_thread_looks() {
    for seed in 0..200 {
        let mut seen: Option<Vec<Span>> = None;
        for order in 0..5 {
            let mut time = dgx(2);
            let made = program(&mut time, seed);
            let mut numbers = Numbers(order);
            let mut done = vec![false; made.len()];
            while done.contains(&false) {
                let ready: Vec<usize> = (0..made.len())
                    .filter(|&at| {
                        let parts = [Some(at), made[at].with];
                        !done[at]
                            && parts
                                .into_iter()
                                .flatten()
                                .all(|at| made[at].behind.iter().all(|&at| done[at]))
                    })
                    .collect();
                let next = if order == 0 { ready[0] } else { ready[numbers.below(ready.len())] };
                for at in [Some(next), made[next].with].into_iter().flatten() {
                    done[at] = true;
                    time.finish(made[at].ticket.clone(), made[at].cost.clone());
                }
                if order > 1 && numbers.below(3) == 0 {
                    time.settle();
                }
            }
            time.settle();
            let spans: Vec<Span> = made.iter().map(|made| span(&made.ticket.when)).collect();
            let first = seen.get_or_insert_with(|| spans.clone());
            assert_eq!(*first, spans, "seed {seed}, order {order}");
        }
    }
}

#[test]
fn bytes_in_another_gpu_s_memory_take_as_long_as_a_copy() {
    let bytes = 37_080_000;
    let traffic = Traffic { link: bytes, ..Traffic::default() };
    let cost = Cost::Kernel {
        blocks: 132,
        resident: 1,
        instructions: 0,
        traffic,
        longest_thread: 0,
        partners: Vec::new(),
    };
    let [far, _] = side_by_side([cost, kernel(1, 1)]);
    assert_eq!(length(&far), 100_000);
}

#[test]
fn a_kernel_that_waits_for_another_takes_its_time_after_that_one_has_started() {
    let mut time = dgx(2);
    let before = engine(&mut time, 1, 2, vec![]);
    let partner = engine(&mut time, 1, 2, vec![before.when.clone()]);
    let waits = engine(&mut time, 0, 1, vec![]);
    let [start, end] = [before.when.clone(), waits.when.clone()];
    time.finish(before, kernel(1, 500_000));
    let mut cost = kernel(1, 100_000);
    if let Cost::Kernel { partners, .. } = &mut cost {
        partners.push(partner);
    }
    time.finish(waits, cost);
    time.settle();
    assert_eq!(span(&end).end, span(&start).end + 100_000);
}
