//! Checks for calls that must be rejected.

use anyhow::bail;
use lab::ensure;

/// Checks that a call was rejected on this rank, and that the error contains all these numbers.
pub(super) fn refused(
    rank: usize,
    call: &str,
    result: anyhow::Result<()>,
    numbers: &[usize],
) -> anyhow::Result<()> {
    let Err(error) = result else { bail!("rank {rank}: {call} returned Ok; expected an error") };
    let text = format!("{error:#}");
    let mut rest = text.clone();
    for number in numbers {
        let number = number.to_string();
        ensure!(
            rest.contains(&number),
            "rank {rank}: the error from {call} must contain {number}; got: {text}"
        );
        rest = rest.replacen(&number, "", 1);
    }
    Ok(())
}
