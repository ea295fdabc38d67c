//! The side that runs one check: this process was started for it alone.

use crate::explain::cause_text;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use super::Check;
use super::verdict::Record;

/// Names the check and the parent: `PID NAME`.
pub(crate) const ORDER: &str = "LAB_RUN_ONE_CHECK";

/// What the parent asked this process for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    parent: u32,
    check: String,
}

impl Order {
    /// The value of [`ORDER`] with which a child learns its check.
    pub(super) fn text(check: &str) -> OsString {
        format!("{} {check}", std::process::id()).into()
    }

    /// The order, if this process got one.
    pub(super) fn given() -> Option<Self> {
        std::env::var_os(ORDER).map(|value| Self::read(&value))
    }

    fn read(value: &OsStr) -> Self {
        let text = value.to_string_lossy();
        let (parent, check) = text.split_once(' ').unwrap_or(("", &text));
        Self { parent: parent.parse().unwrap_or(0), check: check.to_owned() }
    }
}

/// The name of the check that this process runs, if it is a check's.
pub(crate) fn own_check() -> Option<String> {
    Order::given().map(|order| order.check)
}

/// Runs the ordered check and tells the parent, through standard input, how it went.
pub(super) fn run(checks: &[Check], order: &Order) -> ExitCode {
    if std::os::unix::process::parent_id() != order.parent {
        eprintln!("error: {ORDER} is how the test program starts its own children; unset it");
        return ExitCode::from(2);
    }
    let Some(check) = checks.iter().find(|check| check.name == order.check) else {
        eprintln!("error: there is no check `{}`", order.check);
        return ExitCode::from(2);
    };
    // Standard input is the parent's pipe, open for writing: it reaches the child without any unsafe code, and leaves
    // both outputs to the check.
    match end_with_parent().and_then(|()| std::io::stdin().as_fd().try_clone_to_owned()) {
        Ok(pipe) => *verdict() = Some(File::from(pipe)),
        Err(error) => {
            eprintln!("error: no pipe to the test program: {error}");
            return ExitCode::from(2);
        }
    }
    let with_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(&Record::Panic(describe(panic)));
        if with_backtrace {
            default_hook(panic);
        }
    }));

    let result = catch_unwind(AssertUnwindSafe(|| {
        crate::tier::attach(check.min_ranks)?;
        // After the driver has started, so that this comes before whatever the driver does at the end.
        // SAFETY: `leaving` is a function without arguments, which doesn't unwind.
        unsafe { libc::atexit(leaving) };
        (check.function)()
    }));
    let passed = matches!(result, Ok(Ok(())));
    tell(&match result {
        Ok(Ok(())) => Record::Passed,
        Ok(Err(error)) => Record::Failed(chain(&error)),
        Err(_) => Record::Failed(String::new()),
    });
    if passed { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// The pipe to the parent.
static VERDICT: Mutex<Option<File>> = Mutex::new(None);

fn verdict() -> MutexGuard<'static, Option<File>> {
    VERDICT.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Tells the parent.
fn tell(record: &Record) {
    if let Some(pipe) = &mut *verdict() {
        // Without a reader there is no one to tell; the exit status still says it.
        let _ = record.write(pipe).and_then(|()| pipe.flush());
    }
}

/// Tells the parent that the check's process ends, whoever ends it.
extern "C" fn leaving() {
    // A process that a check forked has this handler too.
    if Order::given().is_some_and(|order| order.parent == std::os::unix::process::parent_id()) {
        tell(&Record::Leaving);
    }
}

/// Ends this process, and those it started, as soon as nobody reads its pipe any more: the parent is gone.
///
/// The kernel's own parent-death signal would end this process only, and leave what it started.
fn end_with_parent() -> std::io::Result<()> {
    let pipe = std::io::stdin().as_fd().try_clone_to_owned()?;
    thread::Builder::new().name("parent watch".to_owned()).spawn(move || {
        // No events asked for: what comes back is the error state alone, which is the loss of the last reader.
        let mut watched = libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 };
        loop {
            // SAFETY: the array has the one element that the count says, and lives through the call.
            unsafe { libc::poll(&mut watched, 1, -1) };
            if watched.revents != 0 {
                // SAFETY: `kill` takes two numbers; 0 is this process's own group, which its parent made for it.
                unsafe { libc::kill(0, libc::SIGKILL) };
            }
        }
    })?;
    Ok(())
}

/// A panic's message, and below it the place and the thread.
pub(crate) fn describe(panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("a panic without a message");
    let place = panic.location().map_or_else(String::new, |place| format!("\n  at {place}"));
    let thread = match thread::current().name() {
        None | Some("main") => String::new(),
        Some(name) => format!(", in thread `{name}`"),
    };
    format!("{message}{place}{thread}")
}

/// An error and below it its causes, one to a line, without a backtrace.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(cause_text);
    let mut text = causes.next().unwrap_or_default();
    let mut above = text.clone();
    for cause in causes {
        // Some errors print their source themselves; once is enough.
        if !above.contains(&cause) {
            text.push_str(&format!("\n  because: {}", cause.replace('\n', "\n  ")));
        }
        above = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_its_trip_through_the_environment() {
        let order = Order::read(&Order::text("devices::a sentence with blanks"));
        assert_eq!(
            order,
            Order { parent: std::process::id(), check: "devices::a sentence with blanks".into() }
        );
    }

    #[test]
    fn causes_follow_the_error_one_to_a_line() {
        let error = anyhow::anyhow!("no such GPU\nhelp: count them").context("rank 2").context("rendezvous");
        assert_eq!(
            chain(&error),
            "rendezvous\n  because: rank 2\n  because: no such GPU\n  help: count them"
        );
    }
}
