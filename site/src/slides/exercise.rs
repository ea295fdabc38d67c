//! The slides for an exercise, made from its files: the task, a prediction, and the answer.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use course::answers;
use course::mistakes::Mistake;
use course::syllabus::Exercise;

use super::{Slide, code, deck, markdown};
use crate::source;

/// The maximum number of lines for a wrong answer; the description and the check's message take up the rest.
const DIFFERENCE: usize = 12;
/// With more parts than this, each part is shown smaller.
const MANY: usize = 4;

/// Creates the slides for an exercise, in order and without times.
///
/// # Errors
/// Fails if the solution can't be read or has no regions, or if something doesn't fit on a slide; the error names the
/// slide.
pub(super) fn slides(root: &Path, exercise: &Exercise, mistakes: &[Mistake]) -> anyhow::Result<Vec<Slide>> {
    let solution = code::narrow(&answers::solution(root, exercise)?)
        .with_context(|| format!("the slides of {}: solutions/{}", exercise.id, exercise.file))?;
    let regions = regions(&solution)
        .with_context(|| format!("the slides of {}: solutions/{}", exercise.id, exercise.file))?;
    let id = exercise.id.replace('/', "-");
    let mut slides = vec![start(&id, exercise, &regions)];
    slides.push(predict(root, &id, exercise, &solution, mistakes)?);
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
                let of =
                    if pages.len() > 1 { format!(", {number} of {}", pages.len()) } else { String::new() };
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
            "Show this once most students have it. `cargo course diff {}` compares an answer with it.",
            exercise.id
        );
        Slide { id, from, body, notes: markdown::inline(&notes), below: false }
    };
    (1..).zip(bodies).map(slide).collect()
}

/// A part that the student writes.
struct Region {
    name: String,
    task: String,
    code: String,
}

fn regions(solution: &str) -> anyhow::Result<Vec<Region>> {
    let names = source::anchors(solution);
    ensure!(!names.is_empty(), "it has no anchors");
    let region = |name: &str| {
        let (task, code) = code::task_and_code(&source::region(solution, name)?);
        Ok(Region { name: name.to_owned(), task, code })
    };
    names.into_iter().map(region).collect()
}

fn start(id: &str, exercise: &Exercise, regions: &[Region]) -> Slide {
    let mut body = format!("<h2>{}</h2>\n", markdown_line(&exercise.title));
    let _ = writeln!(
        body,
        "<p class=\"objective\">{}</p>\n<dl{}>",
        markdown_line(&exercise.objective),
        if regions.len() > MANY { " class=\"many\"" } else { "" }
    );
    for region in regions {
        let _ = writeln!(
            body,
            "<dt><code>{}</code></dt><dd>{}</dd>",
            region.name,
            markdown_line(first_sentence(&region.task))
        );
    }
    let ranks = match exercise.min_ranks {
        0 | 1 => String::new(),
        ranks => format!(" · from {ranks} GPUs, real or virtual"),
    };
    let _ = writeln!(
        body,
        "</dl>\n<p class=\"facts\">{} minutes{ranks}<br><code>modules/{}</code><br><code>cargo course run {}</code></p>",
        exercise.minutes, exercise.file, exercise.id
    );
    let notes = format!(
        "The students work now. In `watch`, `h` shows the next of {} hints; the last is nearly the answer. Go on when most are done.",
        exercise.hints.len()
    );
    let from = format!("slide {id}: {}", exercise.id);
    Slide { id: id.to_owned(), from, body, notes: markdown::inline(&notes), below: false }
}

/// Shows a wrong answer, and asks what the check reports. Chooses the mistake with the smallest difference.
fn predict(
    root: &Path,
    id: &str,
    exercise: &Exercise,
    solution: &str,
    mistakes: &[Mistake],
) -> anyhow::Result<Slide> {
    let id = format!("{id}-predict");
    let from = format!("slide {id}: the mistakes for {}", exercise.id);
    let plain = answers::solution(root, exercise)?;
    let of_it = mistakes.iter().filter(|mistake| mistake.patch.exercise == exercise.id);
    let applied = of_it.map(|mistake| Ok((mistake, mistake.patch.apply(&plain)?)));
    let mut of_it = applied.collect::<anyhow::Result<Vec<_>>>().with_context(|| from.clone())?;
    of_it.sort_by_key(|(_, wrong)| code::changes(solution, wrong));
    let mut shown = None;
    for (mistake, wrong) in of_it {
        let wrong = code::narrow(&wrong).with_context(|| format!("slide {id}: {}", mistake.patch.path()))?;
        shown = code::difference(solution, &wrong, DIFFERENCE).map(|lines| (mistake, lines));
        if shown.is_some() {
            break;
        }
    }
    let (mistake, lines) = shown.with_context(|| {
        format!("{from}: no mistake fits, because all of them differ from the solution in too many lines")
    })?;
    let body = format!(
        "<h2>Predict: what does the check report?</h2>\n<p class=\"what\">{}.</p>\n{}<div class=\"fragment answer\"><p><code>{}</code></p><p>{}</p></div>\n",
        markdown_line(&deck::capitalised(&mistake.what)),
        code::difference_block(&lines),
        mistake.fails,
        mistake
            .says
            .iter()
            .map(|says| format!("“… {} …”", code::escaped(says)))
            .collect::<Vec<_>>()
            .join("<br>")
    );
    let mut notes = format!("Let the students answer before you go on. `{}` fails, with\n", mistake.fails);
    for says in &mistake.says {
        let _ = writeln!(notes, "- … {} …", code::escaped(says));
    }
    let _ = writeln!(
        notes,
        "\n`{}`. For the other mistakes: `cargo course teach mistakes {}`.",
        mistake.patch.path(),
        exercise.id
    );
    Ok(Slide { id, from, body, notes: markdown::inline(&notes), below: false })
}

/// Converts Markdown to HTML without an enclosing paragraph.
fn markdown_line(text: &str) -> String {
    markdown::inline(text).trim().trim_start_matches("<p>").trim_end_matches("</p>").to_owned()
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_sentence_ends_with_its_full_stop() {
        assert_eq!(first_sentence("Sum `a.b`. Then go."), "Sum `a.b`.");
        assert_eq!(first_sentence("Sum it."), "Sum it.");
        assert_eq!(markdown_line("the `x`"), "the <code>x</code>");
    }

    #[test]
    fn a_solution_without_anchors_has_no_slides() {
        assert!(regions("fn f() {}").is_err_and(|error| error.to_string() == "it has no anchors"));
        let regions = regions("// ANCHOR: f\n// Do it.\nx\n// ANCHOR_END: f\n").unwrap();
        assert_eq!((regions[0].task.as_str(), regions[0].code.as_str()), ("Do it.", "x"));
    }
}
