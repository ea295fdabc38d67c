//! Reports about kernels that failed.

use crate::report::{Report, size};
use virtual_gpu_core::memory::{BadAddress, BadFree, DeviceMemory};
use virtual_gpu_core::source_location::{CallSite, SourceLine};
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_machine::{
    Access, Assertion, DeviceRace, Fault, FaultKind, Lifetime, MemoryAccess, Missing, Race, ThreadReport,
};
use virtual_gpu_ptx::instruction::Space;

/// Returns CUDA's result code for a fault.
pub(super) fn status_of(fault: &Fault) -> CudaStatus {
    match fault.kind {
        FaultKind::BadAddress(_)
        | FaultKind::SharedOutOfBounds { .. }
        | FaultKind::LocalOutOfBounds { .. }
        // As on an H200. The documentation has a code of its own for a stack that is too deep.
        | FaultKind::StackOverflow { .. } => CudaStatus::IllegalAddress,
        FaultKind::Misaligned { .. } => CudaStatus::MisalignedAddress,
        FaultKind::Trap => CudaStatus::LaunchFailed,
        FaultKind::Assert(_) => CudaStatus::Assert,
        FaultKind::Endless { .. } | FaultKind::WaitsForever { .. } | FaultKind::ClusterBarrier { .. } => {
            CudaStatus::LaunchTimeout
        }
        FaultKind::DivergentBarrier { .. }
        | FaultKind::DivergentWarp { .. }
        | FaultKind::IncompletePhase { .. }
        | FaultKind::BadFree { .. }
        | FaultKind::Undefined(_)
        | FaultKind::OutsideSurface(_) => CudaStatus::LaunchFailed,
        FaultKind::NoSuchBarrier { .. } => CudaStatus::IllegalInstruction,
    }
}

/// Returns the report for a fault in a kernel that was launched at `launched`.
///
/// `foreign` adds the owner of an address that is not in the kernel's own GPU memory.
pub(super) fn fault_report(
    fault: &Fault,
    launched: &CallSite,
    foreign: impl FnOnce(Report, u64) -> Report,
) -> Report {
    let at = &fault.at;
    let report = Report::new(format!("kernel `{}` {}", at.kernel, headline(fault)));
    let report = with_source(report, at);
    let report = match &fault.kind {
        FaultKind::BadAddress(BadAddress::Unknown) => match at.access.map_or(0, |access| access.address) {
            0 => report.fact("the pointer is null"),
            address => foreign(report, address),
        },
        FaultKind::BadAddress(bad) => bad_address(report, bad, at.access),
        FaultKind::SharedOutOfBounds { size } => {
            report.fact(format!("the block has {size} bytes of shared memory"))
        }
        FaultKind::LocalOutOfBounds { size } => {
            report.fact(format!("a thread has {size} bytes of local memory"))
        }
        FaultKind::Misaligned { needed } => {
            report.fact(format!("the address must be a multiple of {needed}"))
        }
        FaultKind::DivergentBarrier { waiting, expected, ended } => {
            let elsewhere = if waiting + ended < *expected { "; the others are elsewhere" } else { "" };
            report.fact(format!("{waiting} of {expected} threads are waiting; {ended} have ended{elsewhere}"))
        }
        FaultKind::DivergentWarp { members, present } => {
            report.fact(format!("only lanes {present:#010x} of {members:#010x} have arrived"))
        }
        FaultKind::Endless { limit, of_thread } => {
            let whose = if *of_thread { "in that thread" } else { "across all its threads" };
            report.fact(format!("it was stopped after {limit} instructions {whose}"))
        }
        FaultKind::ClusterBarrier { arrived, expected, missing } => with_source_on(
            report
                .fact(format!("{arrived} of {expected} threads of the cluster have arrived at its barrier")),
            missing,
            " has not arrived: it waits here",
        ),
        FaultKind::WaitsForever { waiting, unstarted } => waits_forever(report, *waiting, *unstarted),
        FaultKind::StackOverflow { size: bytes, depth } => report.fact(format!(
            "{depth} calls have not returned, but each thread's stack has only {}",
            size(*bytes)
        )),
        FaultKind::NoSuchBarrier { id } => report.fact(format!("barrier {id}: a block has 0 to 15")),
        FaultKind::IncompletePhase { arrived, expected, transactions } => {
            let report = report.fact(format!("{arrived} of {expected} arrivals have happened"));
            match transactions {
                0 => report,
                _ => report.fact(format!("{transactions} transactions are pending")),
            }
        }
        FaultKind::BadFree { address, why } => bad_free(report, *address, why),
        FaultKind::Undefined(why) => report.fact(*why),
        FaultKind::OutsideSurface(outside) => report.fact(outside.to_string()),
        FaultKind::Trap => report,
        FaultKind::Assert(assertion) => {
            let Assertion { message, file, line, threads, .. } = &**assertion;
            let report =
                report.at_line(format!("assertion `{message}`"), Some(SourceLine::of_kernel(file, *line)));
            match threads.len() {
                0 | 1 => report,
                count => report.fact(format!("it failed for {count} threads of the block at the same time")),
            }
        }
    };
    let report = report.before_at("launched", launched);
    match help(fault) {
        Some(help) => report.help(help),
        None => report,
    }
}

