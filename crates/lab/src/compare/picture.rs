//! Formats a few elements of a buffer as a table: the expected values, the actual values, and marks where they differ.

use std::ops::Range;

use super::Element;

/// The maximum length of a buffer that is shown in full.
const WHOLE: usize = 12;
/// The number of elements shown for a longer buffer.
const PART: usize = 8;
/// The width of a line. A report of several ranks indents it by 4 more columns, up to a width of 76.
const COLUMNS: usize = 72;
/// Separates a row's label from its cells. No other line of a report contains it.
const RULE: char = '│';

/// Draws the elements around the first wrong one. Returns an empty string for a single element, because the table would
/// only repeat the message above it.
pub(super) fn picture<T: Element>(expected: &[T], got: &[T], wrong: &[usize]) -> String {
    let (len, Some(&first)) = (got.len(), wrong.first()) else { return String::new() };
    if len < 2 {
        return String::new();
    }
    let most = if len <= WHOLE { len } else { PART };
    let shown = (1..=most).rev().map(|count| {
        let start = first.saturating_sub((count - 1) / 2).min(len - count);
        table(expected, got, wrong, start..start + count)
    });
    shown
        .filter(|lines| lines.iter().all(|line| line.chars().count() <= COLUMNS))
        .map(joined)
        .next()
        .unwrap_or_default()
}

/// Returns whether a line is part of a table.
pub(super) fn is_picture(line: &str) -> bool {
    line.contains(RULE)
}

fn joined(lines: [String; 4]) -> String {
    lines.iter().flat_map(|line| ["\n", line]).collect()
}

/// Returns the rows: indexes, expected values, actual values, and marks under the wrong elements.
fn table<T: Element>(expected: &[T], got: &[T], wrong: &[usize], shown: Range<usize>) -> [String; 4] {
    let mut lines = ["index", "expected", "got", ""].map(|label| format!("  {label:<8} {RULE}"));
    let mut add = |cells: [String; 4]| {
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        for (line, cell) in lines.iter_mut().zip(cells) {
            *line += &format!(" {cell:>width$} ");
        }
    };
    let dots = || ["…", "…", "…", ""].map(str::to_owned);
    if shown.start > 0 {
        add(dots());
    }
    for index in shown.clone() {
        let value = format!("{:?}", got[index]);
        let mark = if wrong.contains(&index) { "^".repeat(value.chars().count()) } else { String::new() };
        add([index.to_string(), format!("{:?}", expected[index]), value, mark]);
    }
    if shown.end < got.len() {
        add(dots());
    }
    lines.map(|line| line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_buffer_is_shown_whole_with_its_wrong_elements_marked() {
        let text = picture(&[6.0_f32, 17.5, 8.0], &[6.0, 2.0, -3.25], &[1, 2]);
        let lines = [
            "",
            "  index    │   0     1      2",
            "  expected │ 6.0  17.5    8.0",
            "  got      │ 6.0   2.0  -3.25",
            "           │       ^^^  ^^^^^",
        ];
        assert_eq!(text, lines.join("\n"));
    }

    #[test]
    fn a_long_buffer_is_shown_around_its_first_wrong_element() {
        let expected: Vec<i32> = (0..100).collect();
        let mut got = expected.clone();
        got[50] = 77;
        let text = picture(&expected, &got, &[50]);
        assert!(text.contains("\n  index    │ …  47  48  49  50  51  52  53  54  …\n"), "{text}");
        assert!(text.ends_with("\n           │                ^^"), "{text}");
        let at_the_end = picture(&expected, &got, &[99]);
        assert!(at_the_end.contains("│ …  92  93  94  95  96  97  98  99\n"), "{at_the_end}");
        let at_the_start = picture(&expected, &got, &(0..100).collect::<Vec<_>>());
        assert!(at_the_start.contains("│ 0  1  2  3  4  5  6  7  …\n"), "{at_the_start}");
    }

    #[test]
    fn every_line_fits_a_terminal_and_shows_the_first_wrong_element() {
        let expected: Vec<f64> = (0..12).map(|index| f64::from(index) / 7.0).collect();
        let got: Vec<f64> = expected.iter().map(|value| value + 1e-12).collect();
        for first in 0..12 {
            let text = picture(&expected, &got, &(first..12).collect::<Vec<_>>());
            assert!(
                text.lines()
                    .all(|line| line.chars().count() <= COLUMNS && (line.is_empty() || is_picture(line)))
            );
            assert!(
                text.contains(&format!(" {first} ")) || text.contains(&format!(" {first}\n")),
                "{first}:{text}"
            );
            assert!(text.contains(&format!("{:?}", got[first])), "{text}");
        }
    }

    #[test]
    fn a_single_element_needs_no_picture() {
        assert_eq!(picture(&[1_u8], &[2], &[0]), "");
    }
}
