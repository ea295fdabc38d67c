//! Compares whole buffers with their expected values, and explains the differences.

mod element;
mod picture;

use anyhow::bail;
use approx::AbsDiffEq;

pub(crate) use element::show;
pub use element::{Compared, Element, UNIT_ROUNDOFF};

/// The values that a rank's buffer should contain, and those that it may contain because of a known mistake.
#[derive(Debug)]
pub struct Expected<'a, T> {
    /// The start of its messages.
    owner: String,
    buffer: &'a str,
    values: &'a [T],
    mistakes: Vec<(Vec<T>, String)>,
}

impl<'a, T: Element> Expected<'a, T> {
    /// Expects `values` in `rank`'s buffer. `buffer` is its name for the message.
    pub fn new(rank: usize, buffer: &'a str, values: &'a [T]) -> Self {
        Self { owner: format!("rank {rank}: "), ..Self::of(buffer, values) }
    }

    /// Expects `values` in the `buffer` of a check without ranks.
    pub fn of(buffer: &'a str, values: &'a [T]) -> Self {
        Self { owner: String::new(), buffer, values, mistakes: Vec::new() }
    }

    /// Adds a known mistake: if the buffer holds these values instead, the message shows `cause`, which describes these
    /// values or how they got there.
    #[must_use]
    pub fn if_instead(mut self, values: &[T], cause: impl Into<String>) -> Self {
        self.mistakes.push((values.to_vec(), cause.into()));
        self
    }

    /// Compares every bit. Use it for computations without rounding.
    ///
    /// # Errors
    /// Fails if `got` differs. The error names the rank, the wrong elements, an expected and an actual value, and the
    /// cause that explains all elements. A table shows the elements around the first wrong one.
    pub fn exactly(&self, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| Compared(expected) == Compared(got))
    }

    /// Compares every element with a tolerance of `bound`. Document in the check where the bound comes from.
    ///
    /// # Errors
    /// Fails like [`Self::exactly`]. A NaN is never within a bound.
    pub fn within(&self, bound: f64, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| Compared(expected).abs_diff_eq(&Compared(got), bound))
    }

    fn check(&self, got: &[T], same: impl Fn(T, T) -> bool) -> anyhow::Result<()> {
        let Self { owner, buffer, values, .. } = self;
        if got.len() != values.len() {
            bail!("{owner}{buffer} has {}, expected {}", elements(got.len()), values.len());
        }
        let all_same = |expected: &[T]| {
            expected.len() == got.len()
                && expected.iter().zip(got).all(|(&expected, &got)| same(expected, got))
        };
        let wrong: Vec<usize> = (0..got.len()).filter(|&index| !same(values[index], got[index])).collect();
        let Some(&first) = wrong.first() else { return Ok(()) };
        let (expected, found) = show(values[first], got[first]);
        let index = if wrong.len() > 1 { format!("index {first}: ") } else { String::new() };
        let mut text = format!(
            "{owner}{buffer} is wrong{}\n  {index}expected {expected}, got {found}",
            places(&wrong, got.len())
        );
        if let Some((_, cause)) = self.mistakes.iter().find(|(values, _)| all_same(values)) {
            text.push_str(&format!("\n  {}{cause}", label(cause)));
        }
        text.push_str(&picture::picture(values, got, &wrong));
        bail!(text)
    }
}

/// Describes which elements of a buffer are wrong, as the end of a message.
fn places(wrong: &[usize], len: usize) -> String {
    match *wrong {
        _ if len == 1 => String::new(),
        _ if wrong.len() == len => format!(" at all {len} elements"),
        [only] => format!(" at index {only}, and right at the other {}", elements(len - 1)),
        [first, .., last] if last - first + 1 == wrong.len() => {
            format!(" from index {first} to {last} ({} of {len} elements)", wrong.len())
        }
        _ => format!(" at {} of {len} elements", wrong.len()),
    }
}

/// Formats a count: `1 element`, `2 elements`.
pub(crate) fn elements(count: usize) -> String {
    format!("{count} element{}", if count == 1 { "" } else { "s" })
}

