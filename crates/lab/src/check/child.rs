//! The child's side: this process, a fork, runs a single check.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use anyhow::{Context, bail};
use virtual_gpu_core::source_location::SourceLine;

use super::definition::Check;
use super::order::{Nonce, OWN_CHECK, Order};
use super::threads::Threads;
use super::timelines::Timelines;
use super::verdict::Record;
use crate::calls::{VirtualDriver, shown};
use crate::explain::causes_text;
use crate::nccl_log::NcclLog;
use crate::panics::panic_text;
use crate::score;
use crate::tier::{ASKED, Tier, attached, own_sources};

/// The exit status of a process whose check failed, as libtest has it.
const FAILED: i32 = 101;

/// Runs the check that the parent orders through a connection, and reports its result there.
pub(super) fn run(checks: &[Check], connection: OwnedFd) -> ExitCode {
    let check = match ordered(checks, connection) {
        Ok(check) => check,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let with_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(&Record::Panic(panic_text(panic)));
        if with_backtrace {
            default_hook(panic);
        }
    }));

    let result = catch_unwind(AssertUnwindSafe(|| {
        let tier = match crate::tier::attach(check.ranks()) {
            Ok(tier) => tier,
            Err(error) => return Ok(Record::Unable(causes_text(&error))),
        };
        if let Some(reason) = check.lacks(Some(tier)) {
            return Ok(Record::Ignored(reason));
        }
        if let Some(reason) = check.lacks_on_these_gpus()? {
            return Ok(Record::Ignored(reason));
        }
        tell(&Record::Calls(check.functions().join(",")));
        // Registered after the driver has started, so that `leaving` runs before the driver's own exit handlers.
        // SAFETY: `leaving` takes no arguments and doesn't unwind.
        unsafe { libc::atexit(leaving) };
        // SAFETY: the check has not started any threads yet, and the harness's own threads access no environment
        // variables.
        unsafe {
            // A program that the check starts runs on the same tier, even if it needs fewer ranks.
            std::env::set_var(ASKED, tier.to_string());
            if tier != Tier::Virtual {
                NcclLog::open_for_check();
            }
        }
        left_behind(|| check.run()).map(|()| Record::Passed)
    }));
    NcclLog::delete_of_check();
    let passed = matches!(result, Ok(Ok(Record::Passed)));
    if let Some(score) = score::take().filter(|_| passed)
        && let Ok(score) = serde_json::to_string(&score)
    {
        tell(&Record::Score(score));
    }
    tell(&match result {
        Ok(Ok(record)) => record,
        Ok(Err(error)) => Record::Failed(causes_text(&error)),
        Err(_) => Record::Failed(String::new()),
    });
    // The verdict stands even if its timeline can't be written.
    if let Err(error) = Timelines::keep(check.name()) {
        eprintln!("can't save the timeline: {error:#}");
    }
    if attached().is_some_and(|tier| tier != Tier::Virtual) {
        // On a GPU that a check has made to fail, the exit handlers of the driver and of NCCL may crash or hang. The
        // verdict stands, and the system releases everything.
        let _ = std::io::stdout().flush();
        // SAFETY: `_exit` only ends the process.
        unsafe { libc::_exit(if passed { 0 } else { FAILED }) };
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED as u8) }
}

/// Receives the order, keeps the connection to the parent, and returns the check to run.
fn ordered(checks: &[Check], connection: OwnedFd) -> anyhow::Result<&Check> {
    let socket = UnixStream::from(connection);
    let order = Order::receive(&socket).context("no order has come for this process")?;
    let number = checks.iter().position(|check| check.name() == order.check);
    let number = number.with_context(|| format!("there is no check `{}`", order.check))?;
    end_with_parent(socket.try_clone()?).context("can't watch the parent")?;
    OWN_CHECK.get_or_init(|| number);
    *channel() = Some(Channel { socket, nonce: order.nonce, process: std::process::id() });
    Ok(&checks[number])
}

