//! Reports: problems that a real GPU hides, with both sides and their source lines.

mod width;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use annotate_snippets::{Annotation, AnnotationKind, Element, Level, Renderer, Snippet};

use virtual_gpu_core::handle::Rank;
use virtual_gpu_core::memory::AllocationId;
use virtual_gpu_core::source_location::{CallSite, SourceLine};

/// A report under construction: a headline, what happened where, facts, and how to fix the problem.
///
/// Its text is the line `virtual GPU: {headline}` followed by indented lines, which show source lines as the Rust
/// compiler does.
#[derive(Clone, Debug)]
pub struct Report {
    headline: String,
    labels: Vec<SourceLabel>,
    facts: Vec<String>,
    help: Option<String>,
}

/// The label for a call that was made through a line in the program's own sources.
const CALLED: &str = "called from there";

/// What happened at a source line.
#[derive(Clone, Debug)]
struct SourceLabel {
    text: String,
    line: Option<SourceLine>,
    /// Whether it is about something earlier, such as where a buffer was allocated.
    is_background: bool,
}

impl Report {
    /// Starts a report: `virtual GPU: {headline}`.
    pub fn new(headline: impl Into<String>) -> Self {
        Self { headline: headline.into(), labels: Vec::new(), facts: Vec::new(), help: None }
    }

    /// Adds a fact.
    pub fn fact(mut self, text: impl Into<String>) -> Self {
        self.facts.push(text.into());
        self
    }

    /// Adds what happened at `call_site`: at the nearest line in the program's own sources, if there is one, and at the
    /// call itself.
    pub fn at(self, text: impl Into<String>, call_site: &CallSite) -> Self {
        self.at_lines(text, call_site, false)
    }

    /// Adds what happened at a known line.
    pub fn at_line(mut self, text: impl Into<String>, line: Option<SourceLine>) -> Self {
        self.labels.push(SourceLabel { text: text.into(), line, is_background: false });
        self
    }

    /// Adds what happened earlier at `call_site`, such as the allocation of a buffer.
    pub fn before_at(self, text: impl Into<String>, call_site: &CallSite) -> Self {
        self.at_lines(text, call_site, true)
    }

    fn at_lines(mut self, text: impl Into<String>, call_site: &CallSite, is_background: bool) -> Self {
        let (line, own) = (call_site.line(), call_site.own_line());
        let (text, calls) = (text.into(), own.is_some() && own != line);
        self.labels.push(SourceLabel { text, line: own.or_else(|| line.clone()), is_background });
        if calls {
            self.labels.push(SourceLabel { text: CALLED.to_owned(), line, is_background: true });
        }
        self
    }

    /// Adds how to fix the problem.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// Prints it to standard error.
    pub fn print(&self) {
        // Under shuttle, a program runs thousands of times.
        if cfg!(shuttle) {
            return;
        }
        let renderer = if is_colored() { Renderer::styled() } else { Renderer::plain() };
        print(self.render(&renderer, width::of_terminal()));
    }

    /// Prints it, unless a report with this headline about these lines has been printed already. Numbers in the headline
    /// don't matter.
    pub fn print_once(&self) {
        /// The reports so far.
        static PRINTED: Mutex<BTreeSet<(String, Vec<Option<SourceLine>>)>> = Mutex::new(BTreeSet::new());
        let headline = self.headline.replace(|letter: char| letter.is_ascii_digit(), "");
        let lines = self.labels.iter().map(|label| label.line.clone()).collect();
        if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert((headline, lines)) {
            self.print();
        }
    }

