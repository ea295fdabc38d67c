//! Ranks and threads in arrangements other than one thread per rank: ranks that move between threads, one thread that
//! makes calls for GPUs that are not current, and a thread that polls instead of waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cudarc::nccl::result::{get_uniqueid, group_end, group_start};
use cudarc::nccl::safe::{Comm, ReduceOp};
use lab::Check;

use crate::device::untracked;
use crate::nccl::last_error;
use crate::raw::{Function, Rank, address, communicators, floats, raw_ranks};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_threads::other_threads_for_each_step", other_threads_for_each_step),
        Check::new("nccl_threads::made_by_threads_that_have_ended", made_by_threads_that_have_ended),
        Check::new("nccl_threads::a_helper_thread_of_one_rank", helper),
        Check::new("nccl_threads::default_streams_of_gpus_that_are_not_current", default_streams),
        Check::new("nccl_threads::polling_ends_with_a_report", polling),
        Check::new("nccl_threads::a_rank_that_polls_slowly_is_waited_for", slow_polling),
    ]
}

/// A rank that moves between threads: NCCL only requires that no two threads use it at the same time.
struct Handed(Rank, CudaSlice<f32>);

// SAFETY: a communicator belongs to no particular thread ("Thread Safety" in NCCL's User Guide), and the checks use
// each from one thread at a time.
unsafe impl Sync for Handed {}
// SAFETY: as above.
unsafe impl Send for Handed {}

impl Handed {
    fn new(rank: Rank) -> Self {
        let buffer = rank.stream.clone_htod(&[1.0f32; 4]).unwrap();
        Self(rank, buffer)
    }

    /// Runs an in-place all-reduce some time after the previous rank's, and waits for it.
    fn step(&self) {
        let Self(rank, buffer) = self;
        rank.stream.context().bind_to_thread().unwrap();
        // This is longer than the interval at which a waiting thread checks whether another thread has ended.
        std::thread::sleep(Duration::from_millis(40 * rank.rank as u64));
        rank.call(Function::AllReduce, address(buffer), address(buffer), floats(4)).unwrap();
        rank.stream.synchronize().unwrap();
    }

    fn expect(&self, value: f32) {
        assert_eq!(self.0.stream.clone_dtoh(&self.1).unwrap(), [value; 4]);
    }
}

/// Runs each rank in a new thread, which then ends.
fn in_new_threads(ranks: &[Handed]) {
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| rank.step());
        }
    });
}

fn other_threads_for_each_step() -> anyhow::Result<()> {
    let comms = communicators(&[0, 1, 2]).unwrap();
    let rank = |(gpu, &comm)| Handed::new(Rank::of(comm, untracked(gpu).new_stream().unwrap()));
    let ranks: Vec<Handed> = comms.iter().enumerate().map(rank).collect();
    (0..3).for_each(|_| in_new_threads(&ranks));
    ranks.iter().for_each(|rank| rank.expect(27.0));
    Ok(())
}

fn made_by_threads_that_have_ended() -> anyhow::Result<()> {
    let ranks = raw_ranks(0, 3, Handed::new);
    (0..2).for_each(|_| in_new_threads(&ranks));
    ranks.iter().for_each(|rank| rank.expect(9.0));
    Ok(())
}

/// Rank 0 makes its calls from one thread, and rank 1 uses a new thread for each call.
fn helper() -> anyhow::Result<()> {
    let id = get_uniqueid().unwrap();
    let run = |number: usize, call: fn(&Handed)| {
        let rank = Handed::new(Rank::join(id, number, 2, untracked(number).new_stream().unwrap()));
        (0..3).for_each(|_| call(&rank));
        rank.expect(8.0);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(0, Handed::step));
        scope.spawn(|| run(1, |rank| in_new_threads(std::slice::from_ref(rank))));
    });
    Ok(())
}

