//! What a call costs, and where it puts its work.

use crate::calls::Call;

/// A resource that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    Collectives,
    BytesToNccl,
    Messages,
    Puts,
    Groups,
    Kernels,
    BytesToDevice,
    BytesToHost,
    BytesOnDevice,
    Copies,
    Fills,
    Allocations,
    Contexts,
    Streams,
    Events,
    HostWaits,
    Polls,
    Communicators,
    Modules,
}

impl Cost {
    /// Returns how much of the resource a call uses.
    pub(super) fn of(self, call: &Call) -> u64 {
        let function = call.function.as_str();
        let is = |spends: bool| u64::from(spends);
        let bytes = |direction: &str| match function.strip_prefix(direction) {
            Some("" | "Async") => call.arguments[2],
            _ => 0,
        };
        match self {
            Self::Collectives => is(collective(call).is_some()),
            Self::BytesToNccl => bytes_to_nccl(call),
            Self::Messages => is(matches!(function, "ncclSend" | "ncclRecv")),
            Self::Puts => is(function == "ncclPutSignal"),
            Self::Groups => is(function == "ncclGroupStart"),
            Self::Kernels => is(function.starts_with("cuLaunch") && function.contains("Kernel")),
            Self::BytesToDevice => bytes("cuMemcpyHtoD"),
            Self::BytesToHost => bytes("cuMemcpyDtoH"),
            Self::BytesOnDevice if function == "cuMemcpyPeerAsync" => call.arguments[4],
            Self::BytesOnDevice => bytes("cuMemcpyDtoD"),
            Self::Copies => is(function.starts_with("cuMemcpy")),
            Self::Fills => is(function.starts_with("cuMemset")),
            Self::Allocations => {
                is(["cuMemAlloc", "cuMemHostAlloc"].iter().any(|it| function.starts_with(it)))
            }
            Self::Contexts => {
                is(function == "cuDevicePrimaryCtxRetain" || function.starts_with("cuCtxCreate"))
            }
            Self::Streams => is(function.starts_with("cuStreamCreate")),
            Self::Events => is(function == "cuEventCreate"),
            Self::HostWaits => is(matches!(
                function,
                "cuStreamSynchronize"
                    | "cuEventSynchronize"
                    | "cuCtxSynchronize"
                    | "cuMemcpyDtoH"
                    | "cuMemcpyHtoD"
                    | "cuMemcpyDtoD"
            )),
            Self::Polls => is(matches!(function, "cuStreamQuery" | "cuEventQuery")),
            Self::Communicators => match function {
                "ncclCommInitAll" => call.arguments[1],
                "ncclCommSplit" => 1,
                _ => is(function.starts_with("ncclCommInitRank")),
            },
            Self::Modules => is(function.starts_with("cuModuleLoad")),
        }
    }

    /// Returns the unit of the amounts of calls, unless a call always counts as one.
    pub(super) fn unit(self) -> Option<&'static str> {
        let bytes = [Self::BytesToNccl, Self::BytesToDevice, Self::BytesToHost, Self::BytesOnDevice];
        bytes.contains(&self).then_some("bytes")
    }

    /// Returns the verb and object for a sentence.
    pub(super) fn in_words(self, amount: u64) -> String {
        let (verb, one, more) = match self {
            Self::Collectives => ("makes", "collective", "collectives"),
            Self::BytesToNccl => ("passes", "byte to NCCL", "bytes to NCCL"),
            Self::Messages => ("makes", "send or receive", "sends and receives"),
            Self::Puts => ("makes", "put", "puts"),
            Self::Groups => ("opens", "group", "groups"),
            Self::Kernels => ("launches", "kernel", "kernels"),
            Self::BytesToDevice => ("copies", "byte from the host to a GPU", "bytes from the host to a GPU"),
            Self::BytesToHost => ("copies", "byte from a GPU to the host", "bytes from a GPU to the host"),
            Self::BytesOnDevice => ("copies", "byte between device buffers", "bytes between device buffers"),
            Self::Copies => ("makes", "copy", "copies"),
            Self::Fills => ("fills", "buffer", "buffers"),
            Self::Allocations => ("allocates", "buffer", "buffers"),
            Self::Contexts => ("opens", "context", "contexts"),
            Self::Streams => ("makes", "stream", "streams"),
            Self::Events => ("makes", "event", "events"),
            Self::HostWaits => ("makes the host wait", "time", "times"),
            Self::Polls => ("polls", "time", "times"),
            Self::Communicators => ("makes", "communicator", "communicators"),
            Self::Modules => ("loads", "module", "modules"),
        };
        format!("{verb} {} {}", number(amount), if amount == 1 { one } else { more })
    }
}

