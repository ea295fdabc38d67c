//! Tests the locks in the engine and in NCCL with small two- and three-thread programs, under many schedules chosen by
//! shuttle.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p virtual-gpu-nccl --release --test shuttle
//! ```
//!
//! A schedule fails if a value is wrong or if no thread can continue. Under shuttle, a wait never rechecks its
//! condition on its own, so the tests also find a thread that is never woken. The seed is fixed; set
//! `SHUTTLE_RANDOM_SEED=N` to use another one.
#![cfg(shuttle)]

use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use virtual_gpu::config::{Config, Timeout};
use virtual_gpu::engine::{Engine, HostFunction, HostKind, LaunchShape, Region};
use virtual_gpu_core::handle::{CommHandle, StreamHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus};
use virtual_gpu_nccl::{
    Buffers, Collective, CommConfig, DataType, Direction, Nccl, Operation, Operator, Request, Transfer,
    UniqueId,
};

/// The number of schedules of each kind that every program runs under.
const SCHEDULES: usize = 10_000;
const SEED: u64 = 20_260_101;
/// The number of priority changes in a schedule of the second kind.
const DEPTH: usize = 3;
/// The size of a thread's stack, in bytes. Reports need more than shuttle's default.
const STACK: usize = 1 << 20;
/// The size of every buffer in bytes, which is one number.
const SIZE: u64 = 4;

/// Runs a program under random schedules, and under schedules with few priority changes (PCT).
fn check(program: fn(Machine)) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    let run = move || program(machine_of_schedule());
    shuttle::Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), config.clone()).run(run);
    shuttle::Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, SCHEDULES), config).run(run);
}

/// An engine with its NCCL.
#[derive(Clone, Copy)]
struct Machine {
    engine: &'static Engine,
    nccl: &'static Nccl,
}

/// Returns a machine whose waits never time out.
fn machine() -> Machine {
    let config = Config {
        gpus: 3,
        timeout: Timeout { duration: Duration::MAX, variable: "VIRTUAL_GPU_TIMEOUT" },
        ..Config::default()
    };
    let engine = Engine::start(config, 1 << 40);
    Machine { engine, nccl: Nccl::new(engine) }
}

/// Returns a machine for one schedule. The machine's thread for host functions outlives the program, so the next
/// schedule frees the machine.
fn machine_of_schedule() -> Machine {
    std::thread_local! { static LAST: Cell<Option<Machine>> = const { Cell::new(None) } }
    let machine = machine();
    if let Some(Machine { engine, nccl }) = LAST.replace(Some(machine)) {
        // SAFETY: both pointers came from boxes, and nothing uses them anymore, because shuttle ends a schedule's
        // threads before it starts the next schedule.
        unsafe {
            drop(Box::from_raw(ptr::from_ref(nccl).cast_mut()));
            drop(Box::from_raw(ptr::from_ref(engine).cast_mut()));
        }
    }
    machine
}

