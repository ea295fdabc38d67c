//! Text for a terminal of any width: the head of a source, line breaks, and links.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anstream::adapter::strip_str;

/// Returns the description at the head of a file: each paragraph as one line, and each preformatted line unchanged.
pub(super) fn contract(source: &str) -> Vec<String> {
    let head = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut paragraphs: Vec<String> = Vec::new();
    let (mut is_set, mut goes_on) = (false, false);
    for line in head.map(|line| line.strip_prefix(' ').unwrap_or(line)) {
        let is_fence = line.starts_with("```");
        is_set ^= is_fence;
        match paragraphs.last_mut() {
            Some(last) if goes_on && !is_fence && !line.is_empty() => {
                last.push(' ');
                last.push_str(line);
            }
            _ => paragraphs.push(line.to_owned()),
        }
        goes_on = !is_set && !is_fence && !line.is_empty();
    }
    paragraphs
}

/// Breaks lines so that they are at most `columns` wide if possible. Prose is broken at spaces, and keeps its
/// indentation. In a snippet of source code, lines of code are cut, and labels move below their marks.
pub(crate) fn wrapped(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let fits = width(line) <= columns;
        match if fits { None } else { snippet_line(line, columns) } {
            Some(lines) => wrapped.push_str(&lines),
            None if fits => wrapped.push_str(line),
            None => wrapped.push_str(&broken(line, &hanging(line), columns)),
        }
        wrapped.push('\n');
    }
    wrapped
}

/// Removes the source lines of all files but the first from a report; `:::` marks these files. If there is little room,
/// the problem and its fix are more useful than these lines.
pub(super) fn without_other_sources(text: &str) -> String {
    let mut short = String::new();
    let mut in_other = false;
    for line in text.lines() {
        let plain = strip_str(line).to_string();
        let plain = plain.trim_start();
        in_other = match in_other {
            true => plain.starts_with(|char: char| char.is_ascii_digit() || ".:|".contains(char)),
            false => plain.starts_with("::: "),
        };
        if !in_other {
            short.push_str(line);
            short.push('\n');
        }
    }
    short
}

/// Returns the number of columns that a text occupies.
fn width(text: &str) -> usize {
    strip_str(text).to_string().chars().count()
}

/// Returns the indentation for the continuation lines of a paragraph. Usually, this is the paragraph's own indentation.
/// In a note of a snippet or a list of changes, it is the column where the text starts.
fn hanging(line: &str) -> String {
    let plain = strip_str(line).to_string();
    let blanks = |text: &str| text.len() - text.trim_start_matches(' ').len();
    let indent = blanks(&plain);
    " ".repeat(match &plain[indent..] {
        note if note.starts_with("= ") => indent + 2,
        change if change.starts_with(['+', '-']) => indent + 1 + blanks(&change[1..]),
        _ => indent,
    })
}

/// Breaks a line at spaces. Continuation lines begin with `edge`.
fn broken(line: &str, edge: &str, columns: usize) -> String {
    let words = line.trim_start();
    let mut text = line[..line.len() - words.len()].to_owned();
    let mut used = text.len();
    for (index, word) in words.split(' ').enumerate() {
        if index > 0 && used + 1 + width(word) > columns {
            text.push('\n');
            text.push_str(edge);
            used = width(edge);
        } else if index > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += width(word);
    }
    text
}

/// Formats a line of a snippet that is too wide, as in compiler messages and virtual GPU reports. Returns `None` for
/// any other line.
fn snippet_line(line: &str, columns: usize) -> Option<String> {
    let line = strip_str(line).to_string();
    if is_suggested(&line) {
        return Some(cut_line(&line, columns));
    }
    let (number, code) = line.split_once('|')?;
    if !number.chars().all(|char| char == ' ' || char.is_ascii_digit()) {
        return None;
    }
    let gutter = number.chars().count() + 1;
    let label = code.find(|char: char| !" ^-|_~+".contains(char));
    let is_code = number.contains(|char: char| char.is_ascii_digit());
    let Some(label) = label.filter(|_| !is_code) else {
        return Some(cut_line(&line, columns));
    };
    let (marks, label) = code.split_at(label);
    let marks = marks.trim_end();
    // Place the label where its mark begins, if it fits there.
    let mark = marks.rfind([' ', '|']).map_or(0, |at| at + 1);
    let indent = mark.min(columns.saturating_sub(gutter + width(label))).max(1);
    let edge = format!("{number}|{}", " ".repeat(indent));
    let label = label.split(' ').fold(String::new(), |mut text, word| {
        let used = text.lines().last().map_or(0, width);
        match text.is_empty() {
            true => text.push_str(&edge),
            false if used + 1 + width(word) > columns => text.push_str(&format!("\n{edge}")),
            false => text.push(' '),
        }
        text.push_str(word);
        text
    });
    let marks: String = format!("{number}|{marks}").chars().take(columns).collect();
    Some(format!("{marks}\n{label}"))
}

