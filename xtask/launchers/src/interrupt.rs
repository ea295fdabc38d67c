//! Turns Ctrl-C into an error, so that daemons and files are cleaned up as after any other error.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{bail, ensure};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on, signals that ask this process to end only make [`check`] fail.
pub(crate) fn watch() -> anyhow::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        let previous = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        ensure!(previous != libc::SIG_ERR, "can't handle signal {signal}");
    }
    Ok(())
}

/// Fails if such a signal has arrived. Every wait in this program calls it.
pub(crate) fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
