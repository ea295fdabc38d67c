//! What operations do, how they appear in a trace, and how the clock treats them.

use std::sync::Arc;

use super::elsewhere::{OwnRecord, RecordElsewhere};
use super::host::HostFunction;
use super::host_memory::{HostRead, HostSide, HostWrite};
use super::launch::KernelLaunch;
use super::region::Region;
use super::value::ValueOperation;
use crate::time::Class;
use crate::time::trace::Label;
use virtual_gpu_core::handle::CallKey;
use virtual_gpu_core::sync::Mutex;

/// The work that an operation does when its turn comes.
#[derive(Clone)]
pub(super) enum Work {
    /// Nothing: only the operation's position on the stream matters.
    Nothing,
    /// Records an event.
    Record,
    /// Records an event for other processes.
    RecordFor(Arc<OwnRecord>),
    /// Waits for an event.
    Wait,
    /// Waits for a record by another process.
    WaitElsewhere(RecordElsewhere),
    /// Copies host bytes, which were read during the call, to the device.
    Upload {
        to: Region,
        bytes: Vec<u8>,
    },
    /// Copies device bytes to the slot that the caller is waiting for.
    Download {
        from: Region,
        into: Arc<Mutex<Vec<u8>>>,
    },
    /// Copies host bytes, which are read when the operation's turn comes, to the device.
    UploadLater {
        to: Region,
        read: HostRead,
        host: HostSide,
    },
    /// Copies device bytes to the host; the calling thread may or may not wait for the copy.
    DownloadLater {
        from: Region,
        write: HostWrite,
        host: HostSide,
    },
    /// Copies as many bytes as both regions have, row by row.
    Copy {
        from: Region,
        to: Region,
    },
    Set {
        at: Region,
        /// The four bytes to repeat.
        pattern: [u8; 4],
        /// How many of them are an element.
        element: u8,
    },
    /// Allocates memory that a graph owns.
    Allocate {
        at: u64,
    },
    Free {
        at: u64,
        /// Whether a graph owns the memory, which then remains reserved.
        of_graph: bool,
    },
    Kernel(Box<KernelLaunch>),
    /// Writes a number in memory, or waits for one.
    Value(ValueOperation),
    /// One of the program's functions; `None` once the thread that runs it has taken it.
    Host(Option<HostFunction>),
    /// One rank's part of a collective.
    Collective(CallKey),
}

impl Work {
    /// Returns the operation's label for a trace; `None` if traces don't show it.
    pub(super) fn label(&self) -> Option<Label> {
        let copy = |name: &str, bytes: u64| Some(Label::new("copy", name).with("bytes", bytes));
        match self {
            Self::Nothing | Self::Allocate { .. } | Self::Free { .. } | Self::Value(_) => None,
            Self::Record | Self::RecordFor(_) => Some(Label::new("event", "record")),
            Self::Wait | Self::WaitElsewhere(_) => Some(Label::new("event", "wait")),
            Self::Upload { bytes, .. } => copy("copy to the device", bytes.len() as u64),
            Self::UploadLater { to, .. } => copy("copy to the device", to.bytes()),
            Self::Download { from, .. } | Self::DownloadLater { from, .. } => {
                copy("copy to the host", from.bytes())
            }
            Self::Copy { to, .. } => copy("copy", to.bytes()),
            Self::Set { at, .. } => copy("memset", at.bytes()),
            Self::Kernel(launch) => Some(Label::new("kernel", launch.name())),
            Self::Host(_) => Some(Label::new("host function", "host function")),
            Self::Collective(_) => Some(Label::new("collective", "a collective")),
        }
    }

    /// Returns how the clock treats the operation.
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Nothing | Self::Allocate { .. } | Self::Free { .. } | Self::Value(_) => Class::Nothing,
            Self::Record | Self::RecordFor(_) => Class::Record,
            Self::Wait | Self::WaitElsewhere(_) => Class::Wait,
            Self::Host(_) => Class::Host,
            Self::Collective(_) => Class::Communication,
            Self::Upload { .. }
            | Self::Download { .. }
            | Self::UploadLater { .. }
            | Self::DownloadLater { .. }
            | Self::Copy { .. }
            | Self::Set { .. }
            | Self::Kernel(_) => Class::Engine,
        }
    }
}

impl std::fmt::Display for Work {
    /// Formats the operation's name for reports.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing | Self::Record | Self::RecordFor(_) | Self::Wait | Self::WaitElsewhere(_) => {
                f.write_str("an event")
            }
            Self::Upload { .. } | Self::UploadLater { .. } => f.write_str("a copy from the host"),
            Self::Download { .. } | Self::DownloadLater { .. } => f.write_str("a copy to the host"),
            Self::Copy { .. } => f.write_str("a copy"),
            Self::Set { .. } => f.write_str("a memset"),
            Self::Allocate { .. } => f.write_str("an allocation"),
            Self::Free { .. } => f.write_str("a free"),
            Self::Kernel(launch) => write!(f, "kernel `{}`", launch.name()),
            Self::Value(ValueOperation::Write(_)) => f.write_str("a value write"),
            Self::Value(ValueOperation::Wait(..)) => f.write_str("a value wait"),
            Self::Value(ValueOperation::Barrier) => f.write_str("a memory barrier"),
            Self::Host(_) => f.write_str("a host function"),
            Self::Collective(_) => f.write_str("a collective"),
        }
    }
}
