//! The arguments of one-sided calls.

use virtual_gpu_core::handle::Rank;
use virtual_gpu_machine::reduction::DataType;

/// A one-sided call. `R` is the type of its peer: the `i32` that C code passes, or a [`Rank`] once it has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided<R = Rank> {
    /// `ncclPutSignal`.
    Put(Put<R>),
    /// `ncclSignal`.
    Signal {
        /// The rank to signal.
        peer: R,
    },
    /// One descriptor of `ncclWaitSignal`.
    Wait {
        /// The rank whose signals the call waits for.
        peer: R,
        /// The number of signals.
        count: u64,
    },
}

/// The arguments of `ncclPutSignal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<R = Rank> {
    /// The rank to write to.
    pub peer: R,
    /// The device address of the data.
    pub buffer: u64,
    /// The number of elements.
    pub count: u64,
    /// The type of the elements.
    pub data_type: DataType,
    /// The calling rank's handle of the window to write to.
    pub window: u64,
    /// The offset in the peer's window in bytes.
    pub offset: u64,
}

impl<R: Copy> OneSided<R> {
    /// Returns the name of the C function.
    pub(crate) fn function(&self) -> &'static str {
        match self {
            Self::Put(_) => "ncclPutSignal",
            Self::Signal { .. } => "ncclSignal",
            Self::Wait { .. } => "ncclWaitSignal",
        }
    }

    /// Returns the rank at the other end.
    pub(crate) fn peer(&self) -> R {
        match self {
            Self::Put(put) => put.peer,
            Self::Signal { peer } | Self::Wait { peer, .. } => *peer,
        }
    }
}

impl OneSided<i32> {
    /// Returns the call with a peer that is known to exist.
    ///
    /// # Errors
    /// Returns the peer if a communicator of `world_size` ranks has no such rank.
    pub(crate) fn checked(self, world_size: usize) -> Result<OneSided, i32> {
        let peer = Rank::checked(self.peer(), world_size).ok_or(self.peer())?;
        Ok(match self {
            Self::Put(Put { buffer, count, data_type, window, offset, .. }) => {
                OneSided::Put(Put { peer, buffer, count, data_type, window, offset })
            }
            Self::Signal { .. } => OneSided::Signal { peer },
            Self::Wait { count, .. } => OneSided::Wait { peer, count },
        })
    }
}

impl<R> Put<R> {
    /// Returns the number of bytes to write.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }
}

impl std::fmt::Display for OneSided {
    /// Formats as `ncclPutSignal(count 10, float32, to rank 2 at offset 64)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(", self.function())?;
        match self {
            Self::Put(Put { peer, count, data_type, offset, .. }) => {
                write!(f, "count {count}, {data_type}, to rank {peer} at offset {offset})")
            }
            Self::Signal { peer } => write!(f, "to rank {peer})"),
            Self::Wait { peer, count } => {
                let signals = if *count == 1 { "signal" } else { "signals" };
                write!(f, "{count} {signals} from rank {peer})")
            }
        }
    }
}