/// Returns the report for a read of unwritten bytes; `memory` is the memory that the kernel ran on.
pub(super) fn unwritten_report(read: &ThreadReport, memory: &DeviceMemory, launched: &CallSite) -> Report {
    let report = Report::new(format!("kernel `{}` reads bytes that nothing wrote", read.kernel));
    let report = with_source(report, read);
    let found = read.access.filter(|access| access.space != Space::Shared).and_then(|access| {
        let (allocation, offset) = memory.range_of_kernel(access.address, u64::from(access.bytes)).ok()?;
        Some((allocation, offset..offset + u64::from(access.bytes)))
    });
    let (report, help) = match found {
        Some((allocation, range)) => {
            let bytes = format!("bytes {}..{}", range.start, range.end);
            let what = format!("{bytes} of the buffer of {} allocated here", size(allocation.size()));
            let help = "fill the buffer first (memcpy_htod, memset_zeros, or a kernel), on this stream or on one that it waits for";
            (report.before_at(what, allocation.call_site()), help)
        }
        None => {
            (report, "let each thread write its part and call __syncthreads() before another thread reads it")
        }
    };
    report.before_at("launched", launched).help(help)
}

/// Returns the report for two unordered accesses to shared memory.
pub(super) fn race_report(race: &Race, launched: &CallSite) -> Report {
    if let (Some(lifetime), Some(owner)) = (race.lifetime, race.owner) {
        return lifetime_report(&race.later, owner, lifetime, launched);
    }
    let (earlier, later) = (&race.earlier, &race.later);
    let report = Report::new(format!("kernel `{}` has a data race in shared memory", later.kernel));
    let report = with_source(with_source(report, earlier), later);
    let [x, y, z] = earlier.thread;
    let whose = race.owner.map_or_else(String::new, |[x, y, z]| format!(" of block ({x},{y},{z})"));
    let report = report
        .fact(format!(
            "{}{whose}: {}, but nothing makes one access wait for the other",
            race.location,
            race.kind()
        ))
        .before_at("launched", launched);
    let barrier = match (race.in_warp, race.owner) {
        (true, _) => "`__syncthreads()` or, within a warp, `__syncwarp()`",
        (false, None) => "`__syncthreads()`",
        (false, Some(_)) => "`cluster.sync()`",
    };
    let (first, second) = (line_of(earlier), line_of(later));
    if race.under_way && race.owner.is_some() {
        return report
            .fact(format!(
                "the copy started at {first} is pending until a thread has waited for its mbarrier"
            ))
            .help("wait for the mbarrier's phase before the access");
    }
    if race.under_way {
        return report.fact(format!("the copy started at {first} is pending until its thread waits for it")).help(
            "call `cp.async.wait_all` (`__pipeline_wait_prior(0)`) in the copying threads; for other threads, add a barrier after it",
        );
    }
    report.help(match (first == second, race.kind()) {
        (true, "write after write") => format!(
            "only one thread may write there at {first} (thread ({x},{y},{z}) did, too), unless all of them write atomically"
        ),
        (true, _) => format!("add {barrier} before threads reach {first} again"),
        (false, _) => format!("add {barrier} between {first} and {second}"),
    })
}

/// Returns the report for an access to the shared memory of a block that may not have started or may have ended.
fn lifetime_report(at: &ThreadReport, owner: [u32; 3], lifetime: Lifetime, launched: &CallSite) -> Report {
    let [x, y, z] = owner;
    let report =
        Report::new(format!("kernel `{}` accesses the shared memory of a block that {lifetime}", at.kernel));
    let report = with_source(report, at).fact(match lifetime {
        Lifetime::Start => format!("nothing makes this thread wait until block ({x},{y},{z}) has started"),
        Lifetime::End => format!("nothing makes block ({x},{y},{z}) wait for this access before it ends"),
    });
    report.before_at("launched", launched).help(match lifetime {
        Lifetime::Start => "call `cluster.sync()` before the first access to another block's shared memory",
        Lifetime::End => "call `cluster.sync()` after the last access to another block's shared memory",
    })
}

