//! Reports for narrow terminals, in which source lines are cut around their marks.

use std::ops::Range;

/// The number of columns that a report may be indented by where it is shown: below its headline and within a check's
/// message.
const INDENT: usize = 8;

/// Replaces the text that is cut from a line.
const CUT: &str = "…";

/// Returns the number of columns available to a report, if `COLUMNS` specifies the width of a terminal.
pub(super) fn of_terminal() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok()?.parse().ok();
    columns.filter(|columns| (40..=400).contains(columns)).map(|columns: usize| columns - INDENT)
}

/// Cuts each source line so that it fits next to the line numbers. The text marked by `spans` is kept, and the spans
/// move with it.
pub(super) fn cut_lines(text: &str, mut spans: Vec<&mut Range<usize>>, width: usize) -> String {
    let digits = text.lines().count().to_string().len();
    let room = width.saturating_sub(digits + " | ".len());
    let mut shown = String::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        // A span that has been moved must not be mistaken for a span on a later line, so this removes the line's spans.
        let own: Vec<_> = spans.extract_if(.., |span| span.start < end).collect();
        let code = line.trim_end_matches(['\n', '\r']);
        let first = own.iter().map(|span| span.start - at).min().unwrap_or(0);
        let last = own.iter().map(|span| span.end - at).max().unwrap_or(0).min(code.len());
        let kept = kept(code, first..last, room);
        let before = if kept.start > 0 { CUT } else { "" };
        for span in own {
            let moved = |place: usize| {
                shown.len() + before.len() + (place - at).clamp(kept.start, kept.end) - kept.start
            };
            *span = moved(span.start)..moved(span.end);
        }
        shown.push_str(before);
        shown.push_str(&code[kept.clone()]);
        shown.push_str(if kept.end < code.len() { CUT } else { "" });
        shown.push_str(&line[code.len()..]);
        at = end;
    }
    shown
}

/// Returns the part of a line that is shown in `room` columns: the full line, or the part around `marked`, cut between
/// words.
fn kept(line: &str, marked: Range<usize>, room: usize) -> Range<usize> {
    let columns = |range: Range<usize>| line[range].chars().count();
    if columns(0..line.len()) <= room {
        return 0..line.len();
    }
    let room = room.saturating_sub(2 * CUT.chars().count());
    let is_of_word = |char: char| char.is_alphanumeric() || char == '_';
    let is_between = |&at: &usize| {
        let (before, after) = line.split_at(at);
        !(before.ends_with(is_of_word) && after.starts_with(is_of_word))
    };
    let places = || line.char_indices().map(|(at, _)| at).chain([line.len()]).filter(is_between);
    // If the mark itself is too long, only its beginning is shown.
    let begins = |&start: &usize| start == 0 || line[start..].starts_with(is_of_word);
    let start = places().filter(begins).find(|&start| columns(start..marked.end.max(start)) <= room);
    let start = start.unwrap_or(0).min(marked.start);
    let end = places().rfind(|&end| end > start && columns(start..end) <= room).unwrap_or(line.len());
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "    let sums = stream.clone_htod(&values[first..last]).context(\"no room\")?;";

    /// Returns `LINE` cut to `room` columns, and the part of `marked` that is still marked.
    fn cut(marked: &str, room: usize) -> (String, String) {
        let at = LINE.find(marked).unwrap();
        let mut span = at..at + marked.len();
        let text = cut_lines(LINE, vec![&mut span], room + "1 | ".len());
        (text.clone(), text[span].to_owned())
    }

    #[test]
    fn a_line_is_cut_around_its_mark_and_between_words() {
        let two = |line: &str, marked: &str| (line.to_owned(), marked.to_owned());
        assert_eq!(cut("stream", 80), two(LINE, "stream"));
        assert_eq!(cut("stream", 40), two("    let sums = stream.clone_htod(&…", "stream"));
        let context = "context(\"no room\")";
        assert_eq!(cut(context, 40), two("…first..last]).context(\"no room\")?;", context));
        assert_eq!(cut(context, 12), two("…context(\"…", "context(\""));
    }

    #[test]
    fn each_line_of_a_source_keeps_its_own_marks() {
        let text = "one(two, three, four);\nfive(six, seven);\n";
        let (mut five, mut four) = (23..27, 16..20);
        let shown = cut_lines(text, vec![&mut five, &mut four], "1 | ".len() + 12);
        assert_eq!(shown, "…four);\nfive(six, …\n");
        assert_eq!((&shown[four], &shown[five]), ("four", "five"));
    }
}
