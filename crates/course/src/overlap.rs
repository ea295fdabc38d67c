//! `cargo course overlap`: computes how much time hiding communication can save, before you write any code.

use std::fmt::Write as _;

use anyhow::ensure;

/// The times of one step in ms, and the fraction of the possible overlap that is achieved.
pub(crate) struct Step {
    pub(crate) compute: f64,
    pub(crate) communication: f64,
    pub(crate) efficiency: f64,
}

impl Step {
    fn serial(&self) -> f64 {
        self.compute + self.communication
    }

    fn perfect(&self) -> f64 {
        self.compute.max(self.communication)
    }

    /// Solves η = (C + M − T) / min(C, M) for T.
    fn overlapped(&self) -> f64 {
        self.serial() - self.efficiency * self.compute.min(self.communication)
    }
}

/// Returns the times without and with overlap, and the gain.
///
/// # Errors
/// Fails if a time is not positive, or if the efficiency is not between 0 and 1.
pub(crate) fn show(step: &Step) -> anyhow::Result<String> {
    let Step { compute, communication, efficiency } = *step;
    for (name, value) in [("--compute", compute), ("--comm", communication)] {
        ensure!(value.is_finite() && value > 0.0, "{name} {value}: must be a time in ms above 0");
    }
    ensure!(
        (0.0..=1.0).contains(&efficiency),
        "--efficiency {efficiency}: must be from 0 (nothing overlaps) to 1 (everything that can overlap does)"
    );
    let mut text = String::new();
    let rows = [
        ("one after the other", "C + M", step.serial()),
        ("perfect overlap", "max(C, M)", step.perfect()),
        ("with this efficiency", "C + M − η · min(C, M)", step.overlapped()),
    ];
    let _ = writeln!(
        text,
        "C = {compute} ms of compute, M = {communication} ms of communication, η = {efficiency}"
    );
    let _ = writeln!(text, "{:43} {:>11} {:>8} {:>9}", "", "time", "speed-up", "less time");
    for (what, formula, time) in rows {
        let gain = step.serial() / time;
        let less = 100.0 * (1.0 - time / step.serial());
        let _ = writeln!(text, "{what:20}  {formula:21} {time:8.3} ms {gain:8.2} {less:8.1}%");
    }
    let (bound, rest) = match compute >= communication {
        true => ("compute", "all communication can be hidden"),
        false => {
            ("communication", "some of it stays exposed however well you overlap; send less, or less often")
        }
    };
    let _ = writeln!(text, "The step is bound by {bound}: {rest}.");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_holds_on_either_side() {
        let of = |compute, communication, efficiency| Step { compute, communication, efficiency };
        assert_eq!(of(50.0, 10.0, 0.8).overlapped(), 52.0);
        // The common formula C + M · (1 − η) would give 12 ms, which is less than the communication alone.
        assert_eq!(of(10.0, 50.0, 0.8).overlapped(), 52.0);
        assert_eq!(of(10.0, 50.0, 1.0).overlapped(), 50.0);
        assert_eq!(of(10.0, 50.0, 0.0).overlapped(), 60.0);
        for (step, words) in [
            (of(0.0, 1.0, 1.0), "--compute 0"),
            (of(1.0, f64::NAN, 1.0), "--comm"),
            (of(1.0, 1.0, 1.5), "1.5"),
        ] {
            assert!(show(&step).unwrap_err().to_string().contains(words));
        }
    }
}