/// One of two accesses by launches on different GPUs, or on the same.
pub(super) struct Side<'a> {
    pub(super) gpu: usize,
    pub(super) launched: CallSite,
    pub(super) at: &'a ThreadReport,
}

/// Returns the start of the report for two unordered accesses to device memory, by threads of one launch or of two.
pub(super) fn device_race_report([earlier, later]: [&Side<'_>; 2], is_one_launch: bool) -> Report {
    let (first, second) = (&earlier.at.kernel, &later.at.kernel);
    let headline = match is_one_launch {
        true => format!("kernel `{first}` has a data race on GPU {}: two of its threads", earlier.gpu),
        false if earlier.gpu == later.gpu => {
            format!("data race on GPU {}: kernel `{first}` and kernel `{second}`", earlier.gpu)
        }
        false => format!(
            "data race: kernel `{first}` on GPU {} and kernel `{second}` on GPU {}",
            earlier.gpu, later.gpu
        ),
    };
    let headline = format!("{headline} access the same bytes, and nothing orders the accesses");
    let mut report = Report::new(headline);
    for Side { gpu, at, .. } in [earlier, later] {
        report = with_source_on(report, at, &format!(" on GPU {gpu}"));
    }
    let named = |side: &Side<'_>| format!("kernel `{}` was launched on GPU {}", side.at.kernel, side.gpu);
    let report = report.before_at(named(earlier), &earlier.launched);
    if is_one_launch { report } else { report.before_at(named(later), &later.launched) }
}

/// Adds to a report of a race in device memory why nothing orders the accesses, as far as that is known, and what to do.
pub(super) fn device_race_help(report: Report, race: &DeviceRace, is_across_gpus: bool) -> Report {
    let (fence, narrow) = match is_across_gpus {
        true => ("__threadfence_system()", "another GPU"),
        false => ("__threadfence()", "another block"),
    };
    if race.scope_is_too_small {
        let system = match is_across_gpus {
            true => {
                "use system scope: atomicAdd_system() and the like, cuda::thread_scope_system, or `.sys` in PTX"
            }
            false => "use at least device scope: atomicAdd(), cuda::thread_scope_device, or `.gpu` in PTX",
        };
        return report
            .fact(format!(
                "both accesses are atomic, but the scope of one of them leaves out the threads of {narrow}"
            ))
            .help(system);
    }
    let Some((flag, why)) = &race.why else {
        let ((first_launch, first), (second_launch, second)) = (&race.earlier, &race.later);
        let help = match (first_launch, first.block) == (second_launch, second.block) {
            true => {
                "in between, both threads must wait at the same barrier, such as __syncthreads()".to_owned()
            }
            false => format!(
                "in between, one thread must call {fence} and write a flag (volatile or atomic), and the other must wait for the flag and call {fence}"
            ),
        };
        return report.fact("no flag and no barrier makes one access wait for the other").help(help);
    };
    let line = flag.as_ref().map_or_else(|| "an unknown line".to_owned(), line_of);
    let (fact, help) = match why {
        Missing::WritersFence => (
            format!("the thread that writes the flag at {line} calls no fence before it"),
            format!("call {fence} before the write at {line}"),
        ),
        Missing::ScopeOfWritersFence => (
            format!("the fence before the flag is written at {line} has no effect on threads of {narrow}"),
            format!("call {fence} before the write at {line}"),
        ),
        Missing::ReadersFence => (
            format!("the flag written at {line} was read, but no fence follows the read"),
            format!("call {fence} after the wait for the flag"),
        ),
        Missing::ScopeOfReadersFence => (
            format!("the fence after the flag written at {line} was read has no effect on threads of {narrow}"),
            format!("call {fence} after the wait for the flag"),
        ),
        Missing::LaterFence => (
            format!("the last fence before the flag is written at {line} comes before the first access, or before the barrier that waits for it"),
            format!("call {fence} after that, just before the write at {line}"),
        ),
        Missing::BarrierBeforeFlag => (
            format!("another thread of the block writes the flag at {line}, without having waited for this one"),
            format!("call __syncthreads() (within a warp, __syncwarp()) before the fence and the write at {line}"),
        ),
        Missing::BarrierAfterWait => (
            "another thread of the block has waited for the first access, but this thread has not waited for that one".to_owned(),
            "call __syncthreads() after the wait and its fence".to_owned(),
        ),
        Missing::ScopeOfFlag => (
            format!("the flag written at {line} was read, but the scope of the write or of the read leaves out {narrow}"),
            match is_across_gpus {
                true => "write and read the flag with system scope: volatile, atomicExch_system(), or `.sys` in PTX".to_owned(),
                false => "write and read the flag with at least device scope: volatile, atomicExch(), or `.gpu` in PTX".to_owned(),
            },
        ),
    };
    report.fact(fact).help(help)
}

/// Returns the report for kernels that wait for each other, or for a write that never comes: for each, a thread that is
/// furthest behind, its GPU, and where the kernel was launched.
pub(super) fn waiting_report(mut waiting: Vec<(ThreadReport, usize, CallSite)>) -> Report {
    waiting.sort_by_key(|(_, gpu, _)| *gpu);
    let names: Vec<String> =
        waiting.iter().map(|(at, gpu, _)| format!("kernel `{}` on GPU {gpu}", at.kernel)).collect();
    let headline = match &names[..] {
        [] => "kernels wait forever".to_owned(),
        [one] => format!("{one} waits forever"),
        [all @ .., last] => format!("{} and {last} wait forever", all.join(", ")),
    };
    let mut report = Report::new(headline);
    for (at, gpu, launched) in &waiting {
        report = with_source_on(report, at, &format!(" on GPU {gpu}"))
            .before_at(format!("kernel `{}` was launched on GPU {gpu}", at.kernel), launched);
    }
    let fact = match waiting.len() {
        1 => {
            "it repeats the same instructions, and nothing that runs or is enqueued can change what it reads"
        }
        _ => {
            "each repeats the same instructions, and nothing that runs or is enqueued can change what they read"
        }
    };
    report.fact(fact).help(
        "which thread writes the value that each loop waits for? Is that kernel launched on a stream that can reach it, and does the write come before its own wait?",
    )
}

/// Returns what CUDA prints to standard error for a failed assertion: one line for each thread.
pub(super) fn assertion_lines(assertion: &Assertion, block: [u32; 3]) -> String {
    let Assertion { message, file, line, function, threads } = assertion;
    let [a, b, c] = block;
    let thread = |[x, y, z]: &[u32; 3]| {
        format!(
            "{file}:{line}: {function}: block: [{a},{b},{c}], thread: [{x},{y},{z}] Assertion `{message}` failed.\n"
        )
    };
    threads.iter().map(thread).collect()
}

fn line_of(at: &ThreadReport) -> String {
    match &at.cuda_line {
        Some(line) => SourceLine::of_kernel(&line.file, line.line).to_string(),
        None => format!("PTX line {}", at.ptx_line),
    }
}

fn headline(fault: &Fault) -> &'static str {
    match &fault.kind {
        FaultKind::BadAddress(BadAddress::OutOfBounds { .. })
        | FaultKind::SharedOutOfBounds { .. }
        | FaultKind::LocalOutOfBounds { .. } => "goes out of bounds",
        FaultKind::BadAddress(BadAddress::Freed { .. }) => "uses freed memory",
        FaultKind::BadAddress(BadAddress::Unallocated { .. }) => {
            "uses memory that its graph has not allocated yet"
        }
        FaultKind::BadAddress(BadAddress::Unknown | BadAddress::OfKernels { .. }) => {
            "uses an invalid address"
        }
        FaultKind::BadFree { .. } => "frees an address that it can't free",
        FaultKind::Misaligned { .. } => "uses a misaligned address",
        FaultKind::Trap => "executed a trap",
        FaultKind::Assert(_) => "has an assertion that failed",
        FaultKind::DivergentBarrier { .. } => "has threads waiting at a barrier that others never reach",
        FaultKind::ClusterBarrier { .. } => {
            "has threads waiting at a cluster's barrier that others never reach"
        }
        FaultKind::IncompletePhase { .. } => "waits for an mbarrier whose phase can no longer complete",
        FaultKind::Undefined(_) => "executes an instruction that has no defined result",
        FaultKind::OutsideSurface(_) => "goes outside of a surface",
        FaultKind::DivergentWarp { .. } => "has lanes waiting for others that never arrive",
        FaultKind::Endless { .. } | FaultKind::WaitsForever { .. } => "does not end",
        FaultKind::StackOverflow { .. } => "calls itself too deeply",
        FaultKind::NoSuchBarrier { .. } => "uses a barrier that does not exist",
    }
}

