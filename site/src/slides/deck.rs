//! A deck: the slides for a path, when to show each slide, and the page that contains them.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use course::syllabus::{Exercise, Route, Step};

use super::markdown::{self, Written};
use super::{Exercises, Slide, code, recording};
use crate::page::{Pages, fenced};
use crate::source;

/// Returns the slides for a path, with their times.
///
/// # Errors
/// Fails if a slide refers to something that doesn't exist, or doesn't fit; the error names the slide.
pub(super) fn slides(pages: &Pages<'_>, route: &Route, made: &Exercises) -> anyhow::Result<Vec<Slide>> {
    let mut deck = Deck { pages, page: format!("{}/index.html", route.name), slides: Vec::new() };
    let steps = pages.course.steps(route);
    let mut seen = BTreeSet::new();
    let mut now = 0;
    let first = steps.first().context("a path has steps")?;
    deck.add(
        &timed(now, &format!("before the first step's {} minutes", first.minutes)),
        deck.file("opening")?,
    );
    for step in &steps {
        match &step.instead {
            Some(what) => {
                deck.add(&timed(now, &format!("{} minutes", step.minutes)), deck.instead(step, what)?)
            }
            None => deck.exercises(step, now, made, &mut seen)?,
        }
        now += step.minutes;
    }
    deck.add(&timed(now, "the end"), deck.file("closing")?);
    Ok(deck.slides)
}

struct Deck<'p> {
    pages: &'p Pages<'p>,
    /// The deck's address, below the folder of all decks.
    page: String,
    slides: Vec<Slide>,
}

impl Deck<'_> {
    /// Appends slides, with their times inserted before the notes.
    fn add(&mut self, time: &str, slides: Vec<Slide>) {
        for mut slide in slides {
            slide.notes = format!("<p class=\"time\">{time}</p>\n{}", slide.notes);
            self.slides.push(slide);
        }
    }

    /// Appends a step's exercises. Each exercise comes after its introductory slides and those of its module. If the
    /// step has more time than its exercises need, the extra time comes at the start of the step.
    fn exercises(
        &mut self,
        step: &Step,
        start: u32,
        made: &Exercises,
        seen: &mut BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let exercises = step.exercises.iter().map(|id| self.pages.course.exercise(id));
        let exercises: Vec<&Exercise> = exercises.collect::<anyhow::Result<_>>()?;
        let own: u32 = exercises.iter().map(|exercise| exercise.minutes).sum();
        let mut now = start + step.minutes.saturating_sub(own);
        let mut talk = now - start;
        for exercise in exercises {
            let time = match talk {
                0 => timed(now, &format!("within the {} minutes of {}", exercise.minutes, exercise.id)),
                minutes => timed(start, &format!("{minutes} minutes, then {}", exercise.id)),
            };
            let ideas = self.ideas(exercise, seen.insert(exercise.folder().to_owned()))?;
            if !ideas.is_empty() {
                talk = 0;
            }
            self.add(&time, ideas);
            let time =
                timed(now, &format!("{} minutes, until {}", exercise.minutes, clock(now + exercise.minutes)));
            self.add(&time, made.get(&exercise.id).cloned().unwrap_or_default());
            now += exercise.minutes;
        }
        Ok(())
    }

    /// Returns the slides to show before an exercise: its own, and its module's if the exercise is the module's first.
    fn ideas(&self, exercise: &Exercise, is_first: bool) -> anyhow::Result<Vec<Slide>> {
        let (name, path) = (exercise.folder(), path(exercise.folder()));
        let mut slides = Vec::new();
        for (number, slide) in (1..).zip(markdown::split(&source::read(self.pages.root, &path)?)) {
            if let Some(id) = &slide.exercise {
                let known = self.pages.course.exercises.iter().find(|exercise| exercise.id == *id);
                ensure!(
                    known.is_some_and(|exercise| exercise.folder() == name),
                    "slide {number} of {path}: module {name} has no exercise `{id}`"
                );
            }
            let is_due = slide.exercise.as_ref().map_or(is_first, |id| *id == exercise.id);
            if is_due {
                slides.push(self.slide(name, number, &slide)?);
            }
        }
        Ok(slides)
    }

    /// Returns all slides from a file in `site/slides/`.
    fn file(&self, name: &str) -> anyhow::Result<Vec<Slide>> {
        let text = source::read(self.pages.root, &path(name))?;
        (1..).zip(markdown::split(&text)).map(|(number, slide)| self.slide(name, number, &slide)).collect()
    }

    fn slide(&self, name: &str, number: u32, slide: &Written) -> anyhow::Result<Slide> {
        let path = path(name);
        let from = format!("slide {number} of {path}, “{}”", slide.heading());
        let made = || {
            let body = markdown::to_html(&self.pages.expanded(&slide.text, &path, &self.page)?)?;
            let notes = markdown::inline(&self.pages.expanded(&slide.notes, &path, &self.page)?);
            anyhow::Ok(Slide {
                id: format!("{name}-{number}"),
                from: from.clone(),
                body,
                notes,
                below: false,
            })
        };
        made().with_context(|| from.clone())
    }

    /// Creates the slides for a step without exercises. If the step names a command, the command is shown with its
    /// output.
    fn instead(&self, step: &Step, what: &str) -> anyhow::Result<Vec<Slide>> {
        let id = format!("step-{}", self.slides.len() + 1);
        let from = format!("slide {id}: the step “{what}” of course.toml");
        let (words, command) =
            what.split_once(": cargo ").map_or((what, None), |(words, command)| (words, Some(command)));
        let heading = code::escaped(&capitalised(words));
        let slide = |id: String, body: String, notes: &str, below| {
            let notes = markdown::inline(notes);
            Slide { id, from: from.clone(), body, notes, below }
        };
        let Some(command) = command.map(|command| format!("cargo {command}")) else {
            let body = format!("<h2>{heading}</h2>\n<p class=\"objective\">{} minutes</p>\n", step.minutes);
            return Ok(vec![slide(id, body, "", false)]);
        };
        let output = self.pages.outputs.of_command(&command).with_context(|| from.clone())?;
        let told = markdown::to_html(&format!(
            "## {heading}\n\n{}\n**Predict:** What will it print?",
            fenced("console", &format!("$ {}", output.command))
        ))?;
        let notes = "**If it doesn't run here:** a recording of its output is below (`↓`). `→` skips it.";
        let mut slides = vec![slide(id.clone(), told, notes, false)];
        for (number, part) in (1..).zip(recording::parts(output)) {
            let body = format!("<h2>What it printed</h2>\n{}", part.html(&self.page));
            let notes = format!("A recording of `{}` on the virtual GPU.", output.command);
            slides.push(slide(format!("{id}-recording-{number}"), body, &notes, true));
        }
        Ok(slides)
    }
}

