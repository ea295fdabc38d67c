//! Expands the directives `{{#…}}` in a Markdown text.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use course::syllabus::{Course, Exercise, Scheduled, clock};

use crate::evidence;
use crate::links::{self, Target};
use crate::output::{Output, Outputs};
use crate::source;

/// What pages are made from.
pub(crate) struct Pages<'a> {
    pub(crate) root: &'a Path,
    pub(crate) course: &'a Course,
    pub(crate) outputs: &'a Outputs,
    /// The page that shows each file in the repository.
    pub(crate) shown: BTreeMap<String, String>,
    /// Formats an output for a page.
    pub(crate) output: fn(&Output, page: &str) -> anyhow::Result<String>,
}

impl Pages<'_> {
    /// Returns the text of the file `from`, prepared to be shown as `page`.
    ///
    /// # Errors
    /// Fails if the file refers to something that doesn't exist, or if one of its links is broken.
    pub(crate) fn text(&self, from: &str, page: &str) -> anyhow::Result<String> {
        self.expanded(&source::read(self.root, from)?, from, page).with_context(|| from.to_owned())
    }

    /// Expands a text from the file `from`, as it is shown on `page`.
    ///
    /// # Errors
    /// Fails like [`Self::text`].
    pub(crate) fn expanded(&self, text: &str, from: &str, page: &str) -> anyhow::Result<String> {
        let text = self.linked(text, from, page)?;
        let (mut rest, mut expanded) = (text.as_str(), String::new());
        while let Some((before, after)) = rest.split_once("{{#") {
            let (request, after) = after.split_once("}}").context("a `{{#` has no matching `}}`")?;
            rest = after;
            if let Some(before) = before.strip_suffix('\\') {
                expanded += &format!("{before}{{{{#{request}}}}}");
                continue;
            }
            expanded += before;
            let (what, of) = request.trim().split_once(' ').unwrap_or((request.trim(), ""));
            expanded += self
                .asked(what, of.trim(), from, page)
                .with_context(|| format!("{{{{#{request}}}}}"))?
                .trim_end();
        }
        Ok(expanded + rest)
    }

    fn asked(&self, what: &str, of: &str, from: &str, page: &str) -> anyhow::Result<String> {
        Ok(match what {
            "include" => {
                let (path, heading) =
                    of.split_once('#').map_or((of, None), |(path, heading)| (path, Some(heading)));
                let path = source::resolve(from, path)?;
                let text = source::read(self.root, &path)?;
                let part = heading.map_or(Ok(text.as_str()), |heading| section(&text, heading))?;
                self.expanded(part, &path, page).with_context(|| path.clone())?
            }
            "code" => {
                let (path, anchor) = of.split_once(':').context("`:anchor` is missing")?;
                let text = source::read(self.root, &source::resolve(from, path)?)?;
                fenced("rust,noplayground", &source::region(&text, anchor)?)
            }
            "report" => {
                let path = format!("crates/conformance/tests/virtual_gpu/reports/{of}.txt");
                fenced("text", &source::read(self.root, &path)?)
            }
            "output" => (self.output)(self.outputs.get(of)?, page)?,
            "exercises" => self.exercises(of, page)?,
            "paths" => self.paths(page),
            "timetable" => self.timetable(of, page)?,
            "evidence" => evidence::table(self.root)?,
            _ => bail!(
                "the directive must be include, code, report, output, exercises, paths, timetable, or evidence"
            ),
        })
    }

    /// Adapts the links in a text to the page.
    fn linked(&self, text: &str, from: &str, page: &str) -> anyhow::Result<String> {
        links::rewrite(text, |link| {
            let (path, place) = link.split_once('#').map_or((link, ""), |(path, place)| (path, place));
            let path = source::resolve(from, path)?;
            let Some(target) = self.shown.get(&path) else {
                ensure!(self.root.join(&path).exists(), "{path} does not exist");
                // mdBook copies the other files in its folder, such as pictures.
                let copied = path.strip_prefix("site/book/src/");
                return Ok(copied.map_or(Target::Nowhere, |file| Target::Page(format!("{}{file}", up(page)))));
            };
            let place = if place.is_empty() { String::new() } else { format!("#{place}") };
            Ok(Target::Page(format!("{}{target}{place}", up(page))))
        })
    }

    /// Lists a module's exercises, each with its objective.
    fn exercises(&self, folder: &str, page: &str) -> anyhow::Result<String> {
        let of_module = self.course.exercises.iter().filter(|exercise| exercise.folder() == folder);
        let mut table = String::from("| exercise | | minutes |\n|---|---|---|\n");
        let head = table.len();
        for exercise in of_module {
            let target = &self.shown[&format!("modules/{}", exercise.file)];
            table += &format!(
                "| [`{}`]({}{target}) | {} | {} |\n",
                exercise.id,
                up(page),
                exercise.objective,
                exercise.minutes
            );
        }
        ensure!(table.len() > head, "there are no exercises in {folder}");
        Ok(table)
    }

    /// Lists the paths through the course, with their steps.
    fn paths(&self, page: &str) -> String {
        let mut text = String::new();
        for path in self.course.paths.iter().filter(|path| path.steps.is_some()) {
            text += &format!("### {}: {} h\n\n", path.title, clock(self.course.length(path)));
            if let Some(before) = path.after.as_deref().and_then(|name| self.course.path(name).ok()) {
                text += &format!("This path continues “{}”.\n\n", before.title);
            }
            text += "| from | minutes | talk first | |\n|---|---|---|---|\n";
            for Scheduled { start, talk, step } in self.course.schedule(path) {
                let links = step
                    .exercises
                    .iter()
                    .filter_map(|id| self.course.exercise(id).ok())
                    .map(|exercise| self.link(exercise, page));
                let what = step.instead.clone().unwrap_or_else(|| links.collect::<Vec<_>>().join(", "));
                let talk = if talk > 0 { talk.to_string() } else { String::new() };
                text += &format!("| {} | {} | {talk} | {what} |\n", clock(start), step.minutes);
            }
            text.push('\n');
        }
        text
    }

    /// Returns a link to an exercise.
    fn link(&self, exercise: &Exercise, page: &str) -> String {
        let target = &self.shown[&format!("modules/{}", exercise.file)];
        format!("[`{}`]({}{target})", exercise.id, up(page))
    }

    /// Lists what happens in a workshop that follows a path, from the first minute to the last. The second column is the
    /// clock of the path's slides.
    fn timetable(&self, name: &str, page: &str) -> anyhow::Result<String> {
        let path = self.course.path(name)?;
        let mut rows: Vec<(u32, String)> = Vec::new();
        rows.extend(BEFORE_PATH.map(|(minutes, what)| (minutes, what.to_owned())));
        for Scheduled { talk, step, .. } in self.course.schedule(path) {
            if let Some(instead) = &step.instead {
                let (words, command) = instead.split_once(": ").unwrap_or((instead, ""));
                let command = if command.is_empty() { String::new() } else { format!(": `{command}`") };
                rows.push((step.minutes, format!("{words}{command}")));
            }
            rows.extend((talk > 0).then(|| (talk, "talk".to_owned())));
            for id in &step.exercises {
                let exercise = self.course.exercise(id)?;
                rows.push((exercise.minutes, self.link(exercise, page)));
            }
        }
        rows.extend(AFTER_PATH.map(|(minutes, what)| (minutes, what.to_owned())));
        let starts_at: u32 = BEFORE_PATH.iter().map(|(minutes, _)| minutes).sum();
        let ends_at = starts_at + self.course.length(path);
        let mut text = String::from("| from | on the slides | minutes | |\n|---|---|---|---|\n");
        let mut now: u32 = 0;
        for (minutes, what) in rows {
            let on_slides = now.checked_sub(starts_at).filter(|_| now < ends_at).map_or(String::new(), clock);
            text += &format!("| {} | {on_slides} | {minutes} | {what} |\n", clock(now));
            now += minutes;
        }
        text += &format!("| {} | | | the end |\n", clock(now));
        Ok(text)
    }
}