/// Adds the thread, its access, and its source line.
fn with_source(report: Report, at: &ThreadReport) -> Report {
    with_source_on(report, at, "")
}

/// Like [`with_source`], with words that say where the thread runs.
fn with_source_on(report: Report, at: &ThreadReport, place: &str) -> Report {
    let ([a, b, c], [x, y, z]) = (at.block, at.thread);
    let access = at.access.map_or_else(String::new, |MemoryAccess { access, bytes, address, .. }| {
        let verb = match access {
            Access::Read => "reads",
            Access::Write => "writes",
            Access::Atomic => "atomically changes",
        };
        format!(" {verb} {} at {address:#x}", size(u64::from(bytes)))
    });
    let line = at.cuda_line.as_ref().map(|line| SourceLine::of_kernel(&line.file, line.line));
    let text = format!("block ({a},{b},{c}), thread ({x},{y},{z}){place}{access} (PTX line {})", at.ptx_line);
    report.at_line(text, line)
}

fn bad_address(report: Report, bad: &BadAddress, access: Option<MemoryAccess>) -> Report {
    let bytes = access.map_or(0, |access| i64::from(access.bytes));
    match bad {
        BadAddress::OutOfBounds { size: whole, offset, call_site, .. } => {
            let distance = match *offset {
                ..0 => format!("{} before the start", size(offset.unsigned_abs())),
                _ if *offset as u64 >= *whole => match offset.unsigned_abs() - whole {
                    0 => "just past the end".to_owned(),
                    behind => format!("{} past the end", size(behind)),
                },
                _ => format!("reaches {} past the end", size((offset + bytes) as u64 - whole)),
            };
            report
                .before_at(format!("{distance} of the buffer of {} allocated here", size(*whole)), call_site)
        }
        BadAddress::Freed { freed, offset } => report
            .before_at(
                format!("byte {offset} of the buffer of {} allocated here", size(freed.size)),
                &freed.allocated,
            )
            .before_at("freed", &freed.freed),
        BadAddress::Unallocated { size: whole, offset, call_site, .. } => report.before_at(
            format!("byte {offset} of the {} that a graph allocates here", size(*whole)),
            call_site,
        ),
        BadAddress::OfKernels { .. } | BadAddress::Unknown => report,
    }
}

