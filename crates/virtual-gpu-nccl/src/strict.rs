//! A strict NCCL (`VIRTUAL_NCCL=strict`): one that does what NCCL may do, not what would be convenient. With
//! `strict-2.21.5`, it is of that version.
//!
//! | what it does | source |
//! |---|---|
//! | From 2.22 on, a rank's host thread blocks at the first use of each algorithm and of each peer, until the others connect, too. | `runtimeConn` and `ncclCollPreconnectFunc` in `group.cc` |
//! | Creating a communicator takes a while: on real machines 0.6 s to 2 s, here 20 ms, so that suites stay quick, or `VIRTUAL_NCCL_INIT` seconds. | "Init timings" in the logs of NVIDIA/nccl-tests#273 (8 ranks, 0.66 s) and NVIDIA/nccl#1412 (16 ranks, 1.08 s) |
//! | An abort is logged as "Abort COMPLETE" by each rank up to 2.21, once by a process's last rank in 2.22 to 2.27, and as "Abort START" from 2.28.3 on. | `commReclaim`, `commDestroySync`, and `ncclCommAbort` in `init.cc` |
//! | Up to 2.21, the version is printed to standard output for every `NCCL_DEBUG`, even if there is an `NCCL_DEBUG_FILE`. | `showVersion` in `init.cc` |
//! | Up to 2.22, ranks of one process can't exchange 16 KiB or more directly from a memory pool to which no other GPU has access. | `NCCL_P2P_DIRECT_DISABLE` in the user guide; `prims_simple.h` |
//! | Communicators that share a GPU communicate one after another. | "Using multiple NCCL communicators concurrently", user guide |
//! | Sums are computed in the order of a tree's chain or of an NVLink switch, not of a ring. | `graph/trees.cc`, `device/all_reduce.h`; no order is documented |
//! | Host calls that may synchronize do: allocating and freeing host or device memory, and loading and unloading modules. | "Implicit Synchronization", CUDA Programming Guide |
//! | Of several operations that could run next, the last one runs first. | "Asynchronous Concurrent Execution", CUDA Programming Guide: streams have no order among themselves |
//!
//! Not imitated: a first use doesn't wait for ranks in other processes. `ncclCommDestroy` and `ncclCommAbort` wait for
//! graphs in every mode, see `departure.rs`.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::call::{Access, Checked, Request};
use super::transfer::Direction;
use super::{Guard, Nccl, State, VERSION};
use virtual_gpu::config::StrictNccl;
use virtual_gpu::time::tuning::Algorithm;
use virtual_gpu_core::handle::{CommId, Rank};
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// How long a host thread blocks when it connects, of the order of what real machines take.
const CONNECTING: Duration = Duration::from_millis(20);

/// The first version that connects at the first use.
const LAZY_CONNECTIONS: i32 = 22_200;

/// The first version that accesses another GPU's buffer directly only if it is registered.
const REGISTERED_ONLY: i32 = 22_300;

/// The size in bytes from which NCCL uses the protocol that accesses buffers directly.
const SIMPLE_PROTOCOL: u64 = 16 << 10;

/// The setting, which is the same for the entire process.
static STRICT: OnceLock<Option<StrictNccl>> = OnceLock::new();

/// Sets whether this process's NCCL is strict. Only the first call has an effect.
pub(crate) fn set(strict: Option<StrictNccl>) {
    let _ = STRICT.set(strict);
}

fn strict() -> Option<StrictNccl> {
    STRICT.get().copied().flatten()
}

/// Returns whether NCCL is strict.
pub(crate) fn is_strict() -> bool {
    strict().is_some()
}

/// Returns the version of the NCCL that is imitated, as `ncclGetVersion` encodes it.
pub(crate) fn version() -> i32 {
    strict().map_or(VERSION, |strict| strict.version)
}

/// Something that a rank connects at its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Connection {
    Algorithm(Algorithm),
    Peer(Rank, Direction),
}

impl Connection {
    fn of(call: &Checked) -> Option<Self> {
        match call.request {
            Request::Collective(..) => {
                let choice = call.plan.as_ref()?.choice?;
                Some(Self::Algorithm(choice.algorithm))
            }
            Request::Transfer(transfer, _) => Some(Self::Peer(transfer.peer, transfer.direction)),
            Request::OneSided(_) => None,
        }
    }
}

impl std::fmt::Display for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Algorithm(algorithm) => write!(f, "{algorithm:?}"),
            Self::Peer(peer, _) => write!(f, "rank {peer}"),
        }
    }
}