fn path(name: &str) -> String {
    format!("site/slides/{name}.md")
}

/// Capitalizes the first letter of a text.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    first + letters.as_str()
}

/// Formats a time as hours and minutes.
pub(super) fn clock(minutes: u32) -> String {
    format!("{}:{:02}", minutes / 60, minutes % 60)
}

/// Formats a speaker note about the time, `now` minutes after the start.
fn timed(now: u32, what: &str) -> String {
    format!("{} since the start · {what}", clock(now))
}

/// Creates the page for a deck.
pub(super) fn page(title: &str, slides: &[Slide]) -> String {
    let mut sections = String::new();
    let mut rest = slides;
    while let Some((first, others)) = rest.split_first() {
        let below = others.iter().take_while(|slide| slide.below).count();
        let group: String = std::iter::once(first).chain(&others[..below]).map(section).collect();
        sections += &if below > 0 { format!("<section>\n{group}</section>\n") } else { group };
        rest = &others[below..];
    }
    include_str!("deck.html").replace("{{title}}", &code::escaped(title)).replace("{{slides}}", &sections)
}

fn section(slide: &Slide) -> String {
    format!(
        "<section id=\"{}\">\n{}<aside class=\"notes\">\n{}</aside>\n</section>\n",
        slide.id, slide.body, slide.notes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_shown_as_clock_time() {
        assert_eq!(capitalised("the `x`"), "The `x`");
        assert_eq!(clock(0), "0:00");
        assert_eq!(clock(125), "2:05");
        assert_eq!(timed(20, "10 minutes"), "0:20 since the start · 10 minutes");
    }

    #[test]
    fn a_slide_below_is_in_the_section_of_the_slide_before_it() {
        let slide = |id: &str, below| Slide {
            id: id.to_owned(),
            from: String::new(),
            body: format!("<h2>{id}</h2>\n"),
            notes: String::new(),
            below,
        };
        let made = page("A & B", &[slide("a", false), slide("b", true), slide("c", false)]);
        assert!(made.contains("<title>A &amp; B</title>"), "{made}");
        assert!(made.contains("<section>\n<section id=\"a\">"), "{made}");
        assert!(made.contains("</section>\n</section>\n<section id=\"c\">"), "{made}");
    }
}
