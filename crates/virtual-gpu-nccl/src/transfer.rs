//! The arguments of a point-to-point call.

use virtual_gpu_core::handle::Rank;
use virtual_gpu_machine::reduction::DataType;

/// The end of a message that a call handles: sending or receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `ncclSend`.
    Send,
    /// `ncclRecv`.
    Receive,
}

impl Direction {
    /// Returns the name of the C function.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Send => "ncclSend",
            Self::Receive => "ncclRecv",
        }
    }

    /// Returns the direction at the other end.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

/// A send or a receive. `R` is the type of its peer: the `i32` that C code passes, or a [`Rank`] once it has been
/// checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer<R = Rank> {
    /// Whether this is a send or a receive.
    pub direction: Direction,
    /// The rank at the other end.
    pub peer: R,
    /// The number of elements.
    pub count: u64,
    /// The type of the elements.
    pub data_type: DataType,
}

impl Transfer<i32> {
    /// Returns the transfer with a peer that is known to exist.
    ///
    /// # Errors
    /// Returns the peer if a communicator of `world_size` ranks has no such rank.
    pub(crate) fn checked(self, world_size: usize) -> Result<Transfer, i32> {
        let Self { direction, peer, count, data_type } = self;
        let peer = Rank::checked(peer, world_size).ok_or(peer)?;
        Ok(Transfer { direction, peer, count, data_type })
    }
}

impl Transfer {
    /// Returns the number of bytes to move.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    /// Returns whether a send and a receive agree on the data to move.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        (self.count, self.data_type) == (other.count, other.data_type)
    }
}

impl std::fmt::Display for Transfer {
    /// Formats as `ncclSend(count 10, float32, to rank 2)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = match self.direction {
            Direction::Send => "to",
            Direction::Receive => "from",
        };
        write!(
            f,
            "{}(count {}, {}, {way} rank {})",
            self.direction.function(),
            self.count,
            self.data_type,
            self.peer
        )
    }
}
