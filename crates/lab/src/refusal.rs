//! Checks calls whose contract requires an error. If a call panics instead, the panic is reported with its location.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

use anyhow::anyhow;

use crate::panics::message_and_place;

/// A caught panic. It prints as `panicked at FILE:LINE: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    place: Option<String>,
    message: String,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, message } = self;
        match place {
            Some(place) => write!(f, "panicked at {place}: {message}"),
            None => write!(f, "panicked: {message}"),
        }
    }
}

thread_local! {
    /// Whether [`caught`] is running a function on this thread.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// This thread's latest panic while the thread is being watched.
    static LATEST: RefCell<Option<Caught>> = const { RefCell::new(None) };
}

/// The start of a `todo!` message. An unfinished exercise keeps panicking.
const TODO: &str = "not yet implemented";

/// Runs a function and returns its panic, which is not reported anywhere else.
///
/// # Errors
/// Returns the panic.
///
/// # Panics
/// Panics if the function reaches a `todo!`.
pub fn caught<T>(function: impl FnOnce() -> T) -> Result<T, Caught> {
    note_places();
    let outer = WATCHED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(function));
    WATCHED.set(outer);
    let latest = LATEST.take();
    result.map_err(|panic| described(panic, latest))
}

/// Describes a panic of a watched thread, whose latest panic was `latest`.
///
/// # Panics
/// Continues the panic if it is that of a `todo!`.
fn described(panic: Box<dyn Any + Send>, latest: Option<Caught>) -> Caught {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("a panic without a message").to_owned();
    if message.starts_with(TODO) {
        resume_unwind(panic);
    }
    // If another thread panicked and this thread only propagated the panic, the hook has already reported the
    // location.
    latest.unwrap_or(Caught { place: None, message })
}

/// Makes a call whose contract requires an error. The check judges the result.
///
/// # Errors
/// Fails if the call panics. `call` is the text that identifies the call.
///
/// # Panics
/// Panics if the call reaches a `todo!`.
pub fn without_panic<T>(call: &str, function: impl FnOnce() -> T) -> anyhow::Result<T> {
    caught(function)
        .map_err(|panic| anyhow!("{call}: the contract requires an error here, but the function {panic}"))
}

/// Makes the panic hook record where a watched thread panics. Other threads panic as before.
fn note_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = take_hook();
        set_hook(Box::new(move |panic| {
            let is_todo = panic.payload_as_str().is_some_and(|text| text.starts_with(TODO));
            if !WATCHED.get() || is_todo {
                return earlier(panic);
            }
            let (message, place) = message_and_place(panic);
            LATEST.set(Some(Caught { place, message }));
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_with_its_location() {
        let line = line!() + 1;
        let error = without_panic("open(9)", || panic!("there are {} GPUs", 2)).unwrap_err();
        let place = format!("{}:{line}:49", file!());
        assert_eq!(
            error.to_string(),
            format!(
                "open(9): the contract requires an error here, but the function panicked at {place}: there are 2 GPUs"
            )
        );
    }

    #[test]
    fn a_result_passes_unchanged() {
        assert_eq!(caught(|| 7), Ok(7));
        assert!(without_panic("it", || Err::<(), _>("no")).unwrap().is_err());
    }

    #[test]
    fn a_todo_keeps_panicking() {
        assert!(catch_unwind(|| caught(|| todo!("say how"))).is_err());
    }
}