/// Returns the calls that open a group while none is open.
pub(super) fn outermost_groups(calls: &[Call]) -> Vec<&Call> {
    let mut open = 0_usize;
    let mut outermost = Vec::new();
    for call in calls {
        match call.function.as_str() {
            "ncclGroupStart" => {
                if open == 0 {
                    outermost.push(call);
                }
                open += 1;
            }
            "ncclGroupEnd" => open = open.saturating_sub(1),
            _ => {}
        }
    }
    outermost
}

/// Returns the kind and the count of a collective, if the call is one.
pub(super) fn collective(call: &Call) -> Option<(&str, usize)> {
    let kind = call.function.strip_prefix("nccl")?;
    Some((kind, call.arguments[count_argument(kind)?] as usize))
}

/// Returns the index of a collective's argument with the element count. The argument after it is the type.
fn count_argument(kind: &str) -> Option<usize> {
    match kind {
        "AllReduce" | "Broadcast" | "Reduce" | "AllGather" | "ReduceScatter" | "AlltoAll" | "Gather"
        | "Scatter" => Some(2),
        "Bcast" => Some(1),
        _ => None,
    }
}

/// Returns the bytes that a rank sends in a call, if the ranks form a ring. In an all-reduce, each rank sends every part but
/// one twice; in a broadcast or a reduction to one rank, it passes all of the buffer on.
pub(crate) fn sent(call: &Call) -> u64 {
    let passed = bytes_to_nccl(call);
    if passed == 0 {
        return 0;
    }
    let comm = call.arguments[call.arguments.len() - 2] as cudarc::nccl::sys::ncclComm_t;
    // SAFETY: the virtual NCCL's communicators are handles, and it rejects one that no longer exists.
    let ranks = unsafe { cudarc::nccl::result::comm_count(comm) }.map_or(2, |ranks| ranks.max(1) as u64);
    match call.function.as_str() {
        "ncclSend" => passed,
        "ncclAllReduce" => 2 * passed * (ranks - 1) / ranks,
        "ncclBroadcast" | "ncclBcast" | "ncclReduce" => passed * u64::from(ranks > 1),
        // The count is that of one rank's part.
        _ => passed * (ranks - 1),
    }
}

/// Returns the bytes that a call passes to a collective or sends: 0 if it does neither.
fn bytes_to_nccl(call: &Call) -> u64 {
    let count = match call.function.strip_prefix("nccl") {
        Some("Send") => Some(1),
        kind => kind.and_then(count_argument),
    };
    let Some(count) = count else { return 0 };
    // The numbers of `ncclDataType_t`.
    let size = match call.arguments[count + 1] {
        4 | 5 | 8 => 8,
        2 | 3 | 7 => 4,
        6 | 9 => 2,
        _ => 1,
    };
    call.arguments[count] * size
}

/// Returns the stream that a call enqueues work on. 0 is the default stream.
pub(super) fn enqueued_on(call: &Call) -> Option<u64> {
    let function = call.function.as_str();
    let arguments = &call.arguments;
    match function {
        // These have no stream argument, and use the default stream.
        "cuMemcpyHtoD" | "cuMemcpyDtoH" | "cuMemcpyDtoD" | "cuMemsetD8" | "cuMemsetD16" | "cuMemsetD32" => {
            Some(0)
        }
        "cuLaunchKernel" | "cuLaunchCooperativeKernel" => arguments.get(8).copied(),
        "ncclSend" | "ncclRecv" | "ncclPutSignal" | "ncclSignal" | "ncclWaitSignal" => {
            arguments.last().copied()
        }
        _ if function.starts_with("cuMemcpy") || function.starts_with("cuMemset") => {
            arguments.last().copied()
        }
        _ => collective(call).and_then(|_| arguments.last().copied()),
    }
}

/// Formats a number with commas between thousands.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
