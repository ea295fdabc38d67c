//! Which function of the exercise a failure is about.

/// How the message of a `todo!` starts: it says itself which region is empty.
const TODO: &str = "not yet implemented";

/// A failure that names the function which the check called. The name comes first, unless the failure's headline has it.
pub(super) fn with_function(functions: &[&str], failure: &str) -> String {
    let first = failure.lines().next().unwrap_or_default();
    let joined = first.ends_with(" ranks failed");
    let headline = failure.lines().take(if joined { 2 } else { 1 });
    if functions.is_empty() || first.starts_with(TODO) || names_one(functions, headline) {
        return failure.to_owned();
    }
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

/// Whether one of these lines names one of the functions.
fn names_one<'a>(functions: &[&str], mut lines: impl Iterator<Item = &'a str>) -> bool {
    lines.any(|line| functions.iter().any(|function| names(line, function)))
}

/// Whether a line names a function: as a word, or, where the name is an English word as well, as code.
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

/// Whether a text is `rank 2`, `rank 2 of 4`, or `ranks 0, 1 and 3`.
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
            assert_eq!(with_function(&["sum"], failure), expected);
        }
        assert_eq!(with_function(&["one", "other"], "it failed"), "`one` or `other`: it failed");
    }

    #[test]
    fn a_function_that_is_named_is_not_named_again() {
        for failure in [
            "sum(3) is 2",
            "rank 1: `sum` waits",
            "and sum returned Ok",
            "not yet implemented: sum the buffers",
        ] {
            assert_eq!(with_function(&["sum"], failure), failure);
        }
        let failure = "2 of 2 ranks failed\n  rank 0: `sum` waits\n  rank 1: so";
        assert_eq!(with_function(&["sum"], failure), failure);
        assert_eq!(with_function(&["all_gather"], "all_gather waits"), "all_gather waits");
        assert_eq!(
            with_function(&["all_gather"], "all_gather_in_place"),
            "`all_gather`: all_gather_in_place"
        );
        assert_eq!(with_function(&[], "it failed"), "it failed");
    }
}
