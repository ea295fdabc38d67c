//! Formats the errors of CUDA and NCCL. cudarc's `NcclError` prints only `NcclError`, without its code.

use std::ffi::{CStr, c_char};
use std::panic::Location;
use std::ptr;

use anyhow::anyhow;
use cudarc::driver::DriverError;
use cudarc::nccl::result::NcclError;
use cudarc::nccl::sys::{self, ncclResult_t};

use crate::tier::{Tier, attached};

/// Makes the errors of NCCL readable.
pub trait Readable<T> {
    /// Returns the same result. An error contains NCCL's name for it, the location of the call, NCCL's message, and
    /// help if the code allows any.
    ///
    /// # Errors
    /// Fails if the result is an error.
    #[track_caller]
    fn readable(self) -> anyhow::Result<T>;
}

impl<T> Readable<T> for Result<T, NcclError> {
    #[track_caller]
    fn readable(self) -> anyhow::Result<T> {
        let caller = Location::caller();
        self.map_err(|NcclError(code)| {
            let details = last_error().or_else(|| error_string(code));
            // A report of the virtual NCCL has the location and the help. Guessing the cause from the code alone would
            // be misleading.
            if let Some(report) = details.as_deref().filter(|_| attached() == Some(Tier::Virtual)) {
                return anyhow!(with_code(&format!("{code:?}"), report));
            }
            let mut text = format!("{code:?} at {}:{}", caller.file(), caller.line());
            for (label, part) in [("", details.as_deref()), ("help: ", help(code))] {
                if let Some(part) = part {
                    text += &format!("\n{label}{part}");
                }
            }
            anyhow!(text)
        })
    }
}

/// Formats one cause of an error. cudarc's `DriverError` would put the driver's text in quotes and escape its line
/// ends.
pub fn cause_text(cause: &(dyn std::error::Error + 'static)) -> String {
    match cause.downcast_ref::<DriverError>() {
        None => cause.to_string(),
        Some(error) => match error.error_string() {
            Ok(text) => {
                let text = text.to_string_lossy();
                with_code(&format!("{:?}", error.0), &text) + help_of_cudarc(&text)
            }
            Err(_) => format!("{:?}", error.0),
        },
    }
}

/// Returns help with an error that cudarc returns without a call to the driver, if this text of a driver describes one.
fn help_of_cudarc(text: &str) -> &'static str {
    match text {
        // The virtual driver describes its own errors with this code in other words. cudarc returns the error if a stream
        // waits for an event of another GPU, and keeps an error that it can't return until the next call.
        "invalid device context" => {
            "\nhelp: cudarc returns this error if work on one GPU uses a buffer or an event of another GPU, in this call or \
             an earlier one"
        }
        _ => "",
    }
}

/// The prefix of every report of the virtual GPU.
pub(crate) const REPORT: &str = "virtual GPU: ";
/// The text after the headline of a report and its error code.
const FROM: &str = " from the virtual GPU)";

/// Combines a driver's or NCCL's text with its error code. The headline of a report comes first, because its code can
/// be misleading: a data race has the code of a failed launch.
fn with_code(code: &str, text: &str) -> String {
    let Some(report) = text.strip_prefix(REPORT) else { return format!("{code}: {text}") };
    let mut lines = report.lines();
    let mut told = format!("{} ({code}{FROM}", lines.next().unwrap_or_default());
    for line in lines {
        told += &format!("\n{}", with_owner(line));
    }
    told
}

/// Removes the codes that don't describe an error. A data race has the code of a failed launch, and a deadlock that of a
/// launch that takes too long, because CUDA has no codes for them.
pub(crate) fn without_substitutes(text: &str) -> String {
    ["CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT"].iter().fold(text.to_owned(), |text, code| {
        text.replace(&format!("({code}{FROM}"), "(found by the virtual GPU)")
    })
}

/// Returns whether this line of an error's text contains the headline of a report.
pub(crate) fn is_headline(line: &str) -> bool {
    line.contains(FROM)
}

/// Returns whether this line of an error's text repeats a line that the virtual GPU printed.
pub(crate) fn repeats(line: &str, printed: &str) -> bool {
    match printed.strip_prefix(REPORT) {
        None => line.ends_with(&with_owner(printed)),
        Some(headline) => {
            is_headline(line) && line.contains(&format!("{headline} (")) || line.ends_with(printed)
        }
    }
}

/// Marks a line of a report that names a file of another module as the course's own code. Modules build on the
/// solutions of earlier modules.
fn with_owner(line: &str) -> String {
    let folder = line.trim().strip_prefix("::: solutions/");
    match folder.and_then(|path| path.split_once('_')) {
        Some((module, _)) => format!("{line} (the course's solution of module {module})"),
        None => line.to_owned(),
    }
}

/// Formats an error and its causes in one line, like `{error:#}`.
pub fn error_text(error: &anyhow::Error) -> String {
    error.chain().map(cause_text).collect::<Vec<_>>().join(": ")
}

