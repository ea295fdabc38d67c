//! Handles and keys that more than one layer uses.

/// The maximum number of GPUs. Real nodes have up to 16, but a program that trains on a thousand runs here, too.
pub const MAX_GPUS: usize = 1024;

/// A `CUstream`. 0 and 1 mean the current context's legacy default stream, and 2 means the thread's own default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u64);

/// The `number`th operation on a stream, counting from 1. A stream's operations complete in order, so this number
/// identifies one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpRef {
    /// The stream.
    pub stream: StreamHandle,
    /// The operation's number on the stream.
    pub number: u64,
}

/// The sequence number of an operation across all streams, counting from 1. A call that frees memory has one, too.
///
/// [`OpRef::number`] is a different number: each stream counts its own operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationNumber(pub u64);

/// An `ncclComm_t`: one rank's handle to a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommHandle(pub u64);

/// A communicator, shared by all of its ranks in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u64);

/// The number of a rank in its communicator, counting from 0.
///
/// C code passes roots and peers as an `i32`, which may be any number. [`Rank::checked`] turns it into a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub usize);

/// The number of a call among calls of the same kind on its communicator, counting from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceNumber(pub u64);

/// A call that waits for other ranks of its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKey {
    /// A collective: it waits for all ranks' streams.
    Collective(CollectiveId),
    /// The sends and receives that one rank launches together.
    PointToPoint(PointToPointId),
    /// The puts, signals, and waits for signals that one rank launches together.
    OneSided(OneSidedId),
    /// A call in which all ranks' threads wait: a split or a finalize.
    Management(ManagementId),
}

/// A collective on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectiveId {
    /// The communicator.
    pub comm: CommId,
    /// The collective's number among the communicator's collectives.
    pub sequence: SequenceNumber,
}

/// The sends and receives that a rank launches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointToPointId {
    /// The communicator.
    pub comm: CommId,
    /// The rank.
    pub rank: Rank,
    /// The group's number among the rank's groups of sends and receives.
    pub sequence: SequenceNumber,
}

/// The one-sided calls that a rank launches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OneSidedId {
    /// The communicator.
    pub comm: CommId,
    /// The rank.
    pub rank: Rank,
    /// The group's number among the rank's groups of one-sided calls.
    pub sequence: SequenceNumber,
}

/// A split or finalize on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagementId {
    /// The communicator.
    pub comm: CommId,
    /// Its number among the communicator's splits and finalizes.
    pub sequence: SequenceNumber,
}

impl CallKey {
    /// Returns the communicator.
    #[must_use]
    pub fn comm(self) -> CommId {
        match self {
            Self::Collective(id) => id.comm,
            Self::PointToPoint(id) => id.comm,
            Self::OneSided(id) => id.comm,
            Self::Management(id) => id.comm,
        }
    }
}

impl OperationNumber {
    /// Returns the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Rank {
    /// Returns the rank with this number; `None` if a communicator of `world_size` ranks has no such rank.
    #[must_use]
    pub fn checked(number: i32, world_size: usize) -> Option<Self> {
        usize::try_from(number).ok().map(Self).filter(|rank| rank.0 < world_size)
    }

    /// Returns all ranks of a communicator of `world_size` ranks.
    pub fn all(world_size: usize) -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..world_size).map(Self)
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl SequenceNumber {
    /// Returns the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_less_than_the_world_size() {
        assert_eq!(Rank::checked(0, 2), Some(Rank(0)));
        assert_eq!(Rank::checked(1, 2), Some(Rank(1)));
        assert_eq!(Rank::checked(2, 2), None);
        assert_eq!(Rank::checked(-1, 2), None);
        assert_eq!(Rank::checked(i32::MIN, usize::MAX), None);
        assert_eq!(Rank::all(3).collect::<Vec<_>>(), [Rank(0), Rank(1), Rank(2)]);
    }
}