impl State {
    /// Returns a rank in this process that must connect before `call` can go on, if there is one.
    fn not_connected(&self, call: &Checked, connection: Connection) -> Option<Rank> {
        let comm = self.communicators.get(&call.comm)?;
        if comm.failed.is_some() || comm.ranks[call.rank].left.is_some() {
            return None;
        }
        let is_missing = |rank: Rank, needed: Connection| {
            let state = &comm.ranks[rank];
            state.process.is_none() && state.left.is_none() && !state.connected.contains(&needed)
        };
        match connection {
            Connection::Algorithm(_) => {
                comm.ranks.iter().map(|(rank, _)| rank).find(|&rank| is_missing(rank, connection))
            }
            Connection::Peer(peer, direction) => {
                let needed = Connection::Peer(call.rank, direction.other());
                is_missing(peer, needed).then_some(peer)
            }
        }
    }
}

/// How an abort is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortLog {
    /// When it starts, by each rank.
    Start,
    /// When it is complete, by each rank.
    Complete,
    /// When it is complete, by the process's last rank.
    LastComplete,
}

impl AbortLog {
    pub(crate) fn of_version(version: i32) -> Self {
        match version {
            ..22_200 => Self::Complete,
            22_200..22_803 => Self::LastComplete,
            _ => Self::Start,
        }
    }
}

impl Nccl {
    /// Blocks the calling thread for as long as NCCL takes to create a communicator.
    pub(crate) fn create_slowly<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        let Some(strict) = strict() else { return guard };
        self.unlock_and_wake(guard);
        sleep(strict.init);
        self.lock()
    }

    /// Blocks the calling thread if calls are the first to use an algorithm or a peer, until the other ranks in this
    /// process have made such calls, too.
    ///
    /// # Errors
    /// Returns `SystemError` if they have not made them within the timeout.
    pub(crate) fn connect_first_uses<'a>(
        &'a self,
        calls: &[Checked],
        mut guard: Guard<'a>,
    ) -> NcclResult<Guard<'a>> {
        if !is_strict() || version() < LAZY_CONNECTIONS {
            return Ok(guard);
        }
        let mut connecting = Vec::new();
        for call in calls {
            let comm = guard.nccl.communicators.get_mut(&call.comm);
            if let (Some(comm), Some(connection)) = (comm, Connection::of(call))
                && comm.ranks[call.rank].connected.insert(connection)
            {
                connecting.push((call, connection));
            }
        }
        if connecting.is_empty() {
            return Ok(guard);
        }
        self.unlock_and_wake(guard);
        sleep(CONNECTING);
        let started = Instant::now();
        let mut guard = self.lock();
        for (call, connection) in connecting {
            while let Some(missing) = guard.nccl.not_connected(call, connection) {
                if started.elapsed() > self.engine.config().timeout.duration {
                    let message = format!(
                        "virtual GPU: {}: this is the rank's first use of {connection}, so NCCL waits until rank {missing} connects, too",
                        call.request
                    );
                    return Err(Error::new(NcclStatus::SystemError, message));
                }
                guard = self.wait_for_change(guard);
            }
        }
        Ok(guard)
    }

    /// Refuses a buffer that this version of NCCL would let another GPU access directly, if no other GPU can access it.
    ///
    /// # Errors
    /// Returns `UnhandledCudaError` for such a buffer.
    pub(crate) fn check_direct_access(
        &self,
        comm: CommId,
        access: &Access,
        request: &Request,
        device: usize,
    ) -> NcclResult<()> {
        let is_direct = is_strict()
            && version() < REGISTERED_ONLY
            && access.bytes >= SIMPLE_PROTOCOL
            && std::env::var_os("NCCL_P2P_DIRECT_DISABLE").is_none_or(|value| value == "0");
        if !is_direct || !self.lock().nccl.communicator(comm)?.has_several_ranks_here() {
            return Ok(());
        }
        let device = self.memory_of_buffer(access.address, device);
        let memory = self.engine.memory(device);
        let allocation = memory.in_slot(memory.slot_of(access.address).unwrap_or_default());
        if !allocation.is_some_and(|allocation| allocation.is_pooled()) {
            return Ok(());
        }
        let message = format!(
            "virtual GPU: {request}: this version of NCCL lets the other GPUs access the buffer at {:#x} directly, but it comes from a \
             memory pool, to which they have no access; set NCCL_P2P_DIRECT_DISABLE=1",
            access.address
        );
        Err(Error::new(NcclStatus::UnhandledCudaError, message))
    }
}

/// What a rank has connected so far.
pub(crate) type Connected = HashSet<Connection>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_is_logged_as_the_version_does() {
        assert_eq!(AbortLog::of_version(21_805), AbortLog::Complete);
        assert_eq!(AbortLog::of_version(22_105), AbortLog::Complete);
        assert_eq!(AbortLog::of_version(22_203), AbortLog::LastComplete);
        assert_eq!(AbortLog::of_version(22_705), AbortLog::LastComplete);
        assert_eq!(AbortLog::of_version(22_803), AbortLog::Start);
        assert_eq!(AbortLog::of_version(VERSION), AbortLog::Start);
    }
}
