//! The slides for an exercise, made from its files: the task, a prediction, and the answer.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use course::answers::{self, Change};
use course::mistakes::Mistake;
use course::syllabus::Exercise;

use super::{Slide, code, deck, markdown};
use crate::source;

/// The maximum number of lines for a wrong program, below the name of its function.
const PROGRAM: usize = 15;
/// The maximum number of lines for its correction; the description and the check's message take up the rest.
const CORRECTION: usize = 7;
/// With more tasks than this, the tasks are in two columns.
const MANY: usize = 4;
/// The number of lines that the tasks and their conditions may take up, and the number of letters in a line.
const TASKS: (usize, usize) = (10, 80);

/// Creates the slides for an exercise, in order and without times.
///
/// # Errors
/// Fails if the solution can't be read or has no regions, or if something doesn't fit on a slide; the error names the
/// slide.
pub(super) fn slides(root: &Path, exercise: &Exercise, mistakes: &[Mistake]) -> anyhow::Result<Vec<Slide>> {
    let solution = answers::solution(root, exercise)?;
    let mut mistaken: Vec<(&Mistake, String)> = Vec::new();
    for mistake in mistakes.iter().filter(|mistake| mistake.patch.exercise == exercise.id) {
        let applied = mistake.patch.apply(&solution).with_context(|| mistake.patch.path())?;
        // An import isn't shown, so it may differ.
        let outside = |text| source::outside(text).into_iter().filter(|line| !line.starts_with("use "));
        if outside(&solution).eq(outside(&applied)) {
            mistaken.push((mistake, applied));
        }
    }
    let wrong = mistaken.iter().map(|(mistake, applied)| (mistake.patch.name.as_str(), applied.as_str()));
    let sources: Vec<(&str, &str)> = std::iter::once(("solution", solution.as_str())).chain(wrong).collect();
    let made = code::narrow(&sources).with_context(|| format!("the slides of {}", exercise.id))?;
    let regions = regions(&made[0])
        .with_context(|| format!("the slides of {}: solutions/{}", exercise.id, exercise.file))?;
    let id = exercise.id.replace('/', "-");
    let mut slides = vec![start(&id, exercise, &regions)];
    let wrong = mistaken.iter().map(|(mistake, _)| *mistake).zip(&made[1..]);
    slides.extend(predict(&id, exercise, &regions, wrong)?);
    for group in grouped(&regions) {
        slides.extend(answer(&id, exercise, group));
    }
    Ok(slides)
}

/// Groups regions so that each group fits on one slide.
fn grouped(regions: &[Region]) -> Vec<&[Region]> {
    let mut groups = Vec::new();
    let mut rest = regions;
    while !rest.is_empty() {
        let fits = |count: &usize| {
            let lines = rest[..*count].iter().map(|region| region.code.lines().count() + code::LABEL);
            lines.sum::<usize>() <= code::LINES
        };
        let count = (2..=rest.len()).take_while(fits).last().unwrap_or(1);
        let (group, others) = rest.split_at(count);
        groups.push(group);
        rest = others;
    }
    groups
}

/// Creates the slides for a group of regions. A single region may take several slides.
fn answer(id: &str, exercise: &Exercise, group: &[Region]) -> Vec<Slide> {
    let name = &group[0].name;
    let bodies: Vec<String> = match group {
        [region] => {
            let pages = code::pages(&region.code);
            let body = |(number, page): (usize, &String)| {
                let of = code::of(number, pages.len());
                format!("<h2>The answer: <code>{name}</code>{of}</h2>\n{}", code::block(page))
            };
            (1..).zip(&pages).map(body).collect()
        }
        several => {
            let part = |region: &Region| {
                format!("<h3><code>{}</code></h3>\n{}", region.name, code::block(&region.code))
            };
            vec![format!("<h2>The answers</h2>\n{}", several.iter().map(part).collect::<String>())]
        }
    };
    let slide = |(number, body): (usize, String)| {
        let id = format!("{id}-{name}-{number}");
        let from = format!("slide {id}: solutions/{}, the anchor `{name}`", exercise.file);
        let notes = format!(
            "**Show this** when 80% of the blue sheets are up. In a clone, `cargo course diff {}` compares an answer with it.",
            exercise.id
        );
        Slide { id, from, body, notes: markdown::inline(&notes), below: false }
    };
    (1..).zip(bodies).map(slide).collect()
}

