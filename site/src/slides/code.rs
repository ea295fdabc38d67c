//! Code that has to be read from the last row: formatted narrower, in the largest size that fits, on as few slides as it takes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use course::answers::{Change, compare};

/// What a slide has room for below its heading, in pixels: width and height.
pub(super) const WIDTH: u32 = 1280 - 2 * 56;
pub(super) const BODY: u32 = 720 - 2 * 40 - 76;
/// Pixels around the letters of a block, to the left and right, and above and below.
const BESIDE: u32 = 2 * 16;
const ABOVE: u32 = 2 * 12 + 16;
/// Pixels of a name above a block.
const LABEL: u32 = 44;
/// The smallest size of letters on a slide, in pixels: a 36th of its height. Outputs and pictures made of letters may have it.
pub(super) const SMALLEST: u32 = 20;
/// The smallest size of source code.
const SMALLEST_SOURCE: u32 = 22;
pub(super) const LARGEST: u32 = 30;
/// Columns that rustfmt is given, so that code keeps a readable size.
const COLUMNS: usize = 76;

/// A block of code.
pub(super) struct Block {
    /// What it is written in.
    pub(super) language: String,
    pub(super) text: String,
}

impl Block {
    /// In letters of `size` pixels.
    pub(super) fn to_html(&self, size: u32) -> String {
        let class = if self.language == "rust" { "language-rust" } else { "nohighlight" };
        let text = escaped(&self.text);
        format!(
            "<pre class=\"{class}\" style=\"font-size:{size}px\"><code class=\"{class}\">{text}</code></pre>\n"
        )
    }
}

/// The largest size, in pixels, with which blocks fit below each other into so much height, `smallest` or more.
///
/// # Errors
/// There is none: how long and how wide they are.
pub(super) fn size(blocks: &[Block], height: u32, smallest: u32) -> anyhow::Result<u32> {
    let lines: usize = blocks.iter().map(|block| block.text.lines().count()).sum();
    let columns = blocks.iter().flat_map(|block| block.text.lines()).map(|line| line.chars().count()).max();
    let (lines, columns) = (u32::try_from(lines)?, u32::try_from(columns.unwrap_or(0))?);
    let around = ABOVE * u32::try_from(blocks.len())?;
    let fits =
        |size: &u32| lines * size * 5 / 4 + around <= height && columns * size * 61 / 100 + BESIDE <= WIDTH;
    (smallest..=LARGEST).rev().find(fits).with_context(|| {
        format!(
            "{lines} lines, the widest of {columns} columns, don't fit: there is room for {} lines of {}",
            lines_in(height, smallest),
            (WIDTH - BESIDE) * 100 / 61 / smallest
        )
    })
}

/// How many lines of a block fit into so much height.
pub(super) fn lines_in(height: u32, size: u32) -> u32 {
    height.saturating_sub(ABOVE) * 4 / 5 / size
}

/// A source, as `rustfmt` writes it in few columns. Its anchors stay.
///
/// # Errors
/// `rustfmt` can't be run, or can't read it.
pub(super) fn narrow(source: &str) -> anyhow::Result<String> {
    let config = format!("max_width={COLUMNS},use_small_heuristics=Max");
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--config", &config])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("can't run rustfmt")?;
    rustfmt.stdin.take().context("rustfmt reads")?.write_all(source.as_bytes())?;
    let output = rustfmt.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().flat_map(folded).fold(String::new(), |text, line| text + &line + "\n"))
}

/// Statements, in few columns if they aren't.
///
/// # Errors
/// As [`narrow`].
pub(super) fn narrow_statements(code: &str) -> anyhow::Result<String> {
    if code.lines().all(|line| line.chars().count() <= COLUMNS) {
        return Ok(code.to_owned());
    }
    let made = narrow(&format!("fn statements() {{\n{code}\n}}\n"))?;
    let lines: Vec<&str> = made.lines().collect();
    let inside = lines.get(1..lines.len() - 1).unwrap_or_default();
    Ok(inside
        .iter()
        .fold(String::new(), |text, line| text + line.strip_prefix("    ").unwrap_or(line) + "\n"))
}

