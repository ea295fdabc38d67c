//! A deck: the slides for a path, when to show each slide, and the page that contains them.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use course::syllabus::{Exercise, Route, Scheduled, Step, clock};

use super::markdown::{self, Written};
use super::{Exercises, Slide, code, recording};
use crate::page::{Pages, fenced};
use crate::source;

/// Returns the slides for a path, with their times.
///
/// # Errors
/// Fails if a slide refers to something that doesn't exist, or doesn't fit; the error names the slide.
pub(super) fn slides(pages: &Pages<'_>, route: &Route, made: &Exercises) -> anyhow::Result<Vec<Slide>> {
    let mut deck = Deck { pages, route, page: format!("{}/index.html", route.name), slides: Vec::new() };
    let steps = pages.course.schedule(route);
    let mut seen = BTreeSet::new();
    let (first, last) = steps.first().zip(steps.last()).context("a path has steps")?;
    deck.add(
        &timed(0, &format!("before the first step's {} minutes", first.step.minutes)),
        deck.file("opening")?,
    );
    for scheduled in &steps {
        let Scheduled { start, step, .. } = scheduled;
        match &step.instead {
            Some(what) => {
                deck.add(&timed(*start, &format!("{} minutes", step.minutes)), deck.instead(step, what)?);
            }
            None => deck.exercises(scheduled, made, &mut seen)?,
        }
    }
    let closing = match &last.step.instead {
        Some(what) => timed(last.start, &format!("within the {} minutes of the {what}", last.step.minutes)),
        None => timed(last.end(), "the end"),
    };
    deck.add(&closing, deck.file("closing")?);
    Ok(deck.slides)
}

struct Deck<'p> {
    pages: &'p Pages<'p>,
    route: &'p Route,
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

    /// Appends a step's exercises. Each exercise comes after its introductory slides and those of its module. The time for
    /// the talk is at the start of the step.
    fn exercises(
        &mut self,
        scheduled: &Scheduled,
        made: &Exercises,
        seen: &mut BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let mut now = scheduled.start;
        let mut talk = scheduled.talk;
        for id in &scheduled.step.exercises {
            let exercise = self.pages.course.exercise(id)?;
            let minutes = exercise.minutes;
            let before = match talk {
                0 => format!("within the {minutes} minutes of {id}"),
                talk => format!("{talk} minutes, then {id}"),
            };
            let ideas = self.ideas(exercise, seen.insert(exercise.folder().to_owned()))?;
            let until = clock(now + talk + minutes);
            let (begin, work) = match (talk, ideas.is_empty()) {
                (1.., true) => {
                    (now, format!("{talk} minutes to introduce it, then {minutes} minutes, until {until}"))
                }
                _ => (now + talk, format!("{minutes} minutes, until {until}")),
            };
            self.add(&timed(now, &before), ideas);
            self.add(&timed(begin, &work), made.get(id).cloned().unwrap_or_default());
            now += talk + minutes;
            talk = 0;
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

    /// Returns all slides from a file in `site/slides/`. The name of the deck's path takes the place of `{{path}}`.
    fn file(&self, name: &str) -> anyhow::Result<Vec<Slide>> {
        let text = source::read(self.pages.root, &path(name))?.replace("{{path}}", &self.route.name);
        (1..).zip(markdown::split(&text)).map(|(number, slide)| self.slide(name, number, &slide)).collect()
    }

    fn slide(&self, name: &str, number: u32, slide: &Written) -> anyhow::Result<Slide> {
        let path = path(name);
        let from = format!("slide {number} of {path}, “{}”", slide.heading());
        let made = || {
            let body = markdown::to_html(&self.pages.expanded(&slide.text, &path, &self.page)?)?;
            ensure_recorded(&slide.notes, &body)?;
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
            let body = format!("<h1>{heading}</h1>\n<p class=\"objective\">{} minutes</p>\n", step.minutes);
            return Ok(vec![slide(id, body, "", false)]);
        };
        let output = self.pages.outputs.of_command(&command).with_context(|| from.clone())?;
        let told = markdown::to_html(&format!(
            "## {heading}\n\n{}\n**Predict:** What will it print?",
            fenced("console", &format!("$ {}", output.command))
        ))?;
        let notes = "**If it doesn't run here:** a recording of its output is below (`↓`). `→` skips it.";
        let mut slides = vec![slide(id.clone(), told, notes, false)];
        let parts = recording::parts(output);
        for (number, part) in (1..).zip(&parts) {
            let of = code::of(number, parts.len());
            let body = format!("<h2>What it printed{of}</h2>\n{}", part.html(&self.page));
            let notes = format!("A recording of `{}` on the virtual GPU.", output.command);
            slides.push(slide(format!("{id}-recording-{number}"), body, &notes, true));
        }
        Ok(slides)
    }
}

/// Checks that a slide whose notes run a program shows a recorded run, in case the program fails on stage.
fn ensure_recorded(notes: &str, body: &str) -> anyhow::Result<()> {
    let runs = ["`cargo course demo", "`cargo run"].iter().any(|command| notes.contains(command));
    ensure!(
        !runs || body.contains("<img"),
        "its notes run a program, but the slide doesn't show a recorded run; add `{{#output NAME}}` or a picture"
    );
    Ok(())
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
    use std::path::Path;

    use course::syllabus::Course;

    use super::*;
    use crate::output::Outputs;

    #[test]
    fn minutes_are_shown_as_clock_time() {
        assert_eq!(capitalised("the `x`"), "The `x`");
        assert_eq!(timed(20, "10 minutes"), "0:20 since the start · 10 minutes");
    }

    #[test]
    fn a_program_to_run_on_stage_has_a_recording() {
        assert!(ensure_recorded("Run `cargo course demo 04`.", "<img src=\"a.svg\">").is_ok());
        assert!(ensure_recorded("Ask.", "").is_ok());
        assert!(ensure_recorded("Run `cargo run -p lab`.", "").is_err());
    }

    #[test]
    fn every_step_of_every_path_has_slides_at_its_time() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let course = Course::read(root).unwrap();
        let outputs = Outputs::read(root).unwrap();
        let slide = |id: &str| Slide {
            id: id.to_owned(),
            from: String::new(),
            body: String::new(),
            notes: String::new(),
            below: false,
        };
        let made: Exercises =
            course.exercises.iter().map(|one| (one.id.clone(), vec![slide(&one.id)])).collect();
        for route in &course.paths {
            let shown = super::super::shown(&course, route, &super::super::pictures(root).unwrap());
            let pages = Pages { root, course: &course, outputs: &outputs, shown, output: recording::html };
            let slides = slides(&pages, route, &made).unwrap();
            let starts = slides.iter().map(|slide| {
                let time = slide.notes.strip_prefix("<p class=\"time\">").unwrap();
                time.split_once(" since the start").unwrap().0.to_owned()
            });
            let mut starts: Vec<String> = starts.collect();
            starts.dedup();
            let mut of_slides = starts.iter();
            for Scheduled { start, step, .. } in course.schedule(route) {
                let time = clock(start);
                assert!(
                    of_slides.any(|of_slide| *of_slide == time),
                    "{}: no slide at {time}: {step:?}",
                    route.name
                );
            }
        }
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
