//! Which entries on different ranks belong together.

use std::fmt;

use super::Entry;

/// A call that several ranks make together. Two entries are parts of the same call if their `Call`s are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A collective, which every rank of the group has to call.
    Collective {
        /// The process group's name.
        group: String,
        /// The collective's number in the group, counted from 1.
        number: u64,
    },
    /// A message, which one rank has to send and another to receive.
    Message {
        /// The process group's name.
        group: String,
        /// The sender's number in the group.
        from: usize,
        /// The receiver's number in the group.
        to: usize,
    },
}

impl Call {
    pub(super) fn of(entry: &Entry) -> Self {
        let group = entry.process_group.0.clone();
        match ends(&entry.profiling_name) {
            Some((from, to)) => Self::Message { group, from, to },
            None => Self::Collective { group, number: entry.collective_seq_id },
        }
    }

    /// Returns the process group's name.
    pub fn group(&self) -> &str {
        match self {
            Self::Collective { group, .. } | Self::Message { group, .. } => group,
        }
    }
}

/// Returns the sender and the receiver of `nccl:send 3->4` or `nccl:recv 4<-3`.
fn ends(name: &str) -> Option<(usize, usize)> {
    let (_, ends) = name.split_once(' ')?;
    let number = |text: &str| text.parse().ok();
    match ends.split_once("->") {
        Some((from, to)) => Some((number(from)?, number(to)?)),
        None => {
            let (to, from) = ends.split_once("<-")?;
            Some((number(from)?, number(to)?))
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective { group, number } => write!(f, "collective {number} of group {group}"),
            Self::Message { group, from, to } => write!(f, "message {from}->{to} of group {group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn both_ends_of_a_message_name_the_same_ranks() {
        assert_eq!(ends("nccl:send 3->14"), Some((3, 14)));
        assert_eq!(ends("nccl:recv 14<-3"), Some((3, 14)));
        assert_eq!(ends("nccl:all_reduce"), None);
    }
}