/// A part that the student writes.
struct Region {
    name: String,
    task: Task,
    code: String,
}

/// What the student writes: a sentence, and numbered conditions.
struct Task {
    sentence: String,
    conditions: Vec<String>,
}

impl Task {
    /// Parses the comment at the start of a region.
    fn parse(comment: &str) -> Self {
        let (sentence, mut rest) = match comment.split_once(": 1. ") {
            Some((sentence, rest)) => (format!("{sentence}."), Some(rest)),
            None => (first_sentence(comment).to_owned(), None),
        };
        let mut conditions = Vec::new();
        while let Some(text) = rest {
            let (condition, others) = match text.split_once(&format!(" {}. ", conditions.len() + 2)) {
                Some((condition, others)) => (condition, Some(others)),
                None => (text, None),
            };
            conditions.push(condition.to_owned());
            rest = others;
        }
        Self { sentence, conditions }
    }

    /// Returns the number of lines that the task and its conditions take up on a slide, below its name.
    fn lines(&self) -> usize {
        let conditions = self.conditions.iter().map(|text| text.chars().count().div_ceil(TASKS.1));
        1 + self.sentence.chars().count().div_ceil(TASKS.1) + conditions.sum::<usize>()
    }
}

fn regions(solution: &str) -> anyhow::Result<Vec<Region>> {
    let names = source::anchors(solution);
    ensure!(!names.is_empty(), "it has no anchors");
    let region = |name: &str| {
        let (task, code) = code::task_and_code(&source::region(solution, name)?);
        Ok(Region { name: name.to_owned(), task: Task::parse(&task), code })
    };
    names.into_iter().map(region).collect()
}

/// Shows the tasks, with their conditions if there is room for them.
fn start(id: &str, exercise: &Exercise, regions: &[Region]) -> Slide {
    let has_room = regions.iter().map(|region| region.task.lines()).sum::<usize>() <= TASKS.0;
    let mut tasks = String::new();
    for Region { name, task, .. } in regions {
        let items = task.conditions.iter().filter(|_| has_room);
        let items: String = items.map(|text| format!("<li>{}</li>\n", markdown_line(text))).collect();
        let list = if items.is_empty() { items } else { format!("\n<ol>\n{items}</ol>") };
        let sentence = markdown_line(&task.sentence);
        let _ = writeln!(tasks, "<div><dt><code>{name}</code></dt><dd>{sentence}{list}</dd></div>");
    }
    let ranks = match exercise.min_ranks {
        0 | 1 => String::new(),
        ranks => format!(", from {ranks} GPUs"),
    };
    let body = format!(
        "<div class=\"start\">\n<h2>{}</h2>\n<p class=\"objective\">{}</p>\n<dl{}>\n{tasks}</dl>\n<p class=\"facts\"><code>modules/{}</code><br><code>cargo course run {}</code> · {} minutes{ranks}</p>\n</div>\n",
        markdown_line(&exercise.title),
        markdown_line(&exercise.objective),
        if regions.len() > MANY { " class=\"many\"" } else { "" },
        exercise.file,
        exercise.id,
        exercise.minutes
    );
    let notes = format!(
        "**Show this** when the exercise begins. The students work now. In `watch`, `h` shows the next of {} hints; the last is nearly the answer.",
        exercise.hints.len()
    );
    let from = format!("slide {id}: {}", exercise.id);
    Slide { id: id.to_owned(), from, body, notes: markdown::inline(&notes), below: false }
}

/// A mistake, prepared for a slide that shows the program and one that corrects it.
struct Prepared<'m> {
    mistake: &'m Mistake,
    /// The name of the region that contains the mistake.
    name: String,
    program: String,
    correction: Vec<(Change, String)>,
}

