//! What a program printed, as a picture of a terminal: for a speaker whose demo doesn't run.

use anstream::adapter::strip_str;
use anstyle_svg::{Term, WIN10_CONSOLE};
use anyhow::{Context, ensure};

use super::code::{BODY, LARGEST, SMALLEST, WIDTH, escaped};
use crate::output::Output;
use crate::page::up;

/// Where the pictures are, beside the decks.
pub(super) const FOLDER: &str = "recordings";

/// What `anstyle-svg` draws, in its pixels: the size of letters, how wide they are in the widest of its fonts, the height of a line, and
/// what stays free at each edge.
const LETTER: f64 = 14.0;
const COLUMN: f64 = 8.43;
const LINE: f64 = 18.0;
const EDGE: f64 = 10.0;

/// A part of a recording, which fits on a slide.
pub(super) struct Part {
    /// Its file in [`FOLDER`].
    pub(super) name: String,
    pub(super) svg: String,
    /// For those who don't see it.
    words: String,
    /// Pixels on the slide.
    height: f64,
}

impl Part {
    /// Its picture on a page.
    pub(super) fn html(&self, page: &str) -> String {
        // A blank line would end it, where it stands in Markdown.
        let words = escaped(&self.words).replace('"', "&quot;").replace('\n', "&#10;");
        format!(
            "<img class=\"recording\" src=\"{}{FOLDER}/{}\" alt=\"{words}\" style=\"height:{:.0}px\">\n",
            up(page),
            self.name,
            self.height
        )
    }
}

/// The picture of an output on a page, which has to do with one.
///
/// # Errors
/// It has too many lines, or is too wide.
pub(super) fn html(output: &Output, page: &str) -> anyhow::Result<String> {
    let parts = parts(output)?;
    ensure!(parts.len() == 1, "`{}` prints more lines than a slide has room for", output.command);
    Ok(parts[0].html(page))
}

/// An output below the command that prints it, in as many parts as it takes.
///
/// # Errors
/// It is too wide.
pub(super) fn parts(output: &Output) -> anyhow::Result<Vec<Part>> {
    let text = format!("\x1b[1m$ {}\x1b[0m\n{}", output.command, output.styled.trim_end());
    let lines: Vec<&str> = text.lines().collect();
    let number = lines.len().div_ceil(most_lines());
    let columns = lines.iter().map(|line| strip_str(line).to_string().chars().count()).max().unwrap_or(0);
    let even = lines.len().div_ceil(number);
    let size = size(even, columns).with_context(|| {
        format!("`{}` prints {columns} columns, and a slide has room for {}", output.command, most_columns())
    })?;
    let scale = f64::from(size) / LETTER;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of pixels")]
    let width = (f64::from(WIDTH) / scale - 2.0 * EDGE) as usize;
    let term = Term::new().palette(WIN10_CONSOLE).min_width_px(width);
    let part = |(number, lines): (usize, &[&str])| {
        let text = lines.join("\n");
        Part {
            name: format!("{}-{number}.svg", output.name),
            svg: with_view_box(&term.render_svg(&text)),
            words: format!("A terminal: {}", strip_str(&text)),
            height: (lines.len() as f64 * LINE + 2.0 * EDGE) * scale,
        }
    };
    Ok((1..).zip(lines.chunks(even)).map(part).collect())
}

/// The largest size of letters, in pixels of the slide, with which so many lines of so many columns fit.
fn size(lines: usize, columns: usize) -> Option<u32> {
    let (width, height) = (columns as f64 * COLUMN + 2.0 * EDGE, lines as f64 * LINE + 2.0 * EDGE);
    (SMALLEST..=LARGEST).rev().find(|&size| {
        let scale = f64::from(size) / LETTER;
        width * scale <= f64::from(WIDTH) && height * scale <= f64::from(BODY)
    })
}

fn most_lines() -> usize {
    (1..).find(|&lines| size(lines + 1, 0).is_none()).unwrap_or(1)
}

fn most_columns() -> usize {
    (1..).find(|&columns| size(1, columns + 1).is_none()).unwrap_or(1)
}

/// With its size as its view as well: not every browser makes it larger without.
fn with_view_box(svg: &str) -> String {
    let of =
        |name: &str| svg.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once("px\""));
    match (of("width"), of("height")) {
        (Some((width, _)), Some((height, _))) => {
            svg.replacen("<svg ", &format!("<svg viewBox=\"0 0 {width} {height}\" "), 1)
        }
        _ => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(styled: String) -> Output {
        Output { name: "a".to_owned(), command: "cargo course".to_owned(), styled }
    }

    #[test]
    fn a_recording_is_in_parts_that_fit() {
        assert_eq!((most_lines(), most_columns()), (20, 94));
        let parts = parts(&output("a line\n".repeat(29))).unwrap();
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["a-1.svg", "a-2.svg"]);
        assert!(
            parts[0].svg.contains("$ cargo course") && !parts[1].svg.contains("cargo"),
            "{}",
            parts[0].svg
        );
        assert!(parts[0].svg.starts_with("<svg viewBox=\"0 0 "), "{}", parts[0].svg);
        assert!(parts.iter().all(|part| part.height <= f64::from(BODY)));
    }

    #[test]
    fn who_does_not_see_it_is_told_its_words() {
        let html = html(&output("\x1b[91m<\"red\">\x1b[0m\n\nend\n".to_owned()), "deck/index.html").unwrap();
        assert!(html.starts_with("<img class=\"recording\" src=\"../recordings/a-1.svg\""), "{html}");
        assert!(
            html.contains("alt=\"A terminal: $ cargo course&#10;&lt;&quot;red&quot;&gt;&#10;&#10;end\""),
            "{html}"
        );
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let said = |text: String| html(&output(text), "index.html").unwrap_err().to_string();
        assert_eq!(said("x".repeat(95)), "`cargo course` prints 95 columns, and a slide has room for 94");
        assert!(said("x\n".repeat(20)).contains("more lines than a slide"));
    }
}