/// Runs `program` in one thread per rank, on the GPU with the rank's number.
fn in_ranks(machine: Machine, world_size: i32, program: fn(Rank)) {
    // Creating an id starts listening for other processes, so create it only once.
    static ID: OnceLock<UniqueId> = OnceLock::new();
    let id = *ID.get_or_init(|| self::machine().nccl.unique_id(Vec::new).unwrap());
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            thread::spawn(move || {
                let gpu = Gpu::new(machine, rank);
                let comm = machine.nccl.init_rank(world_size, id, rank, CommConfig::default()).unwrap();
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
    nccl: &'static Nccl,
    stream: StreamHandle,
}

fn pageable() -> HostKind {
    HostKind::Pageable { at: Region::line(0, SIZE) }
}

fn host_function(call: impl Fn() + Send + Sync + 'static) -> HostFunction {
    HostFunction { call: Arc::new(call), given: [0; 2] }
}

impl Gpu {
    /// Creates a stream on the GPU with this number, which becomes the calling thread's current GPU.
    fn new(Machine { engine, nccl }: Machine, number: i32) -> Self {
        let context = engine.retain_primary(number).unwrap();
        engine.set_current(Some(context)).unwrap();
        Self { engine, nccl, stream: engine.create_stream(true).unwrap() }
    }

    /// Allocates a buffer that holds a number.
    fn buffer(&self, value: u32) -> u64 {
        let at = self.engine.allocate(SIZE).unwrap();
        self.write(at, value);
        at
    }

    fn write(&self, at: u64, value: u32) {
        let read = Arc::new(move || value.to_le_bytes().to_vec());
        self.engine.copy_from_host(self.stream, Region::line(at, SIZE), read, pageable()).unwrap();
    }

    fn read(&self, at: u64) -> u32 {
        let into = Arc::new(AtomicU32::new(0));
        let value = into.clone();
        let write =
            move |bytes: &[u8]| into.store(u32::from_le_bytes(bytes.try_into().unwrap()), Ordering::SeqCst);
        self.engine.copy_to_host(self.stream, Region::line(at, SIZE), Arc::new(write), pageable()).unwrap();
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
    /// Sums one number per rank, in place.
    fn all_reduce(&self, comm: CommHandle, at: u64) {
        let operation = Operation {
            collective: Collective::AllReduce(Operator::Sum),
            count: 1,
            data_type: DataType::Uint32,
        };
        let buffers = Buffers { send: at, receive: at, scale: None };
        self.gpu.nccl.call(comm, Request::Collective(operation, buffers), self.gpu.stream).unwrap();
    }

    fn transfer(&self, direction: Direction, peer: i32, at: u64) {
        let transfer = Transfer { direction, peer, count: 1, data_type: DataType::Uint32 };
        self.gpu.nccl.call(self.comm, Request::Transfer(transfer, at), self.gpu.stream).unwrap();
    }

    /// Creates another communicator for all ranks.
    fn duplicate(&self) -> CommHandle {
        let made = Arc::new(OnceLock::new());
        let into = made.clone();
        let deliver = Box::new(move |comm| into.set(comm).expect("once"));
        self.gpu.nccl.split(self.comm, 0, self.rank, None, deliver).unwrap();
        *made.get().expect("a split returns once its communicator has been created")
    }
}

#[test]
fn two_ranks_reduce_twice() {
    check(|machine| {
        in_ranks(machine, 2, |rank| {
            let at = rank.gpu.buffer(1 + rank.rank as u32);
            rank.all_reduce(rank.comm, at);
            rank.all_reduce(rank.comm, at);
            assert_eq!(rank.gpu.read(at), 6);
            rank.gpu.nccl.destroy(rank.comm).unwrap();
        });
    });
}

#[test]
fn a_split_and_the_end_of_a_communicator_wait_for_all_ranks() {
    check(|machine| {
        in_ranks(machine, 2, |rank| {
            let at = rank.gpu.buffer(1);
            let other = rank.duplicate();
            rank.all_reduce(other, at);
            rank.gpu.nccl.finalize(other).unwrap();
            assert_eq!(rank.gpu.read(at), 2);
        });
    });
}

#[test]
fn three_ranks_pass_a_number_round() {
    check(|machine| {
        in_ranks(machine, 3, |rank| {
            let (own, got) = (rank.gpu.buffer(10 + rank.rank as u32), rank.gpu.buffer(0));
            let last = rank.world_size - 1;
            let (next, before) = ((rank.rank + 1) % rank.world_size, (rank.rank + last) % rank.world_size);
            rank.gpu.nccl.group_start();
            rank.transfer(Direction::Send, next, own);
            rank.transfer(Direction::Receive, before, got);
            rank.gpu.nccl.group_end().unwrap();
            assert_eq!(rank.gpu.read(got), 10 + before as u32);
        });
    });
}

#[test]
fn host_functions_run_in_order_and_release_waiting_threads() {
    check(|machine| {
        let threads = [0, 1].map(|number| {
            thread::spawn(move || {
                let gpu = Gpu::new(machine, number);
                let calls = Arc::new(AtomicU32::new(0));
                for turn in 0..2 {
                    let calls = calls.clone();
                    let function = move || assert_eq!(calls.fetch_add(1, Ordering::SeqCst), turn);
                    machine.engine.launch_host_function(gpu.stream, host_function(function)).unwrap();
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
    check(|machine| {
        let (tell, hear) = channel();
        let writer = thread::spawn(move || {
            let gpu = Gpu::new(machine, 0);
            let (at, event) = (gpu.buffer(1), machine.engine.create_event(false).unwrap());
            // A thread that is waiting for the event is waiting for another thread.
            machine.engine.launch_host_function(gpu.stream, host_function(|| ())).unwrap();
            gpu.write(at, 2);
            machine.engine.record_event(event, gpu.stream).unwrap();
            tell.send((at, event)).unwrap();
            gpu.synchronize().unwrap();
        });
        let reader = thread::spawn(move || {
            let gpu = Gpu::new(machine, 0);
            let (at, event) = hear.recv().unwrap();
            machine.engine.wait_event(gpu.stream, event).unwrap();
            assert_eq!(gpu.read(at), 2);
        });
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn threads_that_share_a_gpu_learn_their_times() {
    check(|machine| {
        let threads = [(); 2].map(|()| {
            thread::spawn(move || {
                let gpu = Gpu::new(machine, 0);
                let [start, end] = [(); 2].map(|()| machine.engine.create_event(true).unwrap());
                machine.engine.record_event(start, gpu.stream).unwrap();
                gpu.buffer(1);
                machine.engine.record_event(end, gpu.stream).unwrap();
                machine.engine.synchronize_event(end).unwrap();
                assert!(machine.engine.elapsed(start, end).unwrap() > 0.0);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Sets its own flag and waits for the other one.
const MEET: &str = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 mine, .param .u64 theirs)
{
    .reg .b32 %r<2>; .reg .b64 %rd<3>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [mine]; ld.param.u64 %rd2, [theirs];
    st.release.sys.global.u32 [%rd1], 1;
again:
    ld.acquire.sys.global.u32 %r1, [%rd2];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra again;
    ret;
}
";

#[test]
fn kernels_on_two_gpus_wait_for_each_other() {
    check(|machine| {
        let ((to_one, of_zero), (to_zero, of_one)) = (channel(), channel());
        let ends = [(0, 1, to_one, of_one), (1, 0, to_zero, of_zero)];
        let threads = ends.map(|(number, other, tell, hear)| {
            thread::spawn(move || {
                let gpu = Gpu::new(machine, number);
                let peer = machine.engine.retain_primary(other).unwrap();
                machine.engine.enable_peer_access(peer).unwrap();
                let mine = gpu.buffer(0);
                gpu.synchronize().unwrap();
                tell.send(mine).unwrap();
                let theirs: u64 = hear.recv().unwrap();
                let module = machine.engine.load_module(MEET).unwrap();
                let meet = machine.engine.function(module, "meet").unwrap();
                let shape = LaunchShape::new([1; 3], [1; 3], 0);
                let parameters = [mine, theirs].map(u64::to_le_bytes).concat();
                machine.engine.launch(meet, shape, gpu.stream, parameters).unwrap();
                gpu.synchronize().unwrap();
                assert_eq!(gpu.read(mine), 1);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn waiting_for_a_rank_that_aborts_is_reported() {
    check(|machine| {
        in_ranks(machine, 2, |rank| {
            if rank.rank == 0 {
                let at = rank.gpu.buffer(1);
                rank.all_reduce(rank.comm, at);
                assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
            }
            rank.gpu.nccl.abort(rank.comm);
        });
    });
}

#[test]
fn ranks_that_wait_for_each_other_are_reported_at_once() {
    check(|machine| {
        in_ranks(machine, 2, |rank| {
            let (at, other) = (rank.gpu.buffer(1), rank.duplicate());
            rank.all_reduce(if rank.rank == 0 { rank.comm } else { other }, at);
            assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
        });
    });
}

#[test]
fn three_ranks_that_all_receive_first_are_reported_at_once() {
    check(|machine| {
        in_ranks(machine, 3, |rank| {
            let at = rank.gpu.buffer(0);
            rank.transfer(Direction::Receive, (rank.rank + 1) % rank.world_size, at);
            assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
        });
    });
}

#[test]
fn a_failure_is_passed_on_from_rank_to_rank() {
    check(|machine| {
        in_ranks(machine, 3, |rank| {
            if rank.rank > 0 {
                let at = rank.gpu.buffer(0);
                rank.transfer(Direction::Receive, rank.rank - 1, at);
                assert_eq!(rank.gpu.synchronize().unwrap_err().status, CudaStatus::LaunchTimeout);
            }
            rank.gpu.nccl.abort(rank.comm);
        });
    });
}
