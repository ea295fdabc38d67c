//! Code on slides: formatted in few columns, so that the last row of the audience can read it, and divided among as few
//! slides as possible. All code has the font size set in `slides.css`; the browser check finds code that doesn't fit.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};
use course::answers::{Change, compare_whole};

/// The number of columns of code that fit on a slide.
const COLUMNS: usize = 72;
/// The maximum width of a string, which rustfmt doesn't break: with a sign before it and without the indentation of its
/// function, it still fits.
const WIDEST: usize = 76;
/// The number of lines of code that fit on a slide.
pub(super) const LINES: usize = 17;
/// The number of lines that the name above a block takes up, including the space around the block.
pub(super) const LABEL: usize = 3;

/// A block of code.
pub(super) struct Block {
    /// The language of the code.
    pub(super) language: String,
    pub(super) text: String,
}

impl Block {
    pub(super) fn to_html(&self) -> String {
        let class = if self.language == "rust" { "language-rust" } else { "nohighlight" };
        let text = escaped(&self.text);
        format!("<pre class=\"{class}\"><code class=\"{class}\">{text}</code></pre>\n")
    }
}

/// Formats sources with `rustfmt` in few columns, and keeps their anchors. Each source has a name of its own. One process formats
/// all of them, because starting it takes longer than formatting a source.
///
/// # Errors
/// Fails if `rustfmt` can't be run or can't parse a source; the error contains the source's name.
pub(super) fn narrow(sources: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let files: Vec<_> = sources.iter().map(|(name, _)| folder.path().join(format!("{name}.rs"))).collect();
    for (file, (_, source)) in files.iter().zip(sources) {
        fs::write(file, source)?;
    }
    let config = format!("max_width={COLUMNS},use_small_heuristics=Max");
    let output = Command::new("rustfmt")
        .args(["--edition", "2024", "--config", &config])
        .args(&files)
        .output()
        .context("can't run rustfmt")?;
    ensure!(output.status.success(), "rustfmt: {}", String::from_utf8_lossy(&output.stderr));
    let formatted = |file| {
        let text = fs::read_to_string(file)?;
        let lines = text.lines().flat_map(folded).flat_map(|line| folded_string(&line));
        Ok(lines.fold(String::new(), |text, line| text + &line + "\n"))
    };
    files.iter().map(formatted).collect()
}

/// Formats statements in few columns, unless they already fit.
///
/// # Errors
/// Fails in the same cases as [`narrow`].
pub(super) fn narrow_statements(code: &str) -> anyhow::Result<String> {
    if code.lines().all(|line| line.chars().count() <= COLUMNS) {
        return Ok(code.to_owned());
    }
    let made = narrow(&[("statements", &format!("fn statements() {{\n{code}\n}}\n"))])?;
    let lines: Vec<&str> = made[0].lines().collect();
    let inside = lines.get(1..lines.len() - 1).unwrap_or_default();
    Ok(inside
        .iter()
        .fold(String::new(), |text, line| text + line.strip_prefix("    ").unwrap_or(line) + "\n"))
}

/// Splits an overlong comment line, because rustfmt doesn't change comments.
fn folded(line: &str) -> Vec<String> {
    let words = line.trim_start().strip_prefix("// ");
    let Some(words) = words.filter(|_| line.chars().count() > COLUMNS) else { return vec![line.to_owned()] };
    let start = line[..line.len() - line.trim_start().len()].to_owned() + "//";
    let mut lines = vec![start.clone()];
    for word in words.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{start} {word}"));
        } else {
            lines[last] += &format!(" {word}");
        }
    }
    lines
}

/// Splits an overlong line that contains only a string. A backslash at the end of a line continues the string.
fn folded_string(line: &str) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let is_string = line[indent..].starts_with('"') && line[indent + 1..].matches('"').count() == 1;
    let width = |line: &str| line.chars().count();
    let (mut lines, mut rest) = (Vec::new(), line.to_owned());
    while is_string && width(&rest) > WIDEST {
        // The last space that leaves room for the backslash.
        let fits = |&(at, _): &(usize, &str)| at > indent && width(&rest[..at]) + 2 <= COLUMNS;
        let Some((at, _)) = rest.match_indices(' ').rfind(fits) else { break };
        lines.push(format!("{} \\", &rest[..at]));
        rest = " ".repeat(indent) + &rest[at + 1..];
    }
    lines.push(rest);
    lines
}