/// What a workshop does before its path and after it, with the minutes.
const BEFORE_PATH: [(u32, &str); 1] = [(10, "the icebreaker")];
const AFTER_PATH: [(u32, &str); 3] =
    [(5, "everyone hands in"), (10, "the second quiz"), (5, "the feedback form")];

/// Formats a command and its output.
///
/// # Errors
/// Never fails; the function returns a `Result` because the same step can fail for other kinds of pages.
pub(crate) fn output_as_text(output: &Output, _: &str) -> anyhow::Result<String> {
    Ok(fenced("console", &format!("$ {}\n", output.command)) + &fenced("text", &output.text()))
}

/// Returns the relative path from a page to the top of the book.
pub(crate) fn up(page: &str) -> String {
    "../".repeat(page.matches('/').count())
}

/// Formats a code block. Its fence is longer than any fence inside it.
pub(crate) fn fenced(language: &str, text: &str) -> String {
    let mut fence = "```".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    format!("{fence}{language}\n{}\n{fence}\n", text.trim_end())
}

/// Returns the text below a heading, up to the next heading of the same level.
fn section<'t>(text: &'t str, place: &str) -> anyhow::Result<&'t str> {
    let mut in_code = false;
    let mut found: Option<(usize, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        in_code ^= line.starts_with("```");
        let level = line.bytes().take_while(|&byte| byte == b'#').count();
        if !in_code && level > 0 && line[level..].starts_with(' ') {
            match found {
                Some((start, of)) if level <= of => return Ok(&text[start..at]),
                None if name_of(line[level..].trim()) == place => found = Some((at + line.len(), level)),
                _ => {}
            }
        }
        at += line.len();
    }
    found.map(|(start, _)| &text[start..]).with_context(|| format!("it has no heading #{place}"))
}

