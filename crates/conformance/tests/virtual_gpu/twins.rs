//! Twin programs: a wrong one and a right one.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::{self, ncclComm_t, ncclUniqueId};

use crate::device::untracked;
use crate::raw::{Answer, Arguments, Function, Rank, address, answer, communicators, floats};
use crate::text;

/// One rank's result.
pub(crate) type Said = Result<(), String>;

/// A rank whose program runs in a thread of its own.
pub(crate) struct TestRank {
    pub(crate) rank: usize,
    pub(crate) n: usize,
    /// Whether this is the wrong twin.
    pub(crate) wrong: bool,
    pub(crate) first_gpu: usize,
    pub(crate) own: Rank,
    /// The id of `own`, and an id for another communicator for the same ranks.
    pub(crate) ids: [ncclUniqueId; 2],
}

impl TestRank {
    /// Joins another communicator for the same ranks, on a new stream.
    pub(crate) fn second(&self) -> Rank {
        let stream = self.own.stream.context().new_stream().unwrap();
        Rank::join(self.ids[1], self.rank, self.n, stream)
    }

    pub(crate) fn buffer(&self, len: usize) -> CudaSlice<f32> {
        let buffer = self.own.stream.clone_htod(&vec![1.0; len]).unwrap();
        self.own.stream.synchronize().unwrap();
        buffer
    }

    /// Makes an in-place call on the rank's own communicator and stream.
    pub(crate) fn call(&self, function: Function, buffer: &CudaSlice<f32>, with: Arguments) -> Said {
        said(self.own.call(function, address(buffer), address(buffer), with))
    }

    pub(crate) fn all_reduce(&self, buffer: &CudaSlice<f32>) -> Said {
        self.call(Function::AllReduce, buffer, floats(buffer.len()))
    }

    pub(crate) fn send(&self, buffer: &CudaSlice<f32>, to: usize) -> Said {
        self.call(Function::Send, buffer, peer(to, buffer.len()))
    }

    pub(crate) fn receive(&self, buffer: &CudaSlice<f32>, from: usize) -> Said {
        self.call(Function::Recv, buffer, peer(from, buffer.len()))
    }

    pub(crate) fn wait(&self) -> Said {
        wait(&self.own.stream)
    }

    /// Returns whether this is `rank` in the wrong twin.
    pub(crate) fn is_wrong(&self, rank: usize) -> bool {
        self.wrong && self.rank == rank
    }
}

pub(crate) fn said(answer: Answer) -> Said {
    answer.map_err(|(_, text)| text)
}

pub(crate) fn driver<T>(result: Result<T, DriverError>) -> Result<T, String> {
    result.map_err(text)
}

pub(crate) fn wait(stream: &CudaStream) -> Said {
    driver(stream.synchronize())
}

pub(crate) fn peer(rank: usize, count: usize) -> Arguments {
    Arguments { root: rank as i32, ..floats(count) }
}

pub(crate) fn run(n: usize, program: fn(&TestRank) -> Said, wrong: bool) -> Vec<Said> {
    let ids = [get_uniqueid().unwrap(), get_uniqueid().unwrap()];
    // A failure is sticky, so each twin uses different GPUs.
    let first_gpu = if wrong { 4 } else { 0 };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                scope.spawn(move || {
                    let stream = untracked(first_gpu + rank).new_stream().unwrap();
                    let own = Rank::join(ids[0], rank, n, stream);
                    program(&TestRank { rank, n, wrong, first_gpu, own, ids })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs both twins. The right one must cause no report, and the wrong one must end with a report that contains these
/// words, without using the wall clock.
pub(crate) fn twins(n: usize, program: fn(&TestRank) -> Said, words: &[&str]) -> anyhow::Result<()> {
    for (rank, said) in run(n, program, false).into_iter().enumerate() {
        anyhow::ensure!(said.is_ok(), "the right twin, rank {rank}: {}", said.unwrap_err());
    }
    let reports: Vec<String> = run(n, program, true).into_iter().filter_map(Result::err).collect();
    let fits = |report: &String| words.iter().all(|word| report.contains(word));
    anyhow::ensure!(reports.iter().any(fits), "no report with {words:?} in:\n{}", reports.join("\n---\n"));
    let guessed = reports.iter().find(|report| report.contains("not proved"));
    anyhow::ensure!(
        guessed.is_none(),
        "the wall clock decided the outcome: {}",
        guessed.unwrap_or(&String::new())
    );
    Ok(())
}

pub(crate) fn split(comm: ncclComm_t, color: i32, child: &mut ncclComm_t) -> Answer {
    // SAFETY: the communicator is alive, and the child is writable until it is created.
    answer(unsafe { sys::ncclCommSplit(comm, color, 0, child, std::ptr::null_mut()) })
}

/// Creates a communicator for two GPUs that one thread drives.
pub(crate) fn pair(me: &TestRank) -> [Rank; 2] {
    let gpus = [me.first_gpu + 1, me.first_gpu + 2];
    let streams: [Arc<CudaStream>; 2] = gpus.map(|gpu| untracked(gpu).new_stream().unwrap());
    let comms = communicators(&gpus.map(|gpu| gpu as i32)).unwrap();
    let [one, other] = streams;
    [Rank::of(comms[0], one), Rank::of(comms[1], other)]
}
