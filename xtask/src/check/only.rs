//! Leaves out the checks that don't run on a variant, and the functions that only they use. To compile the rest takes less
//! than half of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use course::module_sources::Words;

/// The indentation of the list's brackets and of its elements, as rustfmt writes them.
const LIST: &str = "    ";
const ELEMENT: &str = "        ";

/// The function that lists the checks of an exercise or a module.
const CHECKS: &str = "checks";

/// The checks of an exercise, divided into functions.
pub(super) struct Divided {
    parts: Vec<Part>,
    /// The places of all functions with a name, whatever file they are in.
    functions: BTreeMap<String, Vec<usize>>,
}

/// A function with its comments and attributes, or the lines between two functions. Only functions outside of `impl` blocks
/// and modules count; in files formatted by rustfmt, these are not indented.
struct Part {
    file: PathBuf,
    /// The function's name.
    function: Option<String>,
    text: String,
    words: Rc<Words>,
    /// The places of the functions that it mentions.
    uses: Vec<usize>,
}

/// The files with some of the parts.
#[derive(Default)]
pub(super) struct Selected {
    pub(super) files: BTreeMap<PathBuf, String>,
    /// The words of each part.
    pub(super) words: Vec<Rc<Words>>,
}

impl Divided {
    pub(super) fn new(files: &BTreeMap<PathBuf, String>) -> Self {
        let mut all = Self { parts: Vec::new(), functions: BTreeMap::new() };
        for (file, (function, text)) in
            files.iter().flat_map(|(file, text)| parts(text).into_iter().map(move |part| (file, part)))
        {
            if let Some(name) = function {
                all.functions.entry(name.to_owned()).or_default().push(all.parts.len());
            }
            let (function, words) = (function.map(str::to_owned), Rc::new(Words::of(text)));
            all.parts.push(Part {
                file: file.clone(),
                function,
                text: text.to_owned(),
                words,
                uses: Vec::new(),
            });
        }
        for at in 0..all.parts.len() {
            all.parts[at].uses = all.used_by(&all.parts[at].words);
        }
        all
    }

    fn used_by(&self, words: &Words) -> Vec<usize> {
        self.functions
            .iter()
            .filter(|(name, _)| words.contains(name))
            .flat_map(|(_, places)| places.clone())
            .collect()
    }

    /// Returns everything, or only one check and what it uses.
    pub(super) fn select(&self, check: Option<&str>) -> Selected {
        let replaced: BTreeMap<usize, Part> =
            check.map(|check| self.lists_with_only(check)).unwrap_or_default();
        let part = |at: usize| replaced.get(&at).unwrap_or(&self.parts[at]);
        let is_root = |at: &usize| {
            check.is_none() || self.parts[*at].function.as_ref().is_none_or(|function| function == CHECKS)
        };
        let mut kept: BTreeSet<usize> = (0..self.parts.len()).filter(is_root).collect();
        let mut next: Vec<usize> = kept.iter().copied().collect();
        while let Some(at) = next.pop() {
            next.extend(part(at).uses.iter().filter(|&&used| kept.insert(used)));
        }
        let mut selected = Selected::default();
        for at in 0..self.parts.len() {
            let text = selected.files.entry(self.parts[at].file.clone()).or_default();
            if kept.contains(&at) {
                text.push_str(&part(at).text);
                selected.words.push(Rc::clone(&part(at).words));
            }
        }
        selected
    }

    /// Returns the functions whose list of checks contains a check, with only that check in the list.
    fn lists_with_only(&self, check: &str) -> BTreeMap<usize, Part> {
        let lists = self.parts.iter().enumerate().filter_map(|(at, part)| {
            let text = only(&part.text, check)?;
            let words = Rc::new(Words::of(&text));
            let (file, function, uses) = (part.file.clone(), part.function.clone(), self.used_by(&words));
            Some((at, Part { file, function, text, words, uses }))
        });
        lists.collect()
    }
}

/// Returns the text with only those elements in the list of `checks()` that contain a check's name, or its name without the
/// exercise's prefix. Returns `None` if none does, or if the list has another form: then all checks are built.
fn only(text: &str, check: &str) -> Option<String> {
    let (before, elements, after) = list(text)?;
    let short = check.split_once("::").map_or(check, |(_, short)| short);
    let quoted = [check, short].map(|name| format!("\"{name}\""));
    let is_asked = |element: &str| quoted.iter().any(|name| element.contains(name));
    let asked: String = elements.into_iter().filter(|element| is_asked(element)).collect();
    (!asked.is_empty()).then(|| format!("{before}{asked}{after}"))
}

