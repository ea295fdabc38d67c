//! The engine's own locks: small programs of two or three threads, under many schedules that shuttle picks.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p virtual-gpu --release --test shuttle
//! ```
//!
//! A schedule fails where a value is wrong, and where no thread can go on: there a wait never looks again by itself, so a
//! thread that nobody wakes is found too. The seed is fixed; `SHUTTLE_RANDOM_SEED=N` takes another.
#![cfg(shuttle)]

use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use virtual_gpu::config::Config;
use virtual_gpu::engine::{Engine, HostKind, StreamHandle};
use virtual_gpu::nccl::{
    Buffers, Collective, CommConfig, CommHandle, DataType, Direction, Operation, Operator, Request, Transfer,
    UniqueId,
};
use virtual_gpu_core::status::{CudaResult, CudaStatus};

/// Schedules of each kind that a program runs under.
const SCHEDULES: usize = 10_000;
const SEED: u64 = 20_260_101;
/// Changes of priority in a schedule of the second kind.
const DEPTH: usize = 3;
/// Bytes of a thread's stack: reports need more than shuttle's few.
const STACK: usize = 1 << 20;
/// Bytes of every buffer: one number.
const SIZE: u64 = 4;

/// Runs a program under random schedules, and under some with few changes of priority (PCT).
fn check(program: fn(&'static Engine)) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    let run = move || program(engine_of_schedule());
    shuttle::Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), config.clone()).run(run);
    shuttle::Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, SCHEDULES), config).run(run);
}

/// A machine that never loses patience.
fn engine() -> Box<Engine> {
    let config = Config { gpus: 3, patience: Duration::MAX, ..Config::default() };
    Box::new(Engine::new(config, 1 << 40))
}

/// A machine for one schedule. Its thread for host functions outlives the program, so the next schedule takes it away.
fn engine_of_schedule() -> &'static Engine {
    std::thread_local! { static LAST: Cell<*mut Engine> = const { Cell::new(ptr::null_mut()) } }
    let engine = Box::into_raw(engine());
    let last = LAST.replace(engine);
    if !last.is_null() {
        // SAFETY: it came from a box, and nobody has it any more: shuttle ends a schedule's threads before it starts the next.
        drop(unsafe { Box::from_raw(last) });
    }
    // SAFETY: it came from a box, and lives until the schedule is over.
    unsafe { &*engine }
}

