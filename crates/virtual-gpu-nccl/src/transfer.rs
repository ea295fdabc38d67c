//! What a point-to-point call is.

use virtual_gpu_machine::reduction::DataType;

/// Which end of a message a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `ncclSend`.
    Send,
    /// `ncclRecv`.
    Receive,
}

impl Direction {
    /// The C function.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Send => "ncclSend",
            Self::Receive => "ncclRecv",
        }
    }

    /// The other end's.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

/// A send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which of the two.
    pub direction: Direction,
    /// The rank at the other end.
    pub peer: i32,
    /// Elements.
    pub count: u64,
    /// Type of the elements.
    pub data_type: DataType,
}

impl Transfer {
    /// Bytes that are moved.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    /// Whether a send and a receive agree on what is moved.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        (self.count, self.data_type) == (other.count, other.data_type)
    }
}

impl std::fmt::Display for Transfer {
    /// `ncclSend(count 10, float32, to rank 2)`
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
