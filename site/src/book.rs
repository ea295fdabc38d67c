//! The book: renders `site/book/` with mdBook, adds the pages for each exercise, and checks every link in the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use course::mistakes::{self, Mistake};
use course::syllabus::Course;
use mdbook_driver::MDBook;
use mdbook_preprocessor::book::{Book, BookItem, Chapter};
use mdbook_preprocessor::{Preprocessor, PreprocessorContext};

use crate::exercise;
use crate::output::Outputs;
use crate::page::{Pages, output_as_text};

/// Pages that show a complete file from the repository.
const SHOWN: [(&str, &str); 4] = [
    ("README.md", "index.md"),
    ("CONTRIBUTING.md", "authors.md"),
    ("crates/virtual-gpu/README.md", "virtual-gpu.md"),
    ("crates/virtual-gpu/MODEL.md", "model.md"),
];

/// Builds the book in the folder `to`.
///
/// # Errors
/// Fails if a page refers to something that doesn't exist, or if a link is broken.
pub(crate) fn make(root: &Path, to: &Path) -> anyhow::Result<String> {
    let mut book = MDBook::load(root.join("site/book"))?;
    book.config.build.build_dir = to.to_owned();
    book.with_preprocessor(Fill { root: root.to_owned() });
    book.build()?;
    let pages = check_links(to)?;
    Ok(format!("wrote {pages} pages to {}", to.display()))
}

/// A preprocessor that generates the pages.
struct Fill {
    root: PathBuf,
}

impl Preprocessor for Fill {
    fn name(&self) -> &str {
        "course"
    }

    fn run(&self, _: &PreprocessorContext, mut book: Book) -> anyhow::Result<Book> {
        let course = Course::read(&self.root)?;
        let outputs = Outputs::read(&self.root)?;
        let mistakes = mistakes::read(&self.root)?;
        let shown = shown(&course, &book);
        let pages =
            Pages { root: &self.root, course: &course, outputs: &outputs, shown, output: output_as_text };
        let mut result = Ok(());
        book.for_each_chapter_mut(|chapter| {
            if result.is_ok() {
                result = fill(&pages, &mistakes, chapter);
            }
        });
        result?;
        Ok(book)
    }
}

/// Returns the page that shows each file in the repository.
fn shown(course: &Course, book: &Book) -> BTreeMap<String, String> {
    let mut shown: BTreeMap<String, String> =
        SHOWN.iter().map(|&(file, page)| (file.to_owned(), page.to_owned())).collect();
    for chapter in book.chapters() {
        if let Some(path) = chapter.path.as_ref().and_then(|path| path.to_str()) {
            shown.insert(format!("site/book/src/{path}"), path.to_owned());
        }
    }
    for kind in ["modules", "solutions"] {
        for module in &course.modules {
            shown.insert(format!("{kind}/{}/README.md", module.folder), format!("{}.md", module.folder));
        }
        for exercise in &course.exercises {
            shown.insert(format!("{kind}/{}", exercise.file), exercise::path(exercise));
        }
    }
    for exercise in &course.exercises {
        shown.insert(exercise.lesson(Path::new("")).display().to_string(), exercise::path(exercise));
        shown.insert(exercise.after(Path::new("")).display().to_string(), exercise::path_after(exercise));
    }
    shown
}

fn fill(pages: &Pages<'_>, mistakes: &[Mistake], chapter: &mut Chapter) -> anyhow::Result<()> {
    let path = chapter.path.as_ref().and_then(|path| path.to_str()).context("a page has a path")?.to_owned();
    chapter.content = pages.text(&format!("site/book/src/{path}"), &path)?;
    let folder = path.trim_end_matches(".md");
    let exercises = pages.course.exercises.iter().filter(|exercise| exercise.folder() == folder);
    for (number, exercise) in (1..).zip(exercises) {
        let text = exercise::text(pages, exercise).with_context(|| exercise.id.clone())?;
        let parents = [&chapter.parent_names[..], std::slice::from_ref(&chapter.name)].concat();
        let mut page = Chapter::new(&exercise.title, text, exercise::path(exercise), parents.clone());
        // This page has no source file in mdBook's folder.
        page.source_path = None;
        page.number = chapter.number.clone().map(|mut place| {
            place.push(number);
            place
        });
        let text = exercise::text_after(pages, exercise, mistakes).with_context(|| exercise.id.clone())?;
        let parents = [parents, vec![exercise.title.clone()]].concat();
        let mut after = Chapter::new("Afterwards", text, exercise::path_after(exercise), parents);
        after.source_path = None;
        after.number = page.number.clone().map(|mut place| {
            place.push(1);
            place
        });
        page.sub_items.push(BookItem::Chapter(after));
        chapter.sub_items.push(BookItem::Chapter(page));
    }
    Ok(())
}