    /// Returns the report's text. If `width` is given, source lines fit into that many columns.
    fn render(&self, renderer: &Renderer, width: Option<usize>) -> String {
        let mut sources = Sources::default();
        let mut texts: Vec<String> = Vec::new();
        for SourceLabel { text, line, is_background } in &self.labels {
            let kind = if *is_background { AnnotationKind::Context } else { AnnotationKind::Primary };
            match line {
                Some(line) if sources.add(line, kind, text) => {}
                Some(line) => texts.push(format!("{text}: {line}")),
                None => texts.push(text.clone()),
            }
        }
        texts.extend(self.facts.iter().cloned());
        let title = Level::ERROR.with_name("virtual GPU").primary_title(self.headline.as_str());
        let moved = width.map_or_else(Vec::new, |width| sources.cut(width));
        let mut group = title.elements(sources.snippets());
        for text in &texts {
            group = group.element(Level::NOTE.no_name().message(text.as_str()));
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let mut text = renderer.render(&[group]);
        for (place, moved) in moved {
            text = text.replacen(&moved, &place, 1);
        }
        // All lines after the headline are indented, so that readers can see where a report ends.
        text.replace('\n', "\n  ")
    }
}

/// Returns whether reports are colored: they are if a person is reading them or the environment requests it, as
/// <https://bixense.com/clicolors/> specifies.
fn is_colored() -> bool {
    let asked = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    !asked("NO_COLOR") && (asked("CLICOLOR_FORCE") || std::io::stderr().is_terminal())
}

/// The source lines of a report, by file, in the order in which they appear.
#[derive(Default)]
struct Sources(Vec<Source>);

struct Source {
    file: PathBuf,
    is_own: bool,
    shown_path: String,
    text: String,
    marks: Vec<Mark>,
}

/// The marked bytes, and the label.
type Mark = (Range<usize>, AnnotationKind, String);

impl Sources {
    /// Adds what happened at a line. Returns `false` if the line can't be read.
    fn add(&mut self, line: &SourceLine, kind: AnnotationKind, text: &str) -> bool {
        let known = self.0.iter().position(|source| source.file == line.file);
        let at = known.unwrap_or_else(|| {
            let text = std::fs::read_to_string(&line.file).unwrap_or_default();
            let shown_path = line.shown_path().display().to_string();
            let (file, is_own) = (line.file.clone(), line.is_own());
            self.0.push(Source { file, is_own, shown_path, text, marks: Vec::new() });
            self.0.len() - 1
        });
        let source = &mut self.0[at];
        let Some(span) = call_at(&source.text, line.line, line.column) else { return false };
        let mark = (span, kind, text.to_owned());
        if !source.marks.contains(&mark) {
            source.marks.push(mark);
        }
        true
    }

    /// Cuts the lines to `width`. Returns the locations that this changes, as a snippet would show them before and
    /// after.
    fn cut(&mut self, width: usize) -> Vec<(String, String)> {
        let mut moved = Vec::new();
        for Source { shown_path, text, marks, .. } in &mut self.0 {
            let places = |text: &str, marks: &[Mark]| -> Vec<String> {
                let place =
                    |(span, ..): &Mark| format!("{shown_path}:{}\n", line_and_column(text, span.start));
                marks.iter().map(place).collect()
            };
            let before = places(text, marks);
            *text = width::cut_lines(text, marks.iter_mut().map(|(span, ..)| span).collect(), width);
            moved.extend(
                before.into_iter().zip(places(text, marks)).filter(|(before, after)| before != after),
            );
        }
        moved
    }

    /// Returns the snippets, with the program's own sources first.
    fn snippets(self) -> Vec<Element<'static>> {
        let marked = self.0.into_iter().filter(|source| !source.marks.is_empty());
        let (own, others): (Vec<_>, Vec<_>) = marked.partition(|source| source.is_own);
        let snippet = |source: Source| {
            let marks = source.marks.into_iter().map(|(span, kind, text)| kind.span(span).label(text));
            let snippet: Snippet<'static, Annotation<'static>> = Snippet::source(source.text);
            snippet.path(source.shown_path).annotations(marks).into()
        };
        own.into_iter().chain(others).map(snippet).collect()
    }
}

/// Formats a location in a text the way a snippet shows it.
fn line_and_column(text: &str, at: usize) -> String {
    let before = &text[..at];
    let column = before.chars().rev().take_while(|&char| char != '\n').count() + 1;
    format!("{}:{column}", before.matches('\n').count() + 1)
}

/// Returns the byte range of the call that begins at a line and column, both counted from 1. The call extends to its
/// closing parenthesis or to the end of the line.
fn call_at(text: &str, line: u32, column: u32) -> Option<Range<usize>> {
    let before = text.split_inclusive('\n').take(line.checked_sub(1)? as usize).map(str::len).sum::<usize>();
    let whole = text.get(before..)?.lines().next().filter(|whole| !whole.trim().is_empty())?;
    let indent = whole.len() - whole.trim_start().len();
    let start = (column as usize).saturating_sub(1).max(indent);
    let call = whole.get(start..).filter(|call| !call.is_empty())?;
    let mut depth = 0_usize;
    let closing = call.char_indices().find(|&(_, char)| {
        match char {
            '(' => depth += 1,
            ')' if depth <= 1 => return true,
            ')' => depth -= 1,
            _ => {}
        }
        false
    });
    let len = match closing {
        Some((at, _)) if depth == 1 => at + 1,
        _ => call.trim_end().trim_end_matches(';').len(),
    };
    Some(before + start..before + start + len.max(1))
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render(&Renderer::plain(), width::of_terminal()))
    }
}

