//! Findings: what a real GPU would not say, with both sides and their source lines.

use std::fmt::Write as _;

use crate::site::Site;

/// A report in the making: a headline, lines of facts in columns, and the call that would mend it.
#[derive(Clone, Debug)]
pub struct Report {
    headline: String,
    facts: Vec<(String, Option<String>)>,
    help: Option<String>,
}

impl Report {
    /// Starts a report: `virtual GPU: {headline}`.
    pub fn new(headline: impl Into<String>) -> Self {
        Self { headline: headline.into(), facts: Vec::new(), help: None }
    }

    /// Adds a line without a source line.
    pub fn fact(mut self, text: impl Into<String>) -> Self {
        self.facts.push((text.into(), None));
        self
    }

    /// Adds a line that ends with the source line of `site`, where one is known.
    pub fn at(self, text: impl Into<String>, site: &Site) -> Self {
        let line = site.line().map(|line| line.to_string());
        self.at_line(text, line)
    }

    /// Adds a line that ends with a source line that is known already.
    pub fn at_line(mut self, text: impl Into<String>, line: Option<String>) -> Self {
        self.facts.push((text.into(), line));
        self
    }

    /// Says what would mend it.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let located = self.facts.iter().filter(|(_, line)| line.is_some());
        let width = located.map(|(text, _)| text.chars().count()).max().unwrap_or(0);
        let mut out = format!("virtual GPU: {}", self.headline);
        for (text, line) in &self.facts {
            match line {
                Some(line) => write!(out, "\n  {text:width$}   {line}")?,
                None => write!(out, "\n  {text}")?,
            }
        }
        if let Some(help) = &self.help {
            write!(out, "\n  help: {help}")?;
        }
        f.write_str(&out)
    }
}

/// Prints a line to standard error. Where nobody reads that, the program goes on all the same.
pub(crate) fn print(line: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// `1 byte`, `3 bytes`, `16 KiB`: a size as a person says it.
pub fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// `rank 2`, `ranks 0, 1 and 3`, `ranks 0 and 4 to 7`, of numbers that ascend.
pub fn ranks(list: &[usize]) -> String {
    if let [one] = list {
        return format!("rank {one}");
    }
    let runs = list.chunk_by(|one, next| one + 1 == *next);
    let words: Vec<String> = runs
        .flat_map(|run| match run {
            [first, _, .., _, last] => vec![format!("{first} to {last}")],
            few => few.iter().map(usize::to_string).collect(),
        })
        .collect();
    match words.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("ranks {one}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes_read_as_a_person_says_them() {
        assert_eq!(ranks(&[2]), "rank 2");
        assert_eq!(ranks(&[0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(ranks(&[0, 1, 2]), "ranks 0, 1 and 2");
        assert_eq!(ranks(&[1, 2, 3, 4]), "ranks 1 to 4");
        assert_eq!(ranks(&[0, 4, 5, 6, 7, 9]), "ranks 0, 4 to 7 and 9");
        assert_eq!(size(1), "1 byte");
        assert_eq!(size(16 << 10), "16 KiB");
        assert_eq!(size(1_025), "1025 bytes");
    }
}
