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

/// Reads `LAB_TIMEOUT`: whole seconds, at least 1.
pub(super) fn timeout(value: Option<OsString>) -> anyhow::Result<Duration> {
    const DEFAULT_SECONDS: u64 = 60;
    let Some(value) = value else { return Ok(Duration::from_secs(DEFAULT_SECONDS)) };
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
        assert_eq!(timeout(None).unwrap(), Duration::from_secs(60));
        assert_eq!(timeout(Some("5".into())).unwrap(), Duration::from_secs(5));
        for bad in ["0", "-1", "1.5", "", "soon"] {
            let error = timeout(Some(bad.into())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("LAB_TIMEOUT={bad}: ")), "{error}");
        }
    }
}
