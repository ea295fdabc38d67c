//! Finds the function of the exercise that a failure is about.

use std::path::Path;

/// The start of a `todo!` message, which itself names the empty region.
const TODO: &str = "not yet implemented";

/// Adds the name of the function that the check called to a failure. The name comes first, unless the headline already
/// contains it. The check's process ran in `folder`.
pub(super) fn with_function(functions: &[&str], failure: &str, folder: &Path) -> String {
    let first = failure.lines().next().unwrap_or_default();
    let joined = first.ends_with(" ranks failed");
    let headline = failure.lines().take(if joined { 2 } else { 1 });
    if functions.is_empty() || first.starts_with(TODO) || names_one(functions, headline) {
        return failure.to_owned();
    }
    let of_line = (functions.len() > 1).then(|| function_of_line(functions, failure, folder)).flatten();
    let functions = of_line.as_ref().map_or(functions, std::slice::from_ref);
    let quoted: Vec<String> = functions.iter().map(|function| format!("`{function}`")).collect();
    let name = quoted.join(" or ");
    match failure.split_once(':') {
        _ if joined => match first.strip_suffix(" ranks failed") {
            Some(ranks) => format!("{name} failed on {ranks} ranks{}", &failure[first.len()..]),
            None => format!("{name}: {failure}"),
        },
        Some((ranks, _)) if is_ranks(ranks) => format!("{name} on {failure}"),
        _ => format!("{name}: {failure}"),
    }
}

/// Returns the function around the first source location of a report, if it is one of `functions`.
fn function_of_line<'a>(functions: &[&'a str], failure: &str, folder: &Path) -> Option<&'a str> {
    let place = failure.lines().find_map(|line| line.trim_start().strip_prefix("--> "))?;
    let mut parts = place.split(':');
    let (file, line) = (parts.next()?, parts.next()?.parse().ok()?);
    let root = folder.ancestors().find(|folder| folder.join("Cargo.lock").is_file())?;
    let text = std::fs::read_to_string(root.join(file)).ok()?;
    function_at(&text, line).and_then(|name| {
        functions.iter().copied().find(|function| function.rsplit("::").next() == Some(name))
    })
}

/// Returns the name of the function that contains a line, counted from 1: that of the nearest `fn` above it.
fn function_at(text: &str, line: usize) -> Option<&str> {
    let above: Vec<&str> = text.lines().take(line).collect();
    above.iter().rev().find_map(|line| {
        let rest = line.trim_start();
        let rest = rest.strip_prefix("pub(super) ").or_else(|| rest.strip_prefix("pub ")).unwrap_or(rest);
        let name = rest.strip_prefix("fn ")?;
        name.split(|next: char| !next.is_alphanumeric() && next != '_').next()
    })
}

/// Returns whether one of these lines names one of the functions.
fn names_one<'a>(functions: &[&str], mut lines: impl Iterator<Item = &'a str>) -> bool {
    lines.any(|line| functions.iter().any(|function| names(line, function)))
}

/// Returns whether a line names a function. If the name is also an English word, it must appear as code.
fn names(line: &str, function: &str) -> bool {
    let is_code = function.contains(['_', ':']) || function.contains(char::is_uppercase);
    line.match_indices(function).any(|(at, _)| {
        let (before, behind) = (&line[..at], &line[at + function.len()..]);
        let is_in_word = |next: char| next.is_alphanumeric() || next == '_';
        if before.ends_with(is_in_word) || behind.starts_with(is_in_word) {
            return false;
        }
        let as_code = behind.starts_with('(') || before.ends_with('`') && behind.starts_with('`');
        is_code || as_code || behind.starts_with(" returned ")
    })
}

/// Returns whether a text is `rank 2`, `rank 2 of 4`, or `ranks 0, 1 and 3`.
fn is_ranks(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_number = |word: &str| word.trim_matches([',', ')']).bytes().all(|digit| digit.is_ascii_digit());
    let joins = ["rank", "ranks", "of", "and", "(likewise"];
    matches!(words.first(), Some(&("rank" | "ranks")))
        && words.iter().all(|word| joins.contains(word) || is_number(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn the_function_comes_first() {
        for (failure, expected) in [
            ("rank 2: the buffer is wrong", "`sum` on rank 2: the buffer is wrong"),
            ("rank 2 of 4: it failed", "`sum` on rank 2 of 4: it failed"),
            ("ranks 0, 1 and 3: no memory", "`sum` on ranks 0, 1 and 3: no memory"),
            ("rank 0 (likewise rank 1): it", "`sum` on rank 0 (likewise rank 1): it"),
            (
                "2 of 3 ranks failed\n  rank 0: it\n  rank 1: that",
                "`sum` failed on 2 of 3 ranks\n  rank 0: it\n  rank 1: that",
            ),
            ("rank 1 is on GPU 0: that is", "`sum`: rank 1 is on GPU 0: that is"),
            ("the sum is wrong", "`sum`: the sum is wrong"),
        ] {
            assert_eq!(with_function(&["sum"], failure, folder()), expected);
        }
        assert_eq!(with_function(&["one", "other"], "it failed", folder()), "`one` or `other`: it failed");
    }

    #[test]
    fn the_function_of_a_line_is_the_nearest_above_it() {
        let text = "fn one() {\n    a()\n}\n\npub fn other<T>(x: T) {\n    b()\n}\n";
        assert_eq!([1, 2, 6].map(|line| function_at(text, line)), [Some("one"), Some("one"), Some("other")]);
        assert_eq!(function_at("use a;\n", 1), None);
        let failure = format!("it failed\n  --> {}:{}:9", file!(), line!());
        let here = ["other", "the_function_of_a_line_is_the_nearest_above_it"];
        assert_eq!(function_of_line(&here, &failure, folder()), Some(here[1]));
        assert_eq!(function_of_line(&["other", "another"], &failure, folder()), None);
    }

    #[test]
    fn a_named_function_is_not_named_again() {
        for failure in [
            "sum(3) is 2",
            "rank 1: `sum` waits",
            "and sum returned Ok",
            "not yet implemented: sum the buffers",
        ] {
            assert_eq!(with_function(&["sum"], failure, folder()), failure);
        }
        let failure = "2 of 2 ranks failed\n  rank 0: `sum` waits\n  rank 1: so";
        assert_eq!(with_function(&["sum"], failure, folder()), failure);
        assert_eq!(with_function(&["all_gather"], "all_gather waits", folder()), "all_gather waits");
        assert_eq!(
            with_function(&["all_gather"], "all_gather_in_place", folder()),
            "`all_gather`: all_gather_in_place"
        );
        assert_eq!(with_function(&[], "it failed", folder()), "it failed");
    }
}