/// Shows a wrong program and asks what the check reports; the next slide answers. Chooses, of the mistakes with their
/// programs, the one with the smallest difference, and an ignored error or a repeated call only if no other one fits.
fn predict<'m>(
    id: &str,
    exercise: &Exercise,
    regions: &[Region],
    mistakes: impl Iterator<Item = (&'m Mistake, &'m String)>,
) -> anyhow::Result<[Slide; 2]> {
    let from = format!("slide {id}-predict: the mistakes for {}", exercise.id);
    let mut best: Option<Prepared<'_>> = None;
    for (mistake, program) in mistakes {
        let found = prepared(mistake, program, regions).with_context(|| mistake.patch.path())?;
        let cost = |one: &Prepared<'_>| {
            let is_ignored_error = one.mistake.fails.ends_with("::a_failed_call_is_an_error");
            (is_ignored_error, code::is_repetition(&one.correction), code::changes(&one.correction))
        };
        best = match (best, found) {
            (Some(best), Some(found)) if cost(&found) < cost(&best) => Some(found),
            (best, found) => best.or(found),
        };
    }
    let shown = best.with_context(|| {
        format!("{from}: no mistake fits, because each has too many lines or is in more than one region")
    })?;
    Ok([wrong_program(id, &from, exercise, &shown), correction(id, from.clone(), exercise, &shown)])
}

/// Finds the region that contains a mistake. Returns `None` if the mistake is in several regions or doesn't fit.
fn prepared<'m>(
    mistake: &'m Mistake,
    program: &str,
    right: &[Region],
) -> anyhow::Result<Option<Prepared<'m>>> {
    let wrong = regions(program)?;
    let changed: Vec<_> =
        right.iter().zip(&wrong).filter(|(right, wrong)| right.code != wrong.code).collect();
    let [(right, wrong)] = changed[..] else { return Ok(None) };
    let program = code::excerpt(&right.code, &wrong.code, PROGRAM);
    let correction = code::difference(&wrong.code, &right.code, CORRECTION);
    Ok(program.zip(correction).map(|(program, correction)| Prepared {
        mistake,
        name: wrong.name.clone(),
        program,
        correction,
    }))
}

fn wrong_program(id: &str, from: &str, exercise: &Exercise, shown: &Prepared<'_>) -> Slide {
    let Prepared { mistake, name, program, .. } = shown;
    let body = format!(
        "<h2>Predict: what does the check report?</h2>\n<h3><code>{name}</code>, with a mistake</h3>\n{}",
        code::block(program)
    );
    let notes = format!(
        "**Show this** after {} of the {} minutes.\n\n**Ask:** {}\n\n**The answer:** {}. The next slide shows it.\n\nOther \
         mistakes to ask about: `cargo course teach mistakes {}`.",
        (exercise.minutes * 6).div_ceil(10),
        exercise.minutes,
        mistake.question(),
        deck::capitalised(&mistake.what),
        exercise.id
    );
    let (id, from) = (format!("{id}-predict"), from.to_owned());
    Slide { id, from, body, notes: markdown::inline(&notes), below: false }
}

fn correction(id: &str, from: String, exercise: &Exercise, shown: &Prepared<'_>) -> Slide {
    let Prepared { mistake, correction, .. } = shown;
    let says: Vec<String> =
        mistake.says.iter().map(|says| format!("“… {} …”", with_code(&code::escaped(says)))).collect();
    let body = format!(
        "<h2>What the check reports</h2>\n<p class=\"what\"><strong>The mistake:</strong> {}.</p>\n{}<div class=\"answer\"><p><code>{}</code> fails:</p><p>{}</p></div>\n",
        markdown_line(&mistake.what),
        code::difference_block(correction),
        mistake.fails,
        says.join("<br>")
    );
    let notes = format!(
        "`−` marks the mistake, and `+` the correction. Ask who had this mistake in `{}`, and what the check reported. The mistake is `{}`.",
        exercise.starter(Path::new("")).display(),
        mistake.patch.path()
    );
    let id = format!("{id}-predict-answer");
    Slide { id, from, body, notes: markdown::inline(&notes), below: false }
}