/// Runs `program` in a thread for each rank, on the GPU of its number.
fn in_ranks(engine: &'static Engine, world_size: i32, program: fn(Rank)) {
    // Who makes an id listens for other processes: once is enough.
    static ID: OnceLock<UniqueId> = OnceLock::new();
    let id = *ID.get_or_init(|| Box::leak(self::engine()).nccl_unique_id(Vec::new).unwrap());
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            thread::spawn(move || {
                let gpu = Gpu::new(engine, rank);
                let comm = engine.nccl_init_rank(world_size, id, rank, CommConfig::default()).unwrap();
                program(Rank { rank, world_size, comm, gpu });
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// A thread's stream on a GPU.
#[derive(Clone, Copy)]
struct Gpu {
    engine: &'static Engine,
    stream: StreamHandle,
}

impl Gpu {
    /// A stream of its own on the GPU of this number, which is the calling thread's from now on.
    fn new(engine: &'static Engine, number: i32) -> Self {
        let context = engine.retain_primary(number).unwrap();
        engine.set_current(Some(context)).unwrap();
        Self { engine, stream: engine.create_stream(true).unwrap() }
    }

    /// A buffer with a number in it.
    fn buffer(&self, value: u32) -> u64 {
        let at = self.engine.allocate(SIZE).unwrap();
        self.write(at, value);
        at
    }

    fn write(&self, at: u64, value: u32) {
        let read = Arc::new(move || value.to_le_bytes().to_vec());
        self.engine.copy_from_host(self.stream, at, SIZE, read, HostKind::Pageable).unwrap();
    }

    fn read(&self, at: u64) -> u32 {
        let into = Arc::new(AtomicU32::new(0));
        let value = into.clone();
        let write =
            move |bytes: &[u8]| into.store(u32::from_le_bytes(bytes.try_into().unwrap()), Ordering::SeqCst);
        self.engine.copy_to_host(self.stream, at, SIZE, Arc::new(write), HostKind::Pageable).unwrap();
        value.load(Ordering::SeqCst)
    }

    fn synchronize(&self) -> CudaResult<()> {
        self.engine.synchronize_stream(self.stream)
    }
}

/// One rank, in its thread.
struct Rank {
    rank: i32,
    world_size: i32,
    comm: CommHandle,
    gpu: Gpu,
}

impl Rank {
    /// Adds up a number of each rank, in place.
    fn all_reduce(&self, comm: CommHandle, at: u64) {
        let operation = Operation {
            collective: Collective::AllReduce(Operator::Sum),
            count: 1,
            data_type: DataType::Uint32,
        };
        let buffers = Buffers { send: at, receive: at, scale: None };
        self.gpu.engine.nccl_call(comm, Request::Collective(operation, buffers), self.gpu.stream).unwrap();
    }

    fn transfer(&self, direction: Direction, peer: i32, at: u64) {
        let transfer = Transfer { direction, peer, count: 1, data_type: DataType::Uint32 };
        self.gpu.engine.nccl_call(self.comm, Request::Transfer(transfer, at), self.gpu.stream).unwrap();
    }

    /// Another communicator of all ranks.
    fn duplicate(&self) -> CommHandle {
        let made = Arc::new(OnceLock::new());
        let into = made.clone();
        let deliver = Box::new(move |comm| into.set(comm).expect("once"));
        self.gpu.engine.nccl_split(self.comm, 0, self.rank, None, deliver).unwrap();
        *made.get().expect("a split returns once its communicator is made")
    }
}

#[test]
fn two_ranks_add_up_twice() {
    check(|engine| {
        in_ranks(engine, 2, |rank| {
            let at = rank.gpu.buffer(1 + rank.rank as u32);
            rank.all_reduce(rank.comm, at);
            rank.all_reduce(rank.comm, at);
            assert_eq!(rank.gpu.read(at), 6);
            rank.gpu.engine.nccl_destroy(rank.comm).unwrap();
        });
    });
}

#[test]
fn a_split_and_the_end_of_a_communicator_wait_for_all_ranks() {
    check(|engine| {
        in_ranks(engine, 2, |rank| {
            let at = rank.gpu.buffer(1);
            let other = rank.duplicate();
            rank.all_reduce(other, at);
            rank.gpu.engine.nccl_finalize(other).unwrap();
            assert_eq!(rank.gpu.read(at), 2);
        });
    });
}

#[test]
fn three_ranks_pass_a_number_round() {
    check(|engine| {
        in_ranks(engine, 3, |rank| {
            let (own, got) = (rank.gpu.buffer(10 + rank.rank as u32), rank.gpu.buffer(0));
            let last = rank.world_size - 1;
            let (next, before) = ((rank.rank + 1) % rank.world_size, (rank.rank + last) % rank.world_size);
            rank.gpu.engine.nccl_group_start();
            rank.transfer(Direction::Send, next, own);
            rank.transfer(Direction::Receive, before, got);
            rank.gpu.engine.nccl_group_end().unwrap();
            assert_eq!(rank.gpu.read(got), 10 + before as u32);
        });
    });
}

#[test]
fn host_functions_run_in_their_turn_and_free_who_waits() {
    check(|engine| {
        let threads = [0, 1].map(|number| {
            thread::spawn(move || {
                let gpu = Gpu::new(engine, number);
                let calls = Arc::new(AtomicU32::new(0));
                for turn in 0..2 {
                    let calls = calls.clone();
                    let function = move || assert_eq!(calls.fetch_add(1, Ordering::SeqCst), turn);
                    engine.launch_host_function(gpu.stream, Arc::new(function)).unwrap();
                }
                gpu.synchronize().unwrap();
                assert_eq!(calls.load(Ordering::SeqCst), 2);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_event_orders_the_streams_of_two_threads() {
    check(|engine| {
        let (tell, hear) = channel();
        let writer = thread::spawn(move || {
            let gpu = Gpu::new(engine, 0);
            let (at, event) = (gpu.buffer(1), engine.create_event(false).unwrap());
            // Whoever waits for the event waits for another thread.
            engine.launch_host_function(gpu.stream, Arc::new(|| ())).unwrap();
            gpu.write(at, 2);
            engine.record_event(event, gpu.stream).unwrap();
            tell.send((at, event)).unwrap();
            gpu.synchronize().unwrap();
        });
        let reader = thread::spawn(move || {
            let gpu = Gpu::new(engine, 0);
            let (at, event) = hear.recv().unwrap();
            engine.wait_event(gpu.stream, event).unwrap();
            assert_eq!(gpu.read(at), 2);
        });
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn threads_that_share_a_gpu_learn_their_times() {
    check(|engine| {
        let threads = [(); 2].map(|()| {
            thread::spawn(move || {
                let gpu = Gpu::new(engine, 0);
                let [start, end] = [(); 2].map(|()| engine.create_event(true).unwrap());
                engine.record_event(start, gpu.stream).unwrap();
                gpu.buffer(1);
                engine.record_event(end, gpu.stream).unwrap();
                engine.synchronize_event(end).unwrap();
                assert!(engine.elapsed(start, end).unwrap() > 0.0);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn who_waits_for_a_rank_that_aborts_is_told() {
    check(|engine| {
        in_ranks(engine, 2, |rank| {
            if rank.rank == 0 {
                let at = rank.gpu.buffer(1);
                rank.all_reduce(rank.comm, at);
                assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
            }
            rank.gpu.engine.nccl_abort(rank.comm);
        });
    });
}

#[test]
fn ranks_that_wait_for_each_other_are_told_at_once() {
    check(|engine| {
        in_ranks(engine, 2, |rank| {
            let (at, other) = (rank.gpu.buffer(1), rank.duplicate());
            rank.all_reduce(if rank.rank == 0 { rank.comm } else { other }, at);
            assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
        });
    });
}

#[test]
fn three_ranks_that_all_receive_first_are_told_at_once() {
    check(|engine| {
        in_ranks(engine, 3, |rank| {
            let at = rank.gpu.buffer(0);
            rank.transfer(Direction::Receive, (rank.rank + 1) % rank.world_size, at);
            assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
        });
    });
}

#[test]
fn a_failure_is_handed_on_from_rank_to_rank() {
    check(|engine| {
        in_ranks(engine, 3, |rank| {
            if rank.rank > 0 {
                let at = rank.gpu.buffer(0);
                rank.transfer(Direction::Receive, rank.rank - 1, at);
                assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
            }
            rank.gpu.engine.nccl_abort(rank.comm);
        });
    });
}