/// A comment of its own that is too long, as several lines. rustfmt leaves comments as they are.
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

/// A region's comment at its start, in one line, and its code.
pub(super) fn task_and_code(region: &str) -> (String, String) {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let comment =
        region.lines().take_while(is_comment).map(|line| line.trim_start().trim_start_matches('/').trim());
    let code = region.lines().skip_while(is_comment).skip_while(|line| line.trim().is_empty());
    (comment.collect::<Vec<_>>().join(" "), code.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Code as one block or more, each of which fits on a slide, divided where a reader would.
pub(super) fn pages(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().collect();
    let capacity = lines_in(BODY, SMALLEST_SOURCE) as usize;
    let mut pages = Vec::new();
    let mut rest = &lines[..];
    while rest.len() > capacity {
        let parts = rest.len().div_ceil(capacity);
        let even = rest.len().div_ceil(parts);
        let from = rest.len().saturating_sub(capacity * (parts - 1)).max(1);
        let cost = |&at: &usize| 4 * reluctance(rest[at - 1], rest[at]) + at.abs_diff(even);
        let at = (from..=capacity).min_by_key(cost).unwrap_or(capacity);
        pages.push(rest[..at].join("\n").trim_end().to_owned());
        rest = &rest[at..];
        while rest.first().is_some_and(|line| line.trim().is_empty()) {
            rest = &rest[1..];
        }
    }
    pages.push(rest.join("\n"));
    pages
}

/// How bad it is to turn the page between two lines.
fn reluctance(before: &str, after: &str) -> usize {
    if before.trim().is_empty() || after.trim().is_empty() {
        return 0;
    }
    let goes_on = after.trim_start().starts_with(['}', ')', ']', '.', '?']);
    let indent = after.len() - after.trim_start().len();
    let opens = before.ends_with(['{', '(', '[']);
    1 + indent / 4 + 4 * usize::from(goes_on) + 2 * usize::from(opens)
}

/// Code on a slide of its own.
///
/// # Errors
/// It is too wide.
pub(super) fn block(code: &str) -> anyhow::Result<String> {
    let block = Block { language: "rust".to_owned(), text: code.to_owned() };
    let size = size(std::slice::from_ref(&block), BODY, SMALLEST_SOURCE)?;
    Ok(block.to_html(size))
}

/// Several pieces of code below each other, each below its name.
///
/// # Errors
/// They don't fit in letters of `smallest` pixels.
pub(super) fn labelled<'c>(
    pieces: impl Iterator<Item = (&'c str, &'c str)>,
    smallest: u32,
) -> anyhow::Result<String> {
    let block = |code: &str| Block { language: "rust".to_owned(), text: code.to_owned() };
    let (names, blocks): (Vec<&str>, Vec<Block>) = pieces.map(|(name, code)| (name, block(code))).unzip();
    let labels = LABEL * u32::try_from(names.len())?;
    let size = size(&blocks, BODY.saturating_sub(labels), smallest)?;
    let html = names
        .iter()
        .zip(&blocks)
        .map(|(name, block)| format!("<h3><code>{name}</code></h3>\n{}", block.to_html(size)));
    Ok(html.collect())
}

/// In how many lines two sources differ.
pub(super) fn changes(from: &str, to: &str) -> usize {
    near(&compare(&plain(from), &plain(to)), 0).len()
}

/// In which lines the second source differs from the first, with as much around them as so many lines allow. Comments, imports and
/// blank lines are no matter. None if it takes more lines.
pub(super) fn difference(from: &str, to: &str, lines: usize) -> Option<Vec<(Change, String)>> {
    let all = compare(&plain(from), &plain(to));
    (0..=3).rev().map(|around| near(&all, around)).find(|shown| shown.len() <= lines)
}

/// A source without comments, imports and blank lines.
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

/// The lines that changed, and those that are no further away than `around`.
fn near(lines: &[(Change, String)], around: usize) -> Vec<(Change, String)> {
    let changed = |(change, _): &(Change, String)| matches!(change, Change::Removed | Change::Added);
    let mut shown: Vec<(Change, String)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let last = (at + around).min(lines.len() - 1);
        if lines[at.saturating_sub(around)..=last].iter().any(changed) && line.0 != Change::Gap {
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

/// A difference as HTML. What tells the lines apart is a sign before each, and not its colour alone.
///
/// # Errors
/// It doesn't fit into so much height.
pub(super) fn difference_block(lines: &[(Change, String)], height: u32) -> anyhow::Result<String> {
    let signed = lines.iter().map(|(change, line)| match change {
        Change::Removed => ("removed", format!("− {line}")),
        Change::Added => ("added", format!("+ {line}")),
        Change::Same => ("same", format!("  {line}")),
        Change::Gap => ("same", line.clone()),
    });
    let signed: Vec<(&str, String)> = signed.collect();
    let text = signed.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
    let size = size(&[Block { language: String::new(), text }], height, SMALLEST)?;
    let html = signed.iter().fold(String::new(), |html, (class, line)| {
        html + &format!("<span class=\"{class}\">{}</span>\n", escaped(line))
    });
    Ok(format!(
        "<pre class=\"difference\" style=\"font-size:{size}px\"><code class=\"nohighlight\" data-noescape>{html}</code></pre>\n"
    ))
}

/// Text in HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: usize, columns: usize) -> Block {
        Block { language: String::new(), text: format!("{}\n", "x".repeat(columns)).repeat(lines) }
    }

    #[test]
    fn the_size_is_the_largest_that_fits_and_never_below_the_smallest() {
        assert_eq!(size(&[text(3, 40)], BODY, SMALLEST).unwrap(), LARGEST);
        assert_eq!(size(&[text(3, 90)], BODY, SMALLEST).unwrap(), 20);
        assert!(size(&[text(18, 40)], BODY, SMALLEST).unwrap() < LARGEST);
        let said = size(&[text(3, 120)], BODY, SMALLEST).unwrap_err().to_string();
        assert!(said.starts_with("3 lines, the widest of 120 columns, don't fit"), "{said}");
        assert!(size(&[text(9, 40), text(13, 40)], BODY, SMALLEST).is_err());
    }

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
    fn the_comment_in_front_is_the_task() {
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
        let made = narrow(&source).unwrap();
        assert!(
            made.contains("    // ANCHOR: f\n    // word word") && made.contains("\n    // ANCHOR_END: f\n"),
            "{made}"
        );
        assert!(made.lines().all(|line| line.len() <= COLUMNS), "{made}");
        assert!(narrow("fn f( {").is_err());
        let statement = format!("let sum = {};\nsum\n", ["one_term(1)"; 9].join(" + "));
        let made = narrow_statements(&statement).unwrap();
        assert!(made.starts_with("let sum = one_term(1)") && made.ends_with(";\nsum\n"), "{made}");
        assert!(made.lines().all(|line| line.len() <= COLUMNS), "{made}");
    }

    #[test]
    fn a_difference_is_of_code_alone() {
        let from = "use a::{\n    b,\n};\n\n/// f\nfn f() {\n    one();\n    two();\n    three();\n}\n";
        let to = "fn f() {\n    one();\n    three();\n}\n";
        let lines = difference(from, to, 3).unwrap();
        let expected = [(Change::Same, "one();"), (Change::Removed, "two();"), (Change::Same, "three();")];
        assert_eq!(lines, expected.map(|(change, line)| (change, line.to_owned())));
        assert_eq!(difference(from, to, 2).unwrap(), [(Change::Removed, "two();".to_owned())]);
        assert_eq!(difference(from, to, 0), None);
        let html = difference_block(&lines, BODY).unwrap();
        assert!(html.contains("<span class=\"removed\">− two();</span>"), "{html}");
    }
}
