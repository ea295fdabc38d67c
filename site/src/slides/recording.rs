//! Pictures of a terminal with a program's output, for a speaker whose demo doesn't run.

use anstream::adapter::strip_str;
use anyhow::ensure;

use super::code::escaped;
use crate::output::Output;
use crate::page::up;
use crate::terminal;

/// The folder for the pictures, next to the decks.
pub(super) const FOLDER: &str = "recordings";

/// The size of a terminal that fits on a slide, with 26-pixel letters.
const COLUMNS: usize = 74;
const LINES: usize = 15;
/// The escape sequence that ends a style.
const RESET: &str = "\x1b[0m";
/// The width of [`COLUMNS`] in pixels, as `anstyle-svg` draws them.
const WIDTH: usize = 622;

/// A part of a recording that fits on a slide.
pub(super) struct Part {
    /// The name of the part's file in [`FOLDER`].
    pub(super) name: String,
    pub(super) svg: String,
    /// Its description for people who can't see it.
    words: String,
}

impl Part {
    /// Returns the HTML that shows the picture on a page.
    pub(super) fn html(&self, page: &str) -> String {
        // In Markdown, a blank line would end the HTML.
        let words = escaped(&self.words).replace('"', "&quot;").replace('\n', "&#10;");
        format!("<img class=\"recording\" src=\"{}{FOLDER}/{}\" alt=\"{words}\">\n", up(page), self.name)
    }
}

/// Returns the HTML of an output that has to fit in one picture.
///
/// # Errors
/// Fails if it has too many lines.
pub(super) fn html(output: &Output, page: &str) -> anyhow::Result<String> {
    let parts = parts(output);
    ensure!(parts.len() == 1, "`{}` prints more lines than fit on a slide", output.command);
    Ok(parts[0].html(page))
}

/// Draws a command and its output, in as many parts as needed.
pub(super) fn parts(output: &Output) -> Vec<Part> {
    let text = format!("\x1b[1m$ {}\x1b[0m\n{}", output.command, output.styled.trim_end());
    let lines: Vec<String> = text.lines().flat_map(wrapped).collect();
    let even = lines.len().div_ceil(lines.len().div_ceil(LINES));
    let part = |(number, lines): (usize, &[String])| {
        let text = lines.join("\n");
        Part {
            name: format!("{}-{number}.svg", output.name),
            svg: terminal::svg(&text, WIDTH),
            words: format!("A terminal: {}", strip_str(&text)),
        }
    };
    (1..).zip(lines.chunks(even)).map(part).collect()
}

/// Wraps a line that is too wide, before a word, and indents the rest. Escape sequences have no width.
fn wrapped(line: &str) -> Vec<String> {
    let (indent, space) = indent(line);
    let (mut lines, mut last, mut columns, mut words) = (Vec::new(), String::new(), 0, 0);
    let mut style = String::new();
    for word in line.split_inclusive(' ') {
        let width = width(word.trim_end());
        if words > 0 && columns + width > COLUMNS {
            lines.push(format!("{}{RESET}", last.trim_end()));
            (last, columns, words) = (format!("{indent}{style}"), space, 0);
        }
        for code in word.split('\x1b').skip(1).filter_map(|rest| rest.split_once('m')) {
            match code.0 {
                "[0" => style.clear(),
                code => style += &format!("\x1b{code}m"),
            }
        }
        columns += width + word.len() - word.trim_end().len();
        words += 1;
        last += word;
    }
    lines.push(last);
    lines
}

/// Returns what comes before the rest of a wrapped line, and its width. In a report, the rest of a label is below its
/// start, behind the bar that connects the lines of a program.
fn indent(line: &str) -> (String, usize) {
    let text = strip_str(line).to_string();
    let spaces = |text: &str| text.len() - text.trim_start_matches(' ').len();
    let start = spaces(&text);
    let bar = line.find('|').filter(|_| text[start..].starts_with('|'));
    let Some(bar) = bar else { return (" ".repeat(start + 4), start + 4) };
    let marks = start + 1 + spaces(&text[start + 1..]);
    let after = text[marks..].trim_start_matches(['^', '-', '~']);
    let label = text.len() - after.trim_start_matches(' ').len();
    (format!("{}{RESET}{}", &line[..=bar], " ".repeat(label - start - 1)), label)
}

/// Returns the number of columns that a text takes up.
fn width(text: &str) -> usize {
    strip_str(text).to_string().chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(styled: String) -> Output {
        Output { name: "a".to_owned(), command: "cargo course".to_owned(), styled }
    }

    #[test]
    fn a_recording_is_in_parts_that_fit() {
        let parts = parts(&output("a line\n".repeat(29)));
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["a-1.svg", "a-2.svg"]);
        assert!(
            parts[0].svg.contains("$ cargo course") && !parts[1].svg.contains("cargo"),
            "{}",
            parts[0].svg
        );
        assert!(parts[0].svg.starts_with("<svg viewBox=\"0 0 "), "{}", parts[0].svg);
    }

    #[test]
    fn a_picture_is_described_by_its_words() {
        let html = html(&output("\x1b[91m<\"red\">\x1b[0m\n\nend\n".to_owned()), "deck/index.html").unwrap();
        assert!(html.starts_with("<img class=\"recording\" src=\"../recordings/a-1.svg\""), "{html}");
        assert!(
            html.contains("alt=\"A terminal: $ cargo course&#10;&lt;&quot;red&quot;&gt;&#10;&#10;end\""),
            "{html}"
        );
    }

    #[test]
    fn a_wide_line_is_wrapped_before_a_word() {
        let line = format!("\x1b[1m{} word\x1b[0m", "x".repeat(70));
        let expected = [format!("\x1b[1m{}\x1b[0m", "x".repeat(70)), "    \x1b[1mword\x1b[0m".to_owned()];
        assert_eq!(wrapped(&line), expected);
        let fits = "x".repeat(69) + " word";
        assert_eq!(wrapped(&fits), [fits.as_str()]);
    }

    #[test]
    fn the_rest_of_a_label_is_below_its_start() {
        let line = format!("  \x1b[94m|\x1b[0m {} \x1b[91mread by {}", "^".repeat(40), "a kernel ".repeat(4));
        let lines = wrapped(line.trim_end());
        let shown: Vec<String> = lines.iter().map(|line| strip_str(line).to_string()).collect();
        assert_eq!(shown[0], format!("  | {} read by a kernel a kernel a", "^".repeat(40)));
        assert_eq!(shown[1], format!("  |{}kernel a kernel", " ".repeat(42)));
        assert!(
            lines[1].starts_with("  \x1b[94m|\x1b[0m") && lines[1].ends_with("\x1b[91mkernel a kernel"),
            "{lines:?}"
        );
    }

    #[test]
    fn output_that_does_not_fit_is_named() {
        let said = |text: String| html(&output(text), "index.html").unwrap_err().to_string();
        assert_eq!(said("x\n".repeat(15)), "`cargo course` prints more lines than fit on a slide");
    }
}
