//! A message, its two ends, and where they are.

use std::sync::Arc;

use crate::call::Request;
use crate::event::{Arrived, MessageName, Stamp};
use crate::session::ProcessNumber;
use crate::transfer::{Direction, Transfer};
use virtual_gpu_core::handle::{CommId, OperationNumber, PointToPointId, Rank, SequenceNumber};
use virtual_gpu_core::source_location::CallSite;

/// A message from one rank of a communicator to another, identified by its sequence number among the messages between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageKey {
    pub(crate) comm: CommId,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) sequence: SequenceNumber,
}

impl MessageKey {
    pub(super) fn of(comm: CommId, rank: Rank, transfer: &Transfer, sequence: SequenceNumber) -> Self {
        let peer = transfer.peer;
        match transfer.direction {
            Direction::Send => Self { comm, from: rank, to: peer, sequence },
            Direction::Receive => Self { comm, from: peer, to: rank, sequence },
        }
    }

    /// Identifies the group of calls that the rank at the given end launched together, by the group's sequence number.
    pub(super) fn call_at(&self, end: Direction, sequence: SequenceNumber) -> PointToPointId {
        PointToPointId { comm: self.comm, rank: self.rank(end), sequence }
    }

    /// Returns the rank at the given end of the message.
    pub(crate) fn rank(&self, end: Direction) -> Rank {
        match end {
            Direction::Send => self.from,
            Direction::Receive => self.to,
        }
    }
}

pub(super) struct Message {
    pub(super) ends: [Option<End>; 2],
    pub(super) running: bool,
}

/// One end of a message, with the arguments of its call.
#[derive(Clone)]
pub(crate) struct End {
    pub(super) location: EndLocation,
    pub(crate) transfer: Transfer,
    pub(crate) buffer: u64,
    pub(super) is_captured: bool,
    pub(crate) call_site: CallSite,
}

/// The process that one end of a message is in.
#[derive(Clone)]
pub(super) enum EndLocation {
    /// This process; the number identifies one of the rank's groups of sends and receives.
    Here(SequenceNumber),
    /// Another process. Holds the arrival once the stream there has reached the call.
    Elsewhere(Option<Arc<Arrived>>),
}

impl End {
    /// Creates the end for a rank in another process.
    pub(crate) fn elsewhere(transfer: Transfer, is_captured: bool, call_site: CallSite) -> Self {
        let location = EndLocation::Elsewhere(None);
        Self { location, transfer, buffer: 0, is_captured, call_site }
    }

    pub(crate) fn request(&self) -> Request {
        Request::Transfer(self.transfer, self.buffer)
    }
}

/// An end of a message, with what another process needs to move the message.
pub(crate) struct ReadyEnd {
    pub(crate) message: MessageName,
    pub(crate) end: Direction,
    pub(crate) called: End,
    pub(crate) device: usize,
    /// The sequence number of its operation.
    pub(crate) enqueued: OperationNumber,
    pub(crate) stamp: Stamp,
    /// The number of bytes that its group sends, and the number that it receives.
    pub(crate) bytes: (u64, u64),
    /// The process that needs this end.
    pub(crate) process: ProcessNumber,
}

/// An end of a message that is being moved.
pub(crate) enum MovingEnd {
    /// The end, its GPU, and the sequence number of its operation.
    Here(End, usize, OperationNumber),
    Elsewhere(End, Arc<Arrived>),
}

impl MovingEnd {
    pub(crate) fn end(&self) -> &End {
        match self {
            Self::Here(end, ..) | Self::Elsewhere(end, _) => end,
        }
    }

    /// Returns the end's GPU, if it is in this process.
    pub(crate) fn device(&self) -> Option<usize> {
        match self {
            Self::Here(_, device, _) => Some(*device),
            Self::Elsewhere(..) => None,
        }
    }
}

/// A message that is being moved, with its ends.
pub(crate) struct Moving {
    pub(crate) key: MessageKey,
    pub(crate) ends: [MovingEnd; 2],
}

impl Moving {
    /// Identifies the calls at the message's ends, if they are in this process.
    pub(super) fn calls(&self) -> [Option<PointToPointId>; 2] {
        [Direction::Send, Direction::Receive].map(|end| match &self.ends[end as usize] {
            MovingEnd::Here(End { location: EndLocation::Here(sequence), .. }, ..) => {
                Some(self.key.call_at(end, *sequence))
            }
            _ => None,
        })
    }
}
