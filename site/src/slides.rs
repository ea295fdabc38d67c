//! The slides: one deck for each path through the course, made from handwritten slides in `site/slides/` and the
//! exercises' files.

mod code;
mod deck;
mod exercise;
mod markdown;
mod recording;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use course::mistakes;
use course::syllabus::{Course, Exercise, Route, clock};

use crate::output::Outputs;
use crate::page::Pages;

/// The reveal.js folder, and the files that a deck needs, with the names they get next to the deck.
const REVEAL: &str = "site/node_modules/reveal.js/dist";
const PARTS: [(&str, &str); 4] = [
    ("reveal.css", "reveal.css"),
    ("theme/white.css", "theme.css"),
    ("reveal.js", "reveal.js"),
    ("plugin/highlight.js", "highlight.js"),
];
/// The plugin with the speaker view, which needs a change before it is next to the deck.
const NOTES: &str = "plugin/notes.js";
/// The folder with the pictures in the repository, and the folder's name next to the decks.
const PICTURES: (&str, &str) = ("site/book/src/pictures", "pictures");

/// One slide.
#[derive(Clone)]
struct Slide {
    /// The slide's name in addresses.
    id: String,
    /// The slide's source, for an author who has to fix it.
    from: String,
    /// Its content, as HTML.
    body: String,
    /// Its speaker notes, as HTML.
    notes: String,
    /// Whether it is below the previous slide: ↓ shows it, and → skips it.
    below: bool,
}

/// The slides for each exercise, by its id.
type Exercises = BTreeMap<String, Vec<Slide>>;

/// Creates all decks in the folder `to`.
///
/// # Errors
/// Fails if a slide refers to something that doesn't exist, or doesn't fit; the error names the slide.
pub(crate) fn make(root: &Path, to: &Path) -> anyhow::Result<String> {
    let course = Course::read(root)?;
    let outputs = Outputs::read(root)?;
    let mistakes = mistakes::read(root)?;
    let pictures = pictures(root)?;
    let of_exercise =
        |exercise: &Exercise| Ok((exercise.id.clone(), exercise::slides(root, exercise, &mistakes)?));
    let exercises = course.exercises.iter().map(of_exercise).collect::<anyhow::Result<Exercises>>()?;
    let mut decks = Vec::new();
    for route in &course.paths {
        let shown = shown(&course, route, &pictures);
        let pages = Pages { root, course: &course, outputs: &outputs, shown, output: recording::html };
        let slides =
            deck::slides(&pages, route, &exercises).with_context(|| format!("the deck {}", route.name))?;
        ensure_places(&slides).with_context(|| format!("the deck {}", route.name))?;
        decks.push((route, slides));
    }
    write(root, to, &course, &decks, &pictures, &outputs)?;
    let told = decks.iter().map(|(route, slides)| format!("{} has {} slides", route.name, slides.len()));
    Ok(format!("{}; wrote them to {}", told.collect::<Vec<_>>().join(", "), to.display()))
}

/// Returns the names of the pictures that slides may show.
fn pictures(root: &Path) -> anyhow::Result<Vec<String>> {
    let folder = root.join(PICTURES.0);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns where the repository's files are shown: pictures next to the decks, and an exercise on its first slide.
fn shown(course: &Course, route: &Route, pictures: &[String]) -> BTreeMap<String, String> {
    let steps = course.schedule(route);
    let here: Vec<&String> = steps.iter().flat_map(|scheduled| &scheduled.step.exercises).collect();
    let mut shown = BTreeMap::new();
    for name in pictures {
        shown.insert(format!("{}/{name}", PICTURES.0), format!("{}/{name}", PICTURES.1));
    }
    for exercise in course.exercises.iter().filter(|exercise| here.contains(&&exercise.id)) {
        let place = format!("{}/index.html#/{}", route.name, exercise.id.replace('/', "-"));
        for kind in ["modules", "solutions"] {
            shown.insert(format!("{kind}/{}", exercise.file), place.clone());
        }
    }
    shown
}

/// Checks that slide names are unique and that each link to a slide finds its slide.
fn ensure_places(slides: &[Slide]) -> anyhow::Result<()> {
    for (at, slide) in slides.iter().enumerate() {
        let same = slides[..at].iter().find(|other| other.id == slide.id);
        ensure!(same.is_none(), "{} and another one are both called {}", slide.from, slide.id);
        for link in slide.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let Some((_, place)) = link.split_once("#/").filter(|_| !link.contains("://")) else { continue };
            ensure!(
                slides.iter().any(|slide| slide.id == place),
                "{}: no slide is called {place}",
                slide.from
            );
        }
    }
    Ok(())
}