/// Formats an error, with its causes below it, one per line, and without a backtrace.
pub(crate) fn causes_text(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(cause_text);
    let mut text = causes.next().unwrap_or_default();
    let mut above = text.clone();
    for cause in causes {
        // Some errors print their source themselves, so the source is not repeated.
        if !above.contains(&cause) {
            text.push_str(&format!("\n  because: {}", cause.replace('\n', "\n  ")));
        }
        above = cause;
    }
    text
}

fn error_string(code: ncclResult_t) -> Option<String> {
    // SAFETY: the library is loaded when this is called, and the function takes any code.
    ask(|| unsafe { sys::ncclGetErrorString(code) })
}

/// Returns NCCL's note about its last error. NCCL keeps the note per process or per thread, not per communicator, so
/// the communicator can be NULL.
fn last_error() -> Option<String> {
    // SAFETY: the library is loaded when this is called, and the communicator may be NULL.
    ask(|| unsafe { sys::ncclGetLastError(ptr::null_mut()) })
}

/// Returns a text that NCCL owns, if NCCL is loaded and the text is not empty. Without NCCL, cudarc would panic.
fn ask(question: impl FnOnce() -> *const c_char) -> Option<String> {
    // SAFETY: loads NCCL by its well-known names, or finds it loaded.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let text = question();
    if text.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null, and NCCL's strings are zero-terminated and never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn help(code: ncclResult_t) -> Option<&'static str> {
    match code {
        ncclResult_t::ncclUnhandledCudaError => Some(
            "a CUDA call inside NCCL failed; often an earlier error of the same GPU, so look at what ran before",
        ),
        ncclResult_t::ncclSystemError => Some(
            "a call to the operating system failed: a socket, shared memory, too few open files; NCCL_DEBUG=WARN names it",
        ),
        ncclResult_t::ncclInternalError => {
            Some("NCCL reached an unexpected state; NCCL_DEBUG=WARN logs where")
        }
        ncclResult_t::ncclInvalidArgument => Some(
            "one argument of this call is wrong: a rank or a root out of range, a buffer that is null, too short or on another GPU",
        ),
        ncclResult_t::ncclInvalidUsage => Some(
            "the calls don't match: the same GPU or the same rank twice, or a group_start without a group_end, or the reverse",
        ),
        ncclResult_t::ncclRemoteError => Some(
            "another rank failed or is gone: read its error; this communicator is lost, drop it and make a new one",
        ),
        ncclResult_t::ncclTimeout => Some("another rank timed out: did every rank make this call?"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_code_its_line_and_help() {
        let failed: Result<(), NcclError> = Err(NcclError(ncclResult_t::ncclInvalidArgument));
        let text = failed.readable().unwrap_err().to_string();
        assert!(text.starts_with("ncclInvalidArgument at "), "{text}");
        assert!(text.contains(file!()), "{text}");
        assert!(text.contains("help: one argument of this call is wrong"), "{text}");
    }

    #[test]
    fn causes_follow_the_error_one_to_a_line() {
        let error = anyhow::anyhow!("no such GPU\nhelp: count them").context("rank 2").context("rendezvous");
        assert_eq!(
            causes_text(&error),
            "rendezvous\n  because: rank 2\n  because: no such GPU\n  help: count them"
        );
    }

    #[test]
    fn the_headline_of_a_report_comes_before_its_code() {
        let report = "virtual GPU: data race on GPU 0\n  ::: solutions/02_collectives/src/all_reduce.rs:37:10\n   = help: wait";
        let told = with_code("CUDA_ERROR_LAUNCH_FAILED", report);
        assert_eq!(
            told,
            "data race on GPU 0 (CUDA_ERROR_LAUNCH_FAILED from the virtual GPU)\n  \
             ::: solutions/02_collectives/src/all_reduce.rs:37:10 (the course's solution of module 02)\n   = help: wait"
        );
        assert!(
            report
                .lines()
                .zip(told.lines())
                .all(|(printed, line)| repeats(&format!("rank 1: {line}"), printed))
        );
        assert!(!told.lines().any(|line| repeats(line, "virtual GPU: data race on GPU 1")), "{told}");
        assert!(without_substitutes(&told).starts_with("data race on GPU 0 (found by the virtual GPU)\n"));
        assert_eq!(
            with_code("CUDA_ERROR_NOT_READY", "device not ready"),
            "CUDA_ERROR_NOT_READY: device not ready"
        );
    }

    #[test]
    fn an_error_of_cudarc_s_own_has_help() {
        assert!(help_of_cudarc("invalid device context").contains("of another GPU"));
        assert_eq!(help_of_cudarc("no context is current on this thread: bind one first"), "");
    }

    #[test]
    fn a_value_passes_unchanged() {
        let fine: Result<u8, NcclError> = Ok(7);
        assert_eq!(fine.readable().unwrap(), 7);
    }
}