/// Runs a check. Fails if an object that the exercise created still exists afterward.
fn left_behind(check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let Some(driver) = VirtualDriver::find()?.filter(|_| own_sources().is_some()) else { return check() };
    driver.track_objects()?;
    let threads = Threads::now();
    check()?;
    let what = match threads.never_ended() {
        0 => None,
        1 => Some("a thread that the exercise started is".to_owned()),
        count => Some(format!("{count} threads that the exercise started are")),
    };
    if let Some(what) = what {
        bail!(
            "{what} still running after everything is done\n  each thread must end before the function returns: tell it to stop, and join the \
             handle that thread::spawn returned"
        );
    }
    let objects = driver.live_objects()?;
    // A buffer that is still alive also keeps its stream and its events alive.
    let is_kept =
        |object: &&(String, SourceLine)| !["a stream", "an event"].contains(&object_name(&object.0));
    let Some(kept) = objects.iter().find(is_kept).or(objects.first()) else { return Ok(()) };
    let (function, line) = kept;
    let count = objects.iter().filter(|object| *object == kept).count();
    let what = match count {
        1 => object_name(function).to_owned(),
        _ => format!("{count} times {}", object_name(function)),
    };
    bail!(
        "{what} is never released: it still exists after everything that the function returned has been dropped\n{}\n  \
         drop it, and don't keep it alive with mem::forget, leak(), a static, or a thread that never ends",
        shown(line)
    )
}

/// Returns the name of the kind of object that a CUDA or NCCL function creates.
fn object_name(function: &str) -> &'static str {
    match function {
        "cuStreamCreate" | "cuStreamCreateWithPriority" => "a stream",
        "cuEventCreate" => "an event",
        "cuStreamEndCapture" | "cuGraphCreate" | "cuGraphClone" => "a graph",
        "cuGraphInstantiateWithFlags" => "an executable graph",
        "cuMemPoolCreate" => "a memory pool",
        "cuMemAllocManaged" => "a managed buffer",
        "cuMemHostAlloc" | "cuMemAllocHost" => "a pinned buffer",
        _ if function.starts_with("cuModuleLoad") => "a module",
        _ if function.starts_with("cuMem") => "a device buffer",
        _ => "a communicator",
    }
}

/// The connection to the parent.
struct Channel {
    socket: UnixStream,
    nonce: Nonce,
    /// The process that runs the check. One that the check has forked has a copy of the channel.
    process: u32,
}

static CHANNEL: Mutex<Option<Channel>> = Mutex::new(None);

fn channel() -> MutexGuard<'static, Option<Channel>> {
    CHANNEL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Sends the parent a record.
fn tell(record: &Record) {
    if let Some(Channel { socket, nonce, process }) = &mut *channel()
        && *process == std::process::id()
    {
        // If the write fails, the parent is gone; the exit status still reports the verdict.
        let _ = record.write(nonce, socket);
    }
}

/// Reports to the parent that the check's process is exiting, no matter which code called `exit`.
extern "C" fn leaving() {
    tell(&Record::Leaving);
}

/// Ends this process and the processes it started as soon as the parent's end of the socket is closed, because the
/// parent is then gone.
///
/// The kernel's parent-death signal would end only this process and leave the processes it started running.
fn end_with_parent(socket: UnixStream) -> std::io::Result<()> {
    thread::Builder::new().name("parent watch".to_owned()).spawn(move || {
        // With no events requested, `poll` returns only once the other end is closed.
        let mut watched = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
        loop {
            // SAFETY: the array has one element, like the count, and outlives the call.
            unsafe { libc::poll(&mut watched, 1, -1) };
            if watched.revents != 0 {
                // SAFETY: `kill` takes two numbers. 0 means this process's own group, which was created for it.
                unsafe { libc::kill(0, libc::SIGKILL) };
            }
        }
    })?;
    Ok(())
}