/// "There is no need to set the CUDA device before every NCCL communication call within a group" (NCCL's User Guide,
/// "Group Calls"): a default stream means the default stream of the communicator's GPU.
fn default_streams() -> anyhow::Result<()> {
    let streams: Vec<Arc<CudaStream>> =
        (0..3).map(|gpu| CudaContext::new(gpu).unwrap().default_stream()).collect();
    let comms = Comm::from_devices(streams.clone()).unwrap();
    let mut buffers: Vec<_> = streams.iter().map(|stream| stream.clone_htod(&[2.0f32; 4]).unwrap()).collect();
    for _ in 0..2 {
        group_start().unwrap();
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            let said = comm.all_reduce_in_place(buffer, &ReduceOp::Sum);
            assert!(said.is_ok(), "{}", last_error());
        }
        group_end().unwrap();
    }
    for (stream, buffer) in streams.iter().zip(&buffers) {
        assert_eq!(stream.clone_dtoh(buffer).unwrap(), [18.0; 4]);
    }
    Ok(())
}

const SHORT: Duration = Duration::from_millis(200);

/// A loop over a query contains no wait that the virtual GPU could end.
fn polling() -> anyhow::Result<()> {
    let timeout = SHORT.as_secs_f64().to_string();
    let (is_well, said) = crate::child::start("nccl_threads::asks", &[("VIRTUAL_GPU_TIMEOUT", &timeout)])?;
    for word in ["rank 0 waits in ncclAllReduce", "rank 1 never called it, and has destroyed", "not proved"] {
        anyhow::ensure!(is_well && said.contains(word), "{said}");
    }
    Ok(())
}

/// A rank polls forever although another rank is gone. If a rank has its own deadline, it reaches that first; a rank
/// that polls only occasionally is not in a loop.
pub(crate) fn asks() -> anyhow::Result<()> {
    lab::attach(2)?;
    raw_ranks(0, 2, |rank| {
        if rank.rank == 1 {
            return;
        }
        let buffer = rank.stream.clone_htod(&[1.0f32; 4]).unwrap();
        rank.call(Function::AllReduce, address(&buffer), address(&buffer), floats(4)).unwrap();
        let event = rank.stream.record_event(None).unwrap();
        for _ in 0..4 {
            assert_eq!(event.try_is_complete(), Ok(false));
            std::thread::sleep(SHORT + SHORT / 4);
        }
        let since = Instant::now();
        while event.try_is_complete() == Ok(false) {
            std::thread::yield_now();
        }
        assert!(event.try_is_complete().is_err());
        assert!(since.elapsed() >= 3 * SHORT, "{:?}", since.elapsed());
    });
    Ok(())
}

/// The timeout while a rank polls. The rank takes longer than this before it joins, but not three times as long.
const TIMEOUT: Duration = Duration::from_millis(500);
const POLLS: u32 = 12;

/// On a busy machine, a rank that yields between its queries may not run for a long time.
fn slow_polling() -> anyhow::Result<()> {
    let timeout = TIMEOUT.as_secs_f64().to_string();
    let (is_well, said) =
        crate::child::start("nccl_threads::polls_slowly", &[("VIRTUAL_GPU_TIMEOUT", &timeout)])?;
    anyhow::ensure!(is_well, "{said}");
    Ok(())
}

pub(crate) fn polls_slowly() -> anyhow::Result<()> {
    lab::attach(2)?;
    raw_ranks(0, 2, |rank| {
        let buffer = rank.stream.clone_htod(&[1.0f32; 4]).unwrap();
        if rank.rank == 1 {
            let kernels = lab::Kernels::load(rank.stream.context()).unwrap();
            kernels.spin(&rank.stream, 1_000_000).unwrap();
            let event = rank.stream.record_event(None).unwrap();
            for _ in 0..POLLS {
                assert_eq!(event.try_is_complete(), Ok(false));
                std::thread::sleep(TIMEOUT * 3 / 2 / POLLS);
            }
        }
        rank.call(Function::AllReduce, address(&buffer), address(&buffer), floats(4)).unwrap();
        assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [2.0; 4]);
    });
    Ok(())
}