/// Returns the URL fragment for a heading, as GitHub and mdBook compute it.
fn name_of(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_heading_of_its_level() {
        let text = "# A\na\n## B: c\nb\n```text\n## no heading\n```\n### D\nd\n## E\ne\n";
        assert_eq!(section(text, "b-c").unwrap(), "b\n```text\n## no heading\n```\n### D\nd\n");
        assert_eq!(section(text, "e").unwrap(), "e\n");
        assert_eq!(section(text, "x").unwrap_err().to_string(), "it has no heading #x");
    }

    #[test]
    fn a_timetable_has_every_minute_of_a_workshop() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let course = Course::read(root).unwrap();
        let shown = course
            .exercises
            .iter()
            .map(|exercise| (format!("modules/{}", exercise.file), format!("{}.html", exercise.id)));
        let (shown, outputs) = (shown.collect(), Outputs::read(root).unwrap());
        let pages = Pages { root, course: &course, outputs: &outputs, shown, output: output_as_text };
        let table = pages.timetable("half-day", "facilitator/prepare.html").unwrap();
        let minutes = table.lines().skip(2).filter_map(|row| row.split(" | ").nth(2)?.parse::<u32>().ok());
        let all: u32 = minutes.sum();
        assert_eq!(all, course.length(course.path("half-day").unwrap()) + 30);
        assert!(table.ends_with(&format!("| {} | | | the end |\n", clock(all))), "{table}");
        assert!(table.contains("| 0:00 |  | 10 | the icebreaker |\n| 0:10 | 0:00 | 10 | "), "{table}");
        assert!(pages.timetable("x", "").is_err());
    }

    #[test]
    fn a_fence_is_longer_than_those_inside() {
        assert_eq!(fenced("text", "a\n```\nb\n"), "````text\na\n```\nb\n````\n");
    }
}