/// Converts Markdown to HTML without an enclosing paragraph.
fn markdown_line(text: &str) -> String {
    markdown::inline(text).trim().trim_start_matches("<p>").trim_end_matches("</p>").to_owned()
}

/// Shows words between backticks as code.
fn with_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return text.to_owned();
    }
    let shown = |(at, part): (usize, &&str)| match at % 2 {
        0 => (*part).to_owned(),
        _ => format!("<code>{part}</code>"),
    };
    parts.iter().enumerate().map(shown).collect()
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

#[cfg(test)]
mod tests {
    use course::mistakes;
    use course::syllabus::Course;

    use super::*;

    #[test]
    fn a_first_sentence_ends_with_its_full_stop() {
        assert_eq!(first_sentence("Sum `a.b`. Then go."), "Sum `a.b`.");
        assert_eq!(first_sentence("Sum it."), "Sum it.");
        assert_eq!(markdown_line("the `x`"), "the <code>x</code>");
        assert_eq!(with_code("`f` and `g`"), "<code>f</code> and <code>g</code>");
        assert_eq!(with_code("`f` and `"), "`f` and `");
    }

    #[test]
    fn a_solution_without_anchors_has_no_slides() {
        assert!(regions("fn f() {}").is_err_and(|error| error.to_string() == "it has no anchors"));
        let regions = regions("// ANCHOR: f\n// Do it.\nx\n// ANCHOR_END: f\n").unwrap();
        assert_eq!((regions[0].task.sentence.as_str(), regions[0].code.as_str()), ("Do it.", "x"));
    }

    #[test]
    fn a_task_is_a_sentence_and_its_conditions() {
        let task = Task::parse("Sum `a` into `b`: 1. for each `1.5`; 2. once; 3. at once.");
        assert_eq!(task.sentence, "Sum `a` into `b`.");
        assert_eq!(task.conditions, ["for each `1.5`;", "once;", "at once."]);
        assert_eq!(task.lines(), 5);
        let task = Task::parse("Sum `a.b`. Then go.");
        assert_eq!((task.sentence.as_str(), task.conditions.len()), ("Sum `a.b`.", 0));
    }

    #[test]
    fn a_prediction_shows_the_wrong_program_and_the_next_slide_its_correction() {
        let solution =
            "fn f() {\n    // ANCHOR: f\n    // Do it.\n    one();\n    wait();\n    // ANCHOR_END: f\n}\n";
        let diff = "--- a/solutions/x.rs\n+++ b/solutions/x.rs\n@@ -3,4 +3,4 @@\n     // Do it.\n     one();\n-    wait();\n+    poll();\n     // ANCHOR_END: f\n";
        let head = "mistake: does not wait\nfails: f::it_waits\nsays: it polls\n";
        let root = std::env::temp_dir().join(format!("site_predict_{}", std::process::id()));
        let exercise = Course::read(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
            .unwrap()
            .exercises
            .remove(0);
        for (path, text) in [
            (format!("{}/{}/wrong.patch", mistakes::FOLDER, exercise.id), format!("{head}{diff}")),
            (format!("solutions/{}", exercise.file), solution.to_owned()),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let made = slides(&root, &exercise, &mistakes::read(&root).unwrap());
        std::fs::remove_dir_all(&root).unwrap();
        let made = made.unwrap();
        let (wrong, right) = (&made[1].body, &made[2].body);
        assert!(wrong.contains("one();\npoll();") && !wrong.contains("wait"), "{wrong}");
        assert!(!wrong.contains("class=\"added\"") && !wrong.contains("class=\"removed\""), "{wrong}");
        assert!(made[1].notes.contains("the rule “it waits”"), "{}", made[1].notes);
        assert!(right.contains("\"removed\">− poll();") && right.contains("\"added\">+ wait();"), "{right}");
        assert!(right.contains("“… it polls …”"), "{right}");
    }
}
