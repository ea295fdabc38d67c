//! Exercises: their state, hints, and solutions.

use std::fs;
use std::path::Path;
use std::process::Command;

use snapbox::{assert_data_eq, str};

use crate::student::{Student, solution};

#[test]
fn an_exercise_is_open_then_written_then_right() {
    let student = Student::new("one");
    assert_data_eq!(
        student.says(&["list"]),
        str![[r#"
  01_one  The first  0 of 2
    to do    one/first   One
    to do    one/second  Two
  02_two  The second  0 of 1
    to do    two/third   Three
━━━ 0 of 3, about 30 min left

"#]]
    );
    assert_data_eq!(
        student.fails(&["run"]),
        str![[r#"
FAILED first::it_is_1 (modules/01_one/src/first.rs)
not yet implemented
one/first is not right yet: 1 check failed
checking one/first …

"#]]
    );
    student.solve("01_one/src/first.rs");
    assert!(student.says(&["list"]).contains("written  one/first"));
    assert_data_eq!(
        student.says(&["run", "first"]),
        str![[r#"
one/first is right: 1 check passed

You can now: Return 1
  compare  cargo course diff one/first
  discuss  cargo course discuss one/first

Next: one/second (Two), 5 minutes
  Return 2
  read   modules/01_one/lessons/second.md
  edit   modules/01_one/src/second.rs
  check  cargo course run one/second
  stuck? cargo course hint one/second

"#]]
    );
}

/// Runs an exercise with a Cargo that fails, and returns whether the answer is right, and all output.
fn run_without_cargo(student: &Student) -> (bool, String) {
    let output = student.command(&["run", "first"]).env("CARGO", "false").output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn the_compiler_runs_without_cargo_until_something_else_changes() {
    let student = Student::new("direct");
    student.fails(&["run", "first"]);
    // The lock file is new, so Cargo has to build once more.
    student.write("modules/01_one/src/first.rs", "pub fn first() -> u32 { 2 }");
    student.fails(&["run", "first"]);
    student.solve("01_one/src/first.rs");
    let (is_right, said) = run_without_cargo(&student);
    assert!(is_right, "{said}");

    student.write("modules/01_one/src/first.rs", "pub fn first() -> u32 { \"1\" }");
    let (is_right, said) = run_without_cargo(&student);
    assert!(!is_right && said.contains("mismatched types"), "{said}");

    student.solve("01_one/src/first.rs");
    let manifest = student.read("modules/02_two/Cargo.toml");
    student.write("modules/02_two/Cargo.toml", &format!("{manifest}\n# Changed.\n"));
    let (is_right, said) = run_without_cargo(&student);
    assert!(!is_right && said.contains("cargo can't build"), "{said}");
    // Cargo builds nothing, because for Cargo nothing has changed. So there is still no command.
    student.says(&["run", "first"]);
}

#[test]
fn after_an_exercise_there_is_more_to_read() {
    let student = Student::new("after");
    let page = "# After: one\n\nYou returned\n1.\n\n## Question\n\nWhy?\n\n<details><summary>Answer</summary>\n\nBecause.\n</details>\n";
    student.write("modules/01_one/lessons/first.after.md", page);
    assert!(student.says(&["next"]).contains("read   modules/01_one/lessons/first.md"));
    assert!(student.says(&["next", "--file"]).ends_with("/modules/01_one/src/first.rs\n"));
    assert_data_eq!(
        student.fails(&["discuss", "first"]),
        str![[r#"
error: one/first is not right yet, and its discussion shows answers; get it right first: cargo course run one/first

"#]]
    );
    student.solve("01_one/src/first.rs");
    assert!(student.says(&["run", "first"]).contains("discuss  cargo course discuss one/first"));
    assert_data_eq!(
        student.says(&["discuss", "first"]),
        str![[r#"
After: one

You returned 1.

Question

Why?

to show the answers: cargo course discuss --answers one/first
this page: modules/01_one/lessons/first.after.md

"#]]
    );
    assert!(student.says(&["discuss", "--answers", "first"]).contains("Why?\n\nBecause.\n"));
}

#[test]
fn from_the_first_exercise_to_the_last() {
    let student = Student::new("all");
    student.solve("01_one/src/first.rs");
    student.says(&["run"]);
    student.write(
        "modules/01_one/src/second.rs",
        "//! Wrong.\n\n/// The number.\npub fn second() -> u32 {\n    3\n}\n",
    );
    assert_eq!(student.fails(&["test"]), student.fails(&["test", "1"]), "the module of the next exercise");
    assert_data_eq!(
        student.fails(&["test", "1"]),
        str![[r#"
FAILED second::it_is_2 (modules/01_one/src/second.rs)
rank 1: got 3, expected 2

one/first is right: 1 check passed
one/second is not right yet: 1 check failed
checking 01_one …

"#]]
    );
    assert!(student.says(&["list"]).contains("  wrong    one/second"));
    student.solve("01_one/src/second.rs");
    assert_data_eq!(
        student.says(&["run"]),
        str![[r#"
one/second is right: 1 check passed

You can now: Return 2
  compare  cargo course diff one/second
  discuss  cargo course discuss one/second

Module 01 is done: The first

Next: two/third (Three), 15 minutes
  Return 3
  read   modules/02_two/lessons/third.md
  edit   modules/02_two/src/third.rs
  check  cargo course run two/third
  stuck? cargo course hint two/third

"#]]
    );
    let list = student.says(&["list"]);
    assert!(list.contains("✓ 01_one") && list.contains("2 of 3, about 15 min left"), "{list}");
    student.solve("02_two/src/third.rs");
    assert_data_eq!(
        student.says(&["run"]),
        str![[r#"
two/third is right: 1 check passed

You can now: Return 3
  compare  cargo course diff two/third
  discuss  cargo course discuss two/third

Module 02 is done: The second

━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
  You have finished the course.

  ✓ 01_one  The first  2 exercises
  ✓ 02_two  The second  1 exercise

  3 exercises, 1 hour: every check passes.
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
How the solution does it: cargo course diff ID

"#]]
    );
    student.says(&["verify"]);
    assert!(student.says(&["list"]).contains("3 of 3\n"));
    assert!(student.says(&["next"]).contains("You have finished the course."));
    assert!(student.fails(&["next", "--file"]).contains("there is no next exercise"));
    assert!(student.says(&["diff", "two/third"]).contains("your file matches the solution"));
    // A verdict counts only for the answer that was checked.
    student.write("modules/02_two/src/third.rs", &solution("third", 4));
    assert!(student.says(&["list"]).contains("written  two/third"));
}

#[test]
fn next_is_the_next_one_after_the_exercise_just_solved() {
    let student = Student::new("after");
    student.solve("01_one/src/second.rs");
    assert!(student.says(&["run", "second"]).contains("Next: two/third"));
    student.solve("02_two/src/third.rs");
    assert!(
        student.says(&["run"]).contains("Next: one/first"),
        "after the last exercise, the search starts from the beginning"
    );
    let student = Student::new("jumped");
    student.solve("01_one/src/second.rs");
    let earlier = "Earlier exercises to do: 1; the first is one/first\n";
    assert!(student.says(&["run", "second"]).ends_with(earlier));
    assert!(student.says(&["next"]).ends_with(earlier));
    assert!(student.says(&["next", "--help"]).contains("starting at the exercise\nthat you checked last"));
    let student = Student::new("caught_up");
    let told = student.says(&["catch-up", "02", "--yes"]);
    assert!(told.contains("Next: two/third") && !told.contains("Earlier exercises"), "{told}");
    assert!(student.fails(&["run"]).contains("two/third is not right yet"));
}

#[test]
fn hints_come_one_by_one() {
    let student = Student::new("hint");
    assert_data_eq!(
        student.says(&["hint"]),
        str![[r#"
one/first, hint 1 of 2: It is a number.
For a clearer one: cargo course hint one/first

"#]]
    );
    assert_data_eq!(
        student.says(&["hint"]),
        str![[r#"
one/first, hint 1 of 2: It is a number.
one/first, hint 2 of 2: It is 1.
That was the last hint. The solution: cargo course diff --spoil one/first

"#]]
    );
    assert!(student.says(&["hint", "two/third", "2"]).contains("hint 2 of 2: It is 3."));
}

#[test]
fn the_solution_shows_once_the_answer_is_right() {
    let student = Student::new("diff");
    assert!(student.fails(&["diff", "first"]).contains("add --spoil to see the solution anyway"));
    assert_data_eq!(
        student.says(&["diff", "first", "--spoil"]),
        str![[r#"
- yours, 01_one/src/first.rs
+ the solution
 pub fn first() -> u32 {
     // ANCHOR: first
     // Return 1.
-    todo!("Return 1")
+
+    1
     // ANCHOR_END: first
 }

"#]]
    );
    fs::remove_file(student.root.join("solutions/01_one/src/first.rs")).unwrap();
    let error = student.fails(&["diff", "first", "--spoil"]);
    assert!(
        error.contains("one/first has no solution here: can't read [ROOT]/solutions/01_one/src/first.rs"),
        "{error}"
    );
}

#[test]
fn commands_work_in_any_folder_of_a_course() {
    let student = Student::new("folder");
    let output = Command::new(env!("CARGO_BIN_EXE_course"))
        .args(["list", "--path", "short"])
        .current_dir(student.root.join(Path::new("modules/01_one/src")))
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    assert_data_eq!(
        String::from_utf8(output.stdout).unwrap(),
        str![[r#"
A short way: 0:25 h
 0:00  10 min           talk
 0:10  10 min  to do    one/first  One
 0:20   5 min           pause
━ 0 of 1, about 10 min left
To follow it: cargo course path short

"#]]
    );
}