/// Checks that every link on every page leads to an existing file and to an existing anchor in that file, and that no
/// page loads anything from another host. Returns the number of pages.
fn check_links(book: &Path) -> anyhow::Result<usize> {
    let pages = read_pages(book)?;
    let places: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path.as_path(), attributes(text, "id").collect())).collect();
    let mut broken = Vec::new();
    // Addresses on the 404 page and the print page work differently.
    let usual = pages.iter().filter(|(path, _)| !path.ends_with("404.html") && !path.ends_with("print.html"));
    for (path, text) in usual {
        let name = path.strip_prefix(book)?.display();
        for source in attributes(text, "src") {
            if is_far(source) {
                broken.push(format!("{name}: {source} is loaded from another host"));
            }
        }
        for link in attributes(text, "href").chain(attributes(text, "src")).filter(|link| !is_far(link)) {
            let link = link.replace("%20", " ");
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => normal(&path.with_file_name("").join(file)),
            };
            let target = if target.is_dir() { target.join("index.html") } else { target };
            let is_place = |places: &BTreeSet<&str>| place.is_empty() || places.contains(place);
            if !target.is_file() {
                broken.push(format!("{name}: {link} does not exist"));
            } else if places.get(target.as_path()).is_some_and(|places| !is_place(places)) {
                broken.push(format!("{name}: {link} has an anchor that is not on that page"));
            }
        }
    }
    ensure!(broken.is_empty(), "links lead nowhere\n{}", broken.join("\n"));
    Ok(pages.len())
}

/// Reads every page of the book, by its path.
fn read_pages(book: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![book.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                pages.insert(path, text);
            }
        }
    }
    Ok(pages)
}

/// Returns the values of an attribute in a page that mdBook wrote, which always uses double quotes.
fn attributes<'t>(html: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let start = format!(" {name}=\"");
    let starts: Vec<usize> = html.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    starts.into_iter().filter_map(|at| html[at..].split('"').next())
}

fn is_far(link: &str) -> bool {
    link.contains("://") || link.starts_with("data:") || link.starts_with("mailto:")
}

/// Normalizes a path so that it contains no `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                parts.pop();
            }
            std::path::Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nowhere_is_named_with_its_page() {
        let book = std::env::temp_dir().join(format!("site_links_{}", std::process::id()));
        fs::create_dir_all(book.join("a")).unwrap();
        let write = |name: &str, text: &str| fs::write(book.join(name), text).unwrap();
        write(
            "index.html",
            r#"<h1 id="top">x</h1> <a href="a/b.html#c">b</a> <a href="https://x.org/y">y</a>"#,
        );
        write("a/b.html", r##"<h2 id="c">x</h2> <a href="../index.html#top">t</a> <a href="#c">c</a>"##);
        assert_eq!(check_links(&book).unwrap(), 2);
        write(
            "a/b.html",
            r##"<a href="../index.html#down">t</a> <img src="https://x.org/p.png"> <a href="d.html">d</a>"##,
        );
        let said = check_links(&book).unwrap_err().to_string();
        for words in [
            "index.html: a/b.html#c has an anchor that is not on that page",
            "a/b.html: ../index.html#down has an anchor that is not",
            "a/b.html: https://x.org/p.png is loaded from another host",
            "a/b.html: d.html does not exist",
        ] {
            assert!(said.contains(words), "no `{words}` in {said}");
        }
        fs::remove_dir_all(book).unwrap();
    }
}
