//! The score of a design, in `cargo course score`.

use crate::student::Student;

/// A test program that fails until the answer is 1, and then stores a score as the harness does.
const TESTS: &str = r####"
pub mod first;
pub mod second;

#[cfg(test)]
fn main() {
    let name = "first::it_is_1";
    if std::env::args().any(|argument| argument == "--list") {
        return println!("{name}: test");
    }
    match std::panic::catch_unwind(crate::first::first) {
        Ok(1) => {
            let score = r##"{"ranks": 4, "microseconds": 750.0, "bound": 500.0, "sent": 12345, "memory": 67890,
                "times": "modeled for a node"}"##;
            if let Ok(folder) = std::env::var("LAB_SCORES") {
                std::fs::write(format!("{folder}/{name}.json"), score).unwrap();
            }
            println!(r##"{{"type": "test", "name": "{name}", "event": "ok"}}"##);
        }
        _ => println!(r##"{{"type": "test", "name": "{name}", "event": "failed", "stdout": "Error: \"no\"\n"}}"##),
    }
    println!(r##"{{"type": "suite", "event": "ok"}}"##);
}
"####;

const DESIGNS: &str = r#"[
    {"name": "solution", "score": {
        "ranks": 4, "microseconds": 600.0, "bound": 500.0, "sent": 54321, "memory": 98765, "times": "modeled for a node"
    }},
    {"name": "pipeline", "score": {
        "ranks": 4, "microseconds": 900.0, "bound": 500.0, "sent": 4321, "memory": 8765, "times": "modeled for a node"
    }}
]"#;

const TABLE: &str = "\
one/first on 4 GPUs

design         step  of bound         sent       memory
solution   0.600 ms    1.20 ×      54.3 KB      98.8 KB
yours      0.750 ms    1.50 ×      12.3 KB      67.9 KB
pipeline   0.900 ms    1.80 ×       4.3 KB       8.8 KB

step      the time of one step; the bound is 0.500 ms
sent      the most that a rank sends in a step
memory    the most that a GPU has in use at the same time
Times are modeled for a node.
";

#[test]
fn a_right_design_is_shown_among_the_course_s_own() {
    let student = Student::new("score");
    let help = student.says(&["score", "--help"]);
    assert!(help.contains("Example: cargo course score"), "{help}");
    assert!(student.fails(&["score"]).contains("no exercise of this course has a score"));

    student.write("modules/01_one/src/lib.rs", TESTS);
    student.write("tests/01_one/first.scores.json", DESIGNS);
    let wrong = student.fails(&["score"]);
    assert!(wrong.contains("one/first is not right yet"), "{wrong}");
    assert!(wrong.contains("only a right answer has a score") && !wrong.contains("pipeline"), "{wrong}");

    student.solve("01_one/src/first.rs");
    assert_eq!(student.says(&["score"]), TABLE);
    assert_eq!(student.says(&["score", "one/first"]), TABLE);
    let right = student.says(&["run", "one/first"]);
    assert!(right.contains("score    cargo course score\n"), "{right}");
    let none = student.fails(&["score", "one/second"]);
    assert!(none.contains("one/second has no score"), "{none}");

    student.write("tests/01_one/first.scores.json", "{}");
    let malformed = student.fails(&["score"]);
    let words = "tests/01_one/first.scores.json is not what `cargo xtask scores` writes";
    assert!(malformed.contains(words), "{malformed}");
}