/// Returns what comes before the elements of the list in `checks()`, the elements, and what comes after them.
fn list(source: &str) -> Option<(&str, Vec<String>, &str)> {
    let function = source.find("fn checks() -> Vec<Check> {\n")?;
    let end = function + source[function..].find("\n}\n")?;
    let opens = |line: &str| {
        let code = line.strip_prefix(LIST).filter(|code| code.starts_with(|first| !" /".contains(first)));
        code.is_some_and(|code| code.ends_with("[\n"))
    };
    let lines = || source[function..end].split_inclusive('\n');
    let opening = lines().position(opens)?;
    let start = function + lines().take(opening + 1).map(str::len).sum::<usize>();
    let end = start + source[start..end].find(&format!("\n{LIST}]"))? + 1;
    let mut elements: Vec<String> = Vec::new();
    for line in source[start..end].split_inclusive('\n') {
        // Lines that continue an element start with `.` or a closing bracket, or are indented further.
        let begins = line.strip_prefix(ELEMENT).is_some_and(|text| text.starts_with(char::is_alphabetic));
        match elements.last_mut() {
            Some(element) if !begins => element.push_str(line),
            _ => elements.push(line.to_owned()),
        }
    }
    Some((&source[..start], elements, &source[end..]))
}

/// Divides a source into its functions, each with its name, and what is between them.
fn parts(source: &str) -> Vec<(Option<&str>, &str)> {
    let mut parts = Vec::new();
    // Where the current part starts, where the comments and attributes above the current line start, and the line.
    let (mut start, mut above, mut at) = (0, 0, 0);
    let mut function = None;
    for line in source.split_inclusive('\n') {
        let end = at + line.len();
        if function.is_none() {
            function = name_of_function(line);
            if function.is_some() {
                parts.push((None, &source[start..above]));
                start = above;
            }
        }
        if function.is_some() && (line == "}\n" || is_whole(line)) {
            parts.push((function, &source[start..end]));
            (function, start) = (None, end);
        }
        at = end;
        if !["//", "#["].iter().any(|sign| line.starts_with(sign)) {
            above = at;
        }
    }
    parts.push((function, &source[start..]));
    parts
}

/// Returns whether a line defines a function completely.
fn is_whole(line: &str) -> bool {
    name_of_function(line).is_some() && line.trim_end().ends_with('}')
}

/// Returns the name of the function whose definition starts on a line.
fn name_of_function(line: &str) -> Option<&str> {
    let mut line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).unwrap_or(line);
    for word in ["pub ", "const ", "unsafe ", "extern \"C\" "] {
        line = line.strip_prefix(word).unwrap_or(line);
    }
    line.strip_prefix("fn ")?.split(|next: char| !next.is_alphanumeric() && next != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "pub(crate) fn checks() -> Vec<Check> {
    let of_four = |name: &str, check| Check::new(format!(\"hybrid::{name}\"), check);
    vec![
        Check::new(\"hybrid::one\", one)
            .calls(&[\"step\"]),
        Check::new(\"hybrid::two\", || {
            two()
        })
        .min_ranks(2),
        of_four(\"three\", three),
    ]
}

fn one() -> anyhow::Result<()> {
    Ok(())
}
";

    #[test]
    fn other_elements_are_left_out() {
        for (check, lines) in [("hybrid::one", 3..5), ("hybrid::two", 5..9), ("hybrid::three", 9..10)] {
            let kept = SOURCE.lines().enumerate();
            let kept = kept.filter(|(at, _)| !(3..10).contains(at) || lines.contains(at));
            let expected: String = kept.map(|(_, line)| format!("{line}\n")).collect();
            assert_eq!(only(SOURCE, check).unwrap(), expected);
        }
    }

    #[test]
    fn a_list_without_the_name_is_kept() {
        assert_eq!(only(SOURCE, "hybrid::four"), None);
        let other = "pub(crate) fn checks() -> Vec<Check> {\n    all(\"hybrid::one\")\n}\n";
        assert_eq!(only(other, "hybrid::one"), None);
    }

    #[test]
    fn functions_that_the_check_does_not_use_are_left_out() {
        let main = "use a::used;\n\n/// Lists.\npub(crate) fn checks() -> Vec<Check> {\n    vec![\n        new(\"m::one\", used),\n        \
                    new(\"m::two\", own),\n    ]\n}\n\nfn own() {}\n\n/// Unused.\n#[inline]\nfn other<T>(\n    _: T,\n) {\n    \
                    third();\n}\n\nfn third() {}\n";
        let a = "pub(crate) fn used() {\n    let x = {\n    };\n    deep();\n}\nconst N: u8 = 1;\n\nfn deep() {}\nfn third() {}\n";
        let files = [
            ("m.rs", main),
            ("mod.rs", "pub fn checks() -> Vec<Check> {\n    lab::checks![m]\n}\n"),
            ("m/a.rs", a),
        ];
        let files = files.map(|(path, text)| (PathBuf::from(path), text.to_owned())).into();
        let divided = Divided::new(&files);
        assert_eq!(divided.select(None).files, files);
        let Selected { files, words } = divided.select(Some("m::two"));
        assert_eq!(files[&PathBuf::from("m/a.rs")], a.replace("fn third() {}\n", ""));
        assert!(files[&PathBuf::from("mod.rs")].contains("lab::checks![m]"), "{files:?}");
        let main = files[&PathBuf::from("m.rs")].as_str();
        assert!(main.contains("fn own() {}") && main.contains("/// Lists."), "{main}");
        assert!(
            ["other", "Unused", "inline", "third", "one"].iter().all(|word| !main.contains(word)),
            "{main}"
        );
        assert!(
            words.iter().any(|words| words.contains("deep"))
                && words.iter().all(|words| !words.contains("third"))
        );
    }
}