/// Returns the label that precedes a cause. All values match the mistake, so their meaning is certain, but their origin
/// is only likely.
fn label(cause: &str) -> &'static str {
    const FACTS: [&str; 6] = ["these are ", "this is ", "it is ", "it holds ", "it comes ", "they are "];
    if FACTS.iter().any(|words| cause.starts_with(words)) { "" } else { "likely cause: " }
}

/// Returns whether a line of a message contains values of a single buffer, which differ even between ranks that fail
/// alike.
pub(crate) fn is_detail(line: &str) -> bool {
    let is_value = |line: &str| {
        let line = line
            .split_once(": ")
            .filter(|(index, _)| index.starts_with("index "))
            .map_or(line, |(_, line)| line);
        line.starts_with("expected ") && line.contains(", got ")
    };
    picture::is_picture(line) || is_value(line.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_rank_index_values_and_cause() {
        let error = Expected::new(2, "the sum", &[6.0_f32, 7.0, 8.0])
            .if_instead(&[6.0, 2.0, 3.0], "these are rank 2's own values")
            .exactly(&[6.0, 2.0, 3.0])
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 2: the sum is wrong from index 1 to 2 (2 of 3 elements)\n  \
             index 1: expected 7.0, got 2.0\n  \
             these are rank 2's own values\n  \
             index    │   0    1    2\n  \
             expected │ 6.0  7.0  8.0\n  \
             got      │ 6.0  2.0  3.0\n           \
             │      ^^^  ^^^"
        );
    }

    #[test]
    fn one_bit_of_a_nan_is_a_difference_and_is_shown() {
        let (quiet, other) = (f32::from_bits(0x7fc0_0000), f32::from_bits(0x7fc0_0001));
        assert!(Expected::new(0, "it", &[quiet]).exactly(&[quiet]).is_ok());
        let error = Expected::new(0, "it", &[quiet]).exactly(&[other]).unwrap_err().to_string();
        assert!(error.contains("(bits 0x7fc00000), got bits 0x7fc00001"), "{error}");
    }

    #[test]
    fn a_bound_holds_on_both_sides_and_never_for_nan() {
        let expected = [1.0_f32];
        let of = Expected::new(0, "it", &expected);
        assert!(of.within(0.5, &[1.5]).is_ok() && of.within(0.5, &[0.5]).is_ok());
        assert!(of.within(0.5, &[1.75]).is_err());
        assert!(of.within(f64::INFINITY, &[f32::NAN]).is_err());
    }

    #[test]
    fn a_length_is_compared_before_any_value() {
        let error = Expected::new(1, "it", &[1_u8, 2]).exactly(&[1]).unwrap_err().to_string();
        assert_eq!(error, "rank 1: it has 1 element, expected 2");
    }

    #[test]
    fn wrong_elements_are_described_briefly() {
        for (wrong, expected) in [
            (vec![3], " at index 3, and right at the other 8 elements"),
            (vec![0, 1, 2, 3, 4, 5, 6, 7, 8], " at all 9 elements"),
            (vec![7, 8], " from index 7 to 8 (2 of 9 elements)"),
            (vec![0, 2], " at 2 of 9 elements"),
        ] {
            assert_eq!(places(&wrong, 9), expected);
        }
        assert_eq!(places(&[0], 1), "");
    }

    #[test]
    fn one_element_has_no_index_and_a_cause_is_labeled() {
        let error = Expected::of("it", &[1_u8]).if_instead(&[2], "one was added").exactly(&[2]).unwrap_err();
        assert_eq!(error.to_string(), "it is wrong\n  expected 1, got 2\n  likely cause: one was added");
    }

    #[test]
    fn values_are_distinguished_from_words() {
        assert!(is_detail("  index 0: expected 1.0, got 2.0") && is_detail("    expected 1.0, got 2.0"));
        assert!(
            !is_detail("rank 0: 3 ranks, expected 2, got 3") && !is_detail("  likely cause: it was expected")
        );
    }
}