/// Returns whether this is a line of code that the compiler suggests to add, remove, or change, such as `12 + let a;`.
fn is_suggested(line: &str) -> bool {
    let code = line.trim_start().trim_start_matches(|char: char| char.is_ascii_digit());
    let has_number = code.len() < line.trim_start().len();
    has_number && [" + ", " - ", " ~ "].iter().any(|mark| code.starts_with(mark))
}

/// Cuts a line that is too wide, with an ellipsis.
fn cut_line(line: &str, columns: usize) -> String {
    let shown: String = line.chars().take(columns.saturating_sub(1)).collect();
    format!("{shown}…")
}

/// Formats a path as a link that a terminal opens on a click (OSC 8).
pub(super) fn link(root: &Path, path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let mut address = String::new();
    for &byte in root.join(path).as_os_str().as_bytes() {
        match plain(byte) {
            true => address.push(char::from(byte)),
            false => address.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("\x1b]8;;file://{address}\x1b\\{}\x1b]8;;\x1b\\", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_at_the_width_of_the_terminal() {
        let source =
            "//! One two\n//! three.\n//!\n//! ```text\n//! a  b\n//! c\n//! ```\n//! End.\n\n//! no more\n";
        assert_eq!(contract(source), ["One two three.", "", "```text", "a  b", "c", "```", "End."]);
        assert_eq!(wrapped("  One two three.\n\nfour\n", 9), "  One two\n  three.\n\nfour\n");
        assert_eq!(wrapped("\u{1b}[1mOne\u{1b}[0m two", 7), "\u{1b}[1mOne\u{1b}[0m two\n");
        assert_eq!(wrapped("unbreakable", 4), "unbreakable\n");
    }

    #[test]
    fn a_snippet_keeps_its_lines() {
        let label = "   |     ---- ^^^^^^^ it is written";
        assert_eq!(wrapped(label, 40), format!("{label}\n"));
        assert_eq!(wrapped(label, 30), "   |     ---- ^^^^^^^\n   |          it is written\n");
        assert_eq!(
            wrapped(label, 20),
            "   |     ---- ^^^^^^^\n   |   it is written\n".replace("^^^^^^^", "^^^^^^")
        );
        assert_eq!(wrapped(label, 14), "   |     ---- \n   | it is\n   | written\n");
        assert_eq!(wrapped(" \u{1b}[1m12 |\u{1b}[0m let code = 1;", 12), " 12 | let c…\n");
        assert_eq!(wrapped("12 + let code = 1;", 12), "12 + let co…\n");
        assert_eq!(wrapped("12 tons of code", 12), "12 tons of\ncode\n");
        assert_eq!(wrapped("   = help: wait for it", 18), "   = help: wait\n     for it\n");
        assert_eq!(wrapped("a | b c", 6), "a | b\nc\n");
        assert_eq!(wrapped("-  one two", 7), "-  one\n   two\n");
    }

    #[test]
    fn the_sources_of_other_files_are_left_out() {
        let report = "race\n --> own.rs:1:1\n  |\n1 | a();\n  | ^^^ written\n  |\n ::: other.rs:2:2\n  |\n2 | b();\n...\n  |\n  = wait\n";
        let short = "race\n --> own.rs:1:1\n  |\n1 | a();\n  | ^^^ written\n  |\n  = wait\n";
        assert_eq!(without_other_sources(report), short);
        assert_eq!(without_other_sources(short), short);
    }

    #[test]
    fn an_address_has_no_blank() {
        let link = link(Path::new("/a b/ü"), Path::new("x.rs"));
        assert_eq!(link, "\x1b]8;;file:///a%20b/%C3%BC/x.rs\x1b\\x.rs\x1b]8;;\x1b\\");
    }
}