/// Returns the comment at the start of a region as one line, and the region's code.
pub(super) fn task_and_code(region: &str) -> (String, String) {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let comment =
        region.lines().take_while(is_comment).map(|line| line.trim_start().trim_start_matches('/').trim());
    let code = region.lines().skip_while(is_comment).skip_while(|line| line.trim().is_empty());
    (comment.collect::<Vec<_>>().join(" "), code.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Divides code, where a reader would divide it, into blocks that each fit on a slide.
pub(super) fn pages(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().collect();
    let mut pages = Vec::new();
    let mut rest = &lines[..];
    while rest.len() > LINES {
        let parts = rest.len().div_ceil(LINES);
        let even = rest.len().div_ceil(parts);
        let from = rest.len().saturating_sub(LINES * (parts - 1)).max(1);
        let lonely = |lines: usize| 4 * 3_usize.saturating_sub(lines);
        let cost = |&at: &usize| {
            4 * reluctance(rest[at - 1], rest[at]) + at.abs_diff(even) + lonely(at) + lonely(rest.len() - at)
        };
        let at = (from..=LINES).min_by_key(cost).unwrap_or(LINES);
        pages.push(rest[..at].join("\n").trim_end().to_owned());
        rest = &rest[at..];
        while rest.first().is_some_and(|line| line.trim().is_empty()) {
            rest = &rest[1..];
        }
    }
    pages.push(rest.join("\n"));
    pages
}

/// Returns the penalty for a page break between two lines.
fn reluctance(before: &str, after: &str) -> usize {
    if before.trim().is_empty() || after.trim().is_empty() {
        return 0;
    }
    let goes_on = after.trim_start().starts_with(['{', '}', ')', ']', '.', '?']);
    let indent = after.len() - after.trim_start().len();
    let opens = before.ends_with(['{', '(', '[']);
    1 + indent / 4 + 4 * usize::from(goes_on) + 2 * usize::from(opens)
}

/// Returns the number of a slide, for a heading, unless there is only one.
pub(super) fn of(number: usize, all: usize) -> String {
    if all > 1 { format!(", {number} of {all}") } else { String::new() }
}

/// Formats a piece of code.
pub(super) fn block(code: &str) -> String {
    Block { language: "rust".to_owned(), text: code.to_owned() }.to_html()
}

/// Returns the number of lines that a difference removes or adds.
pub(super) fn changes(lines: &[(Change, String)]) -> usize {
    lines.iter().filter(|(change, _)| matches!(change, Change::Removed | Change::Added)).count()
}

/// Returns whether a difference only removes lines that stay elsewhere in it.
pub(super) fn is_repetition(lines: &[(Change, String)]) -> bool {
    let call = |line: &str| line.trim().trim_end_matches([';', '?']).to_owned();
    let of = |kind: Change| lines.iter().filter(move |(change, _)| *change == kind);
    let stays = |line: &str| of(Change::Same).any(|(_, same)| call(same) == call(line));
    of(Change::Added).next().is_none() && of(Change::Removed).all(|(_, line)| stays(line))
}

/// Returns the second source without comments, imports, and blank lines. If it has more than `lines` lines, only the
/// lines near those that differ from the first source remain, between ellipses. Returns `None` if these are too many,
/// too.
pub(super) fn excerpt(from: &str, to: &str, lines: usize) -> Option<String> {
    let whole = plain(to);
    if whole.lines().count() <= lines {
        return Some(whole);
    }
    let all = compare_whole(&plain(from), &plain(to));
    let is_changed = |(change, _): &(Change, String)| *change != Change::Same;
    let last = all.iter().rposition(is_changed)?;
    let of_second = |around: usize| -> Vec<String> {
        let gap = |is_cut: bool| is_cut.then(|| (Change::Gap, "…".to_owned()));
        let start = start(&all, around, false);
        let (before, after) = (gap(start > 0), gap(last + around + 1 < all.len()));
        let shown = before.into_iter().chain(near(&all, around, start)).chain(after);
        shown.filter(|(change, _)| *change != Change::Removed).map(|(_, line)| line).collect()
    };
    // Where lines are missing, only their neighbors show it.
    (1..=lines).rev().map(of_second).find(|shown| shown.len() <= lines).map(|shown| shown.join("\n"))
}

/// Returns the lines where the second source differs from the first, with as much context as `lines` allows. Comments,
/// imports, and blank lines are ignored. Returns `None` if the differences alone need more lines.
pub(super) fn difference(from: &str, to: &str, lines: usize) -> Option<Vec<(Change, String)>> {
    let all = compare_whole(&plain(from), &plain(to));
    let shown = |is_whole| {
        let near = |around| near(&all, around, start(&all, around, is_whole));
        (0..=3).rev().map(near).find(|shown| shown.len() <= lines)
    };
    shown(true).or_else(|| shown(false))
}

/// Returns a source without comments, imports, and blank lines.
fn plain(source: &str) -> String {
    let mut kept = String::new();
    let mut in_import = false;
    for line in source.lines() {
        in_import |= line.starts_with("use ");
        let is_code = !in_import && !line.trim().is_empty() && !line.trim_start().starts_with("//");
        if is_code {
            kept += line;
            kept.push('\n');
        }
        in_import &= !line.ends_with(';');
    }
    kept
}

/// Returns the lines from `start`: those changed, and those at most `around` lines away from a change.
fn near(lines: &[(Change, String)], around: usize, start: usize) -> Vec<(Change, String)> {
    let changed = |(change, _): &(Change, String)| matches!(change, Change::Removed | Change::Added);
    let first = lines.iter().position(changed).unwrap_or(lines.len());
    let mut shown: Vec<(Change, String)> = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(start) {
        let last = (at + around).min(lines.len() - 1);
        if at < first || lines[at.saturating_sub(around)..=last].iter().any(changed) {
            shown.push(line.clone());
        } else if shown.last().is_some_and(|(change, _)| *change != Change::Gap) {
            shown.push((Change::Gap, "…".to_owned()));
        }
    }
    if shown.last().is_some_and(|(change, _)| *change == Change::Gap) {
        shown.pop();
    }
    let indent = |(change, line): &(Change, String)| {
        (*change != Change::Gap).then(|| line.len() - line.trim_start().len())
    };
    let common = shown.iter().filter_map(indent).min().unwrap_or(0);
    shown.into_iter().map(|(change, line)| (change, line.get(common..).unwrap_or(&line).to_owned())).collect()
}

/// Returns the first line to show: at most `around` lines before the first change, and not within a statement. If no
/// statement begins there, it is the first change, or with `is_whole`, the beginning of the statement before it.
fn start(lines: &[(Change, String)], around: usize, is_whole: bool) -> usize {
    let first = lines.iter().position(|(change, _)| *change != Change::Same).unwrap_or(lines.len());
    let begins = |&at: &usize| {
        let is_inside = lines[at].1.trim_start().starts_with(['}', ')', ']', '.', '?']);
        let is_next = at == 0 || lines[at - 1].1.ends_with([';', '{', '}']);
        is_next && !is_inside
    };
    let from = first.saturating_sub(around);
    let before = (0..from).rfind(|at| is_whole && begins(at));
    (from..first).find(begins).or(before).unwrap_or(first)
}

/// Formats a difference as HTML. Changes are marked by a sign before each line, not just by color.
pub(super) fn difference_block(lines: &[(Change, String)]) -> String {
    let signed = lines.iter().map(|(change, line)| match change {
        Change::Removed => ("removed", format!("− {line}")),
        Change::Added => ("added", format!("+ {line}")),
        Change::Same => ("same", format!("  {line}")),
        Change::Gap => ("same", line.clone()),
    });
    let html = signed.fold(String::new(), |html, (class, line)| {
        html + &format!("<span class=\"{class}\">{}</span>\n", escaped(&line))
    });
    format!("<pre class=\"difference\"><code class=\"nohighlight\" data-noescape>{html}</code></pre>\n")
}

/// Escapes text for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_where_a_statement_does() {
        let statement = |name: &str| format!("let {name} = f(\n    1,\n    2,\n);\n");
        let code = ["a", "b", "c", "d", "e", "f"].map(statement).concat();
        let made = pages(code.trim_end());
        assert_eq!(made.len(), 2);
        assert!(made[0].ends_with("\n);") && made[1].starts_with("let d"), "{made:?}");
        assert_eq!(made.join("\n"), code.trim_end());
        assert_eq!(pages("a\nb"), ["a\nb"]);
    }

    #[test]
    fn a_page_has_more_than_one_line() {
        let code = "f(\n".to_owned()
            + &"    1,\n".repeat(7)
            + "    |x| {\n"
            + &"        x();\n".repeat(7)
            + "    },\n);\nOk(())";
        let made = pages(&code);
        assert!(made.len() == 2 && made[1].lines().count() > 2, "{made:?}");
    }

    #[test]
    fn a_long_string_is_continued_on_the_next_line() {
        let line = format!("    \"{}the end\",", "word ".repeat(13));
        let made = folded_string(&line);
        assert_eq!(made, [format!("    \"{}\\", "word ".repeat(13)), "    the end\",".to_owned()]);
        for whole in [&line[..40], "    \"short\",", "let x = 1;"] {
            assert_eq!(folded_string(whole), [whole]);
        }
    }

    #[test]
    fn the_leading_comment_is_the_task() {
        let (task, code) = task_and_code("// Do it.\n// And that.\n\nlet x = 1;\n// why\nx\n");
        assert_eq!((task.as_str(), code.as_str()), ("Do it. And that.", "let x = 1;\n// why\nx"));
    }

    #[test]
    fn narrow_code_keeps_its_anchors_and_folds_its_comments() {
        let long = "word ".repeat(30);
        let source = format!(
            "fn f() {{\n    // ANCHOR: f\n    // {}\n    g()\n    // ANCHOR_END: f\n}}\n",
            long.trim()
        );
        let made = narrow(&[("one", "fn one( ) {}"), ("long", &source)]).unwrap();
        assert_eq!(made[0], "fn one() {}\n");
        let made = &made[1];
        assert!(
            made.contains("    // ANCHOR: f\n    // word word") && made.contains("\n    // ANCHOR_END: f\n"),
            "{made}"
        );
        assert!(made.lines().all(|line| line.len() <= COLUMNS), "{made}");
        let error = narrow(&[("right", "fn f() {}"), ("wrong", "fn f( {")]).unwrap_err().to_string();
        assert!(error.contains("wrong.rs:1"), "{error}");
        let statement = format!("let sum = {};\nsum\n", ["one_term(1)"; 9].join(" + "));
        let made = narrow_statements(&statement).unwrap();
        assert!(made.starts_with("let sum = one_term(1)") && made.ends_with(";\nsum\n"), "{made}");
        assert!(made.lines().all(|line| line.len() <= COLUMNS), "{made}");
    }

    #[test]
    fn an_excerpt_is_the_second_source_near_its_changes() {
        let numbered = |change: &str| {
            let line = |at| if at == 9 { format!("{change}();\n") } else { format!("f({at});\n") };
            (0..20).map(line).collect::<String>()
        };
        let (from, to) = (numbered("wait"), numbered("poll"));
        assert_eq!(excerpt(&from, &to, 20).unwrap(), to);
        let near = excerpt(&from, &to, 5).unwrap();
        assert_eq!(near, "…\nf(8);\npoll();\nf(10);\n…");
        let call = "g(\n    1,\n);\nf(2);\n".to_owned() + &"f(3);\n".repeat(9);
        assert_eq!(excerpt(&call, &call.replace("f(2)", "h(2)"), 4).unwrap(), "…\nh(2);\nf(3);\n…");
        let at_start = excerpt(&from, &from.replace("f(1)", "g(1)"), 6).unwrap();
        assert_eq!(at_start, "f(0);\ng(1);\nf(2);\nf(3);\nf(4);\n…");
        assert_eq!(excerpt(&from, &to, 4), None);
    }

    #[test]
    fn a_difference_shows_only_code() {
        let from = "use a::{\n    b,\n};\n\n/// f\nfn f() {\n    one();\n    two();\n    three();\n}\n";
        let to = "fn f() {\n    one();\n    three();\n}\n";
        let lines = difference(from, to, 3).unwrap();
        let expected = [(Change::Same, "one();"), (Change::Removed, "two();"), (Change::Same, "three();")];
        assert_eq!(lines, expected.map(|(change, line)| (change, line.to_owned())));
        assert_eq!(difference(from, to, 2).unwrap(), lines[..2]);
        assert_eq!(difference(from, to, 0), None);
        let twice = difference("one()?;\none()\n", "one()\n", 3).unwrap();
        assert!(is_repetition(&twice) && !is_repetition(&lines));
        assert_eq!(changes(&lines), 1);
        let from = "one();\ntwo(\n    1,\n    2,\n    3,\n);\nfour();\n";
        let to = from.replace("four", "five");
        assert_eq!(difference(from, &to, 7).unwrap()[0].1, "two(");
        assert_eq!(difference(from, &to, 6).unwrap()[0].1, "four();");
        let html = difference_block(&lines);
        assert!(html.contains("<span class=\"removed\">− two();</span>"), "{html}");
    }
}