/// Adds why a kernel can't free an address.
fn bad_free(report: Report, address: u64, why: &BadFree) -> Report {
    match why {
        BadFree::NotInHeap { size: bytes, call_site } => report
            .before_at(format!("{address:#x} is the buffer of {} allocated here", size(*bytes)), call_site)
            .fact("`malloc` in a kernel of this context did not return it"),
        BadFree::BadAddress(bad @ BadAddress::Freed { .. }) => bad_address(report, bad, None),
        BadFree::BadAddress(BadAddress::OutOfBounds { offset, size: whole, call_site, .. })
            if (0..*whole as i64).contains(offset) =>
        {
            let what =
                format!("{address:#x} is byte {offset} of the buffer of {} allocated here", size(*whole));
            report.before_at(what, call_site)
        }
        BadFree::BadAddress(_) => report.fact(format!("nothing is allocated at {address:#x}")),
    }
}

fn waits_forever(report: Report, waiting: u64, unstarted: u64) -> Report {
    let report = report.fact("it repeats the same instructions, and nothing can change what it reads");
    match (waiting, unstarted) {
        (1, 0) => report,
        (_, 0) => report.fact(format!("so do all {waiting} blocks that have not ended")),
        _ => report.fact(format!(
            "so do all {waiting} blocks that fit on the GPU at the same time; {unstarted} more start once one of these ends"
        )),
    }
}

/// How to order accesses to memory that a graph owns.
const OWN_ORDER: &str = "make the kernel depend on the allocation node, or launch it after the graph";

fn help(fault: &Fault) -> Option<&'static str> {
    match &fault.kind {
        FaultKind::BadAddress(BadAddress::OutOfBounds { .. }) => {
            Some("does the kernel check its index against the length, and is that the length of this buffer?")
        }
        FaultKind::BadAddress(BadAddress::Unallocated { .. }) => Some(OWN_ORDER),
        FaultKind::DivergentBarrier { .. } => Some(
            "every thread of the block that has not returned must reach the same __syncthreads(): keep it out of conditions",
        ),
        FaultKind::ClusterBarrier { .. } => {
            Some("every thread of the cluster that has not returned must reach the same cluster.sync()")
        }
        FaultKind::WaitsForever { unstarted: 1.., .. } => Some(
            "a block can wait only for a running block: launch fewer blocks (cuOccupancyMaxActiveBlocksPerMultiprocessor returns how many fit), or launch cooperatively",
        ),
        FaultKind::BadFree { .. } => Some(
            "in a kernel, free only pointers from `malloc` or `new`, each exactly once; the host frees its own memory",
        ),
        FaultKind::StackOverflow { .. } => Some(
            "does the recursion end? If it does, request a larger stack: cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes)",
        ),
        _ => None,
    }
}
