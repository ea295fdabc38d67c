//! The environment variables that change how checks run.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::bail;
use libtest_mimic::Arguments;

/// Reads libtest's environment variables that `libtest-mimic` ignores.
pub(super) fn adopt(arguments: &mut Arguments) -> anyhow::Result<()> {
    arguments.nocapture |= std::env::var_os("RUST_TEST_NOCAPTURE").is_some_and(|value| value != "0");
    if arguments.test_threads.is_none()
        && let Some(value) = std::env::var_os("RUST_TEST_THREADS")
    {
        match value.to_str().and_then(|text| text.parse().ok()) {
            Some(threads) if threads > 0 => arguments.test_threads = Some(threads),
            _ => bail!("RUST_TEST_THREADS={}: must be a whole number above 0", value.display()),
        }
    }
    Ok(())
}

/// How many seconds a check may take if nothing else is said.
const DEFAULT_SECONDS: u64 = 60;
/// The same on real GPUs. Some checks create about 30 groups of ranks, and NCCL may need 2 s for each; the rest is for a
/// slow start of the driver and a busy machine.
const REAL_DEFAULT_SECONDS: u64 = 180;

/// Reads `LAB_TIMEOUT`: whole seconds, at least 1.
pub(super) fn timeout(value: Option<OsString>, is_real: bool) -> anyhow::Result<Duration> {
    let default = if is_real { REAL_DEFAULT_SECONDS } else { DEFAULT_SECONDS };
    let Some(value) = value else { return Ok(Duration::from_secs(default)) };
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => bail!(
            "LAB_TIMEOUT={}: must be a whole number of seconds above 0, such as {DEFAULT_SECONDS}",
            value.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_whole_seconds_above_zero() {
        assert_eq!(timeout(None, false).unwrap(), Duration::from_secs(60));
        assert_eq!(timeout(None, true).unwrap(), Duration::from_secs(180));
        assert_eq!(timeout(Some("5".into()), true).unwrap(), Duration::from_secs(5));
        for bad in ["0", "-1", "1.5", "", "soon"] {
            let error = timeout(Some(bad.into()), false).unwrap_err().to_string();
            assert!(error.starts_with(&format!("LAB_TIMEOUT={bad}: ")), "{error}");
        }
    }
}