/// Writes the decks, the files that they need, and a page that links to them.
fn write(
    root: &Path,
    to: &Path,
    course: &Course,
    decks: &[(&Route, Vec<Slide>)],
    pictures: &[String],
    outputs: &Outputs,
) -> anyhow::Result<()> {
    let reveal = root.join(REVEAL);
    ensure!(reveal.is_dir(), "there is no {}: run `npm ci` in site/", reveal.display());
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("can't empty {}", to.display()))?;
    }
    for (from, name) in PARTS {
        copy(&reveal.join(from), &to.join("reveal").join(name))?;
    }
    let notes = fs::read_to_string(reveal.join(NOTES)).with_context(|| format!("can't read {NOTES}"))?;
    put(&to.join("reveal/notes.js"), &with_uncovered_slide(&notes)?)?;
    for name in pictures {
        copy(&root.join(PICTURES.0).join(name), &to.join(PICTURES.1).join(name))?;
    }
    for part in outputs.iter().flat_map(recording::parts) {
        put(&to.join(recording::FOLDER).join(&part.name), &part.svg)?;
    }
    put(&to.join("slides.css"), include_str!("slides/slides.css"))?;
    put(&to.join("slides.js"), include_str!("slides/slides.js"))?;
    let mut list = String::new();
    for (route, slides) in decks {
        put(&to.join(&route.name).join("index.html"), &deck::page(&route.title, slides))?;
        list += &format!(
            "<li><a href=\"{}/index.html\">{}</a>: {} slides, {} h</li>\n",
            route.name,
            code::escaped(&route.title),
            slides.len(),
            clock(course.length(route))
        );
    }
    put(&to.join("index.html"), &include_str!("slides/index.html").replace("{{decks}}", &list))
}

/// Changes the speaker view so that its labels are above the next slide instead of on top of the slide's title.
///
/// # Errors
/// Fails if the plugin has another form; a new version of reveal.js may need another change.
fn with_uncovered_slide(notes: &str) -> anyhow::Result<String> {
    // The labels end 44 pixels below the top of the window.
    let rule = "#upcoming-slide { padding-top: 48px !important; }\n";
    ensure!(
        notes.matches("</style>").count() == 1,
        "{NOTES} of reveal.js doesn't have exactly one style sheet"
    );
    Ok(notes.replacen("</style>", &format!("{rule}</style>"), 1))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let said = || format!("can't copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(said)?;
    fs::copy(from, to).with_context(said)?;
    Ok(())
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    let said = || format!("can't write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(said)?;
    fs::write(path, text).with_context(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slide(id: &str, body: &str) -> Slide {
        let (id, body, from) = (id.to_owned(), body.to_owned(), format!("slide {id}"));
        Slide { id, from, body, notes: String::new(), below: false }
    }

    #[test]
    fn the_speaker_view_has_one_more_rule() {
        let made = with_uncovered_slide("<style>a {}\n</style><body>").unwrap();
        assert!(
            made.starts_with("<style>a {}\n#upcoming-slide {") && made.ends_with("</style><body>"),
            "{made}"
        );
        assert!(with_uncovered_slide("<body>").is_err());
    }

    #[test]
    fn a_broken_link_is_named_with_its_slide() {
        let good = [slide("a", "<a href=\"#/b\">b</a> <a href=\"https://x.org/#/c\">c</a>"), slide("b", "")];
        assert!(ensure_places(&good).is_ok());
        let said = |slides: &[Slide]| ensure_places(slides).unwrap_err().to_string();
        assert_eq!(said(&good[..1]), "slide a: no slide is called b");
        assert_eq!(said(&[slide("a", ""), slide("a", "")]), "slide a and another one are both called a");
    }
}