/// Prints a line to standard error. If standard error is closed, the program continues.
pub(crate) fn print(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Formats a size the way people write it: `1 byte`, `3 bytes`, `16 KiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Formats ranks in ascending order: `rank 2`, `ranks 0, 1 and 3`, `ranks 0 and 4 to 7`.
pub fn ranks(list: &[Rank]) -> String {
    if let [one] = list {
        return format!("rank {one}");
    }
    let mut words = Vec::new();
    for run in list.chunk_by(|one, next| one.0 + 1 == next.0) {
        match run {
            [first, _, .., _, last] => words.push(format!("{first} to {last}")),
            few => words.extend(few.iter().map(Rank::to_string)),
        }
    }
    match words.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("ranks {one}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}

/// Returns the name that reports use for the memory that contains an allocation of `device`.
pub fn memory_of(allocation: AllocationId, device: usize) -> String {
    match (allocation.is_pinned(), allocation.is_managed()) {
        (true, _) => "of pinned host memory".to_owned(),
        (false, true) => "in managed memory".to_owned(),
        (false, false) => format!("on GPU {device}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn main() {\n    let x = stream.alloc_zeros::<u8>(4)?;\n    other.memset(&mut x)?;\n    done(\n    );\n}\n";

    fn line(line: u32, column: u32) -> Option<SourceLine> {
        let file = std::env::temp_dir().join(format!("virtual-gpu-report-{}.rs", std::process::id()));
        std::fs::write(&file, SOURCE).unwrap();
        Some(SourceLine { file, line, column })
    }

    #[test]
    fn a_report_shows_the_source_lines() {
        let report = Report::new("data race on GPU 1")
            .at_line("written by a memset", line(3, 11))
            .fact("nothing orders them")
            .help("wait");
        let file = line(1, 1).expect("a file").file;
        let expected = [
            "virtual GPU: data race on GPU 1",
            &format!("   --> {}:3:11", file.display()),
            "    |",
            "  3 |     other.memset(&mut x)?;",
            "    |           ^^^^^^^^^^^^^^ written by a memset",
            "    |",
            "    = nothing orders them",
            "    = help: wait",
        ];
        assert_eq!(report.render(&Renderer::plain(), None), expected.join("\n"));
        let expected = [
            "virtual GPU: data race on GPU 1",
            &format!("   --> {}:3:11", file.display()),
            "    |",
            "  3 | …memset(&mut x)?;",
            "    |  ^^^^^^^^^^^^^^ written by a memset",
            "    |",
            "    = nothing orders them",
            "    = help: wait",
        ];
        assert_eq!(report.render(&Renderer::plain(), Some(24)), expected.join("\n"));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let file = PathBuf::from("/no/such/file.rs");
        let report = Report::new("wrong").at_line("called", Some(SourceLine { file, line: 7, column: 1 }));
        assert!(report.to_string().contains("called: /no/such/file.rs:7"), "{report}");
    }

    #[test]
    fn a_call_ends_at_its_parenthesis_or_with_its_line() {
        let call = |line, column| call_at(SOURCE, line, column).map(|span| &SOURCE[span]);
        assert_eq!(call(2, 20), Some("alloc_zeros::<u8>(4)"));
        assert_eq!(call(3, 1), Some("other.memset(&mut x)"));
        assert_eq!(call(4, 5), Some("done("));
        assert_eq!(call(6, 1), Some("}"));
        assert_eq!(call(7, 1), None);
        assert_eq!(call(0, 0), None);
        assert_eq!(call(3, 99), None);
    }

    #[test]
    fn lists_and_sizes_read_as_a_person_says_them() {
        let ranks = |numbers: &[usize]| ranks(&numbers.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(ranks(&[2]), "rank 2");
        assert_eq!(ranks(&[0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(ranks(&[0, 1, 2]), "ranks 0, 1 and 2");
        assert_eq!(ranks(&[1, 2, 3, 4]), "ranks 1 to 4");
        assert_eq!(ranks(&[0, 4, 5, 6, 7, 9]), "ranks 0, 4 to 7 and 9");
        assert_eq!(size(1), "1 byte");
        assert_eq!(size(16 << 10), "16 KiB");
        assert_eq!(size(1 << 30), "1024 MiB");
        assert_eq!(size(1000), "1000 bytes");
    }
}
