//! Texts for a terminal of any width: the head of a source, broken lines, and links.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anstream::adapter::strip_str;

/// What a file says of itself at its head: its paragraphs, each in one line, and the lines of what is set.
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

/// Breaks lines at spaces so that they are at most `columns` wide where possible. Indentation stays.
pub(super) fn wrapped(text: &str, columns: usize) -> String {
    let width = |text: &str| strip_str(text).to_string().chars().count();
    let mut wrapped = String::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let mut used = 0;
        for (index, word) in line[indent.len()..].split(' ').enumerate() {
            if index == 0 {
                wrapped.push_str(indent);
                used = indent.len();
            } else if used + 1 + width(word) > columns {
                wrapped.push('\n');
                wrapped.push_str(indent);
                used = indent.len();
            } else {
                wrapped.push(' ');
                used += 1;
            }
            wrapped.push_str(word);
            used += width(word);
        }
        wrapped.push('\n');
    }
    wrapped
}

/// A path that terminals open on a click (OSC 8).
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
    fn paragraphs_are_broken_where_the_terminal_ends() {
        let source =
            "//! One two\n//! three.\n//!\n//! ```text\n//! a  b\n//! c\n//! ```\n//! End.\n\n//! no more\n";
        assert_eq!(contract(source), ["One two three.", "", "```text", "a  b", "c", "```", "End."]);
        assert_eq!(wrapped("  One two three.\n\nfour\n", 9), "  One two\n  three.\n\nfour\n");
        assert_eq!(wrapped("\u{1b}[1mOne\u{1b}[0m two", 7), "\u{1b}[1mOne\u{1b}[0m two\n");
        assert_eq!(wrapped("unbreakable", 4), "unbreakable\n");
    }

    #[test]
    fn an_address_has_no_blank() {
        let link = link(Path::new("/a b/ü"), Path::new("x.rs"));
        assert_eq!(link, "\x1b]8;;file:///a%20b/%C3%BC/x.rs\x1b\\x.rs\x1b]8;;\x1b\\");
    }
}
