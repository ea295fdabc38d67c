//! Splits code into words: names, numbers, and operators.

/// Names from Rust and its standard library, which lessons don't need to introduce.
const RUST: &str = include_str!("rust.txt");

/// Returns the code in a Markdown text: its code blocks and code spans.
pub(super) fn code_of(markdown: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (index, part) in markdown.split("```").enumerate() {
        if index % 2 == 1 {
            // The first line names the language.
            code.push(part.split_once('\n').map_or(part, |(_, block)| block).to_owned());
        } else {
            code.extend(part.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    code
}

/// Returns the names, numbers, and operators of Rust code, without punctuation, strings, and comments.
pub(super) fn words(code: &str) -> Vec<String> {
    let mut words = Vec::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or_default();
        // Every other part is inside a string.
        for part in line.split('"').step_by(2) {
            words_of_line(part, &mut words);
        }
    }
    words
}

fn words_of_line(line: &str, words: &mut Vec<String>) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let end = match is_word(first) {
            true => rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        if is_word(first) || "+-*/%<>!^".contains(first) {
            words.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
    }
}

/// Returns the functions, methods, types, and constants that the code uses but that neither Rust nor the code itself
/// defines.
pub(super) fn calls(code: &str) -> Vec<String> {
    let all = words(code);
    let own = |word: &str| {
        ["let", "mut", "for", "fn"]
            .iter()
            .any(|before| all.windows(2).any(|pair| pair[0] == *before && pair[1] == word))
    };
    let mut calls: Vec<String> = Vec::new();
    for word in &all {
        let is_called = ["(", "::<", "!("].iter().any(|after| code.contains(&format!("{word}{after}")));
        let is_type = word.starts_with(|first: char| first.is_ascii_uppercase()) && word.len() > 1;
        let is_rust = RUST.lines().any(|name| name == word);
        if (is_called || is_type) && !is_rust && !own(word) && !calls.contains(word) {
            calls.push(word.clone());
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_between_backticks() {
        assert_eq!(code_of("a `b` c\n```rust\nd\n```\n`e`"), ["b", "d\n", "e"]);
    }

    #[test]
    fn words_exclude_punctuation_strings_and_comments() {
        assert_eq!(words("a.b(&c[0])? // d\n - \"e f\" x_1"), ["a", "b", "c", "0", "-", "x_1"]);
    }

    #[test]
    fn calls_are_names_that_neither_rust_nor_the_code_defines() {
        let code = "let sum = |x| x;\nlet event = stream.record_event(None)?;\nOk(sum(ReduceOp::Avg))";
        assert_eq!(calls(code), ["record_event", "ReduceOp", "Avg"]);
    }
}
