//! Races in shared memory: both accesses, and where they happened.

use std::fmt;

use crate::fault::{Access, ThreadReport};

/// A location in shared memory, with the name that the program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLocation {
    /// The variable's name in the program; `None` in dynamic shared memory.
    pub variable: Option<String>,
    /// The offset in the variable, in bytes.
    pub offset: u64,
}

impl fmt::Display for SharedLocation {
    /// Writes, for example, ``byte 16 of `tile` ``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Some(name) => write!(f, "byte {} of `{name}`", self.offset),
            None => write!(f, "byte {} of dynamic shared memory", self.offset),
        }
    }
}

/// Unordered accesses by two threads of a block or cluster to the same bytes of shared memory. At least one of the accesses is a
/// write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The access that was executed first in this run.
    pub earlier: ThreadReport,
    /// The later access, at which the race was detected.
    pub later: ThreadReport,
    /// The later access's first byte.
    pub location: SharedLocation,
    /// Whether both threads belong to the same warp.
    pub in_warp: bool,
    /// Whether the earlier access is an asynchronous copy or store that is not complete.
    pub under_way: bool,
    /// The block whose shared memory it is, if a thread of another block of its cluster accesses it.
    pub owner: Option<[u32; 3]>,
    /// Whether, instead of another access, that block's start or end is not ordered. Both accesses are then the same.
    pub lifetime: Option<Lifetime>,
}

/// When a block's shared memory can't be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Before the block has started.
    Start,
    /// After the block has ended.
    End,
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "may not have started",
            Self::End => "may have ended",
        })
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(lifetime), Some([x, y, z])) = (self.lifetime, self.owner) {
            return write!(f, "{}, {} of block ({x},{y},{z}), which {lifetime}", self.later, self.location);
        }
        write!(
            f,
            "{}, {}: {}; nothing orders it after {}{}",
            self.later,
            self.location,
            self.kind(),
            self.earlier,
            if self.under_way { ", a copy that its thread has not waited for" } else { "" }
        )
    }
}

impl Race {
    /// Returns `read after write`, `write after read`, or `write after write`.
    pub fn kind(&self) -> &'static str {
        let wrote = |report: &ThreadReport| report.access.is_none_or(|access| access.access != Access::Read);
        match (wrote(&self.earlier), wrote(&self.later)) {
            (true, false) => "read after write",
            (false, _) => "write after read",
            (true, true) => "write after write",
        }
    }
}
