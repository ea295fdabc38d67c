//! A path that a student follows.

use std::process::Command;

use snapbox::{assert_data_eq, str};

use crate::student::Student;
use crate::terminal::{Size, Terminal};

/// A course with a path that leaves out the second exercise.
fn a_student(name: &str) -> Student {
    let student = Student::new(name);
    let path = "\n[[path]]\nname = \"skip\"\ntitle = \"Without the second\"\nsteps = [\n\
                { minutes = 15, exercises = [\"one/first\"] },\n{ minutes = 5, instead = \"break\" },\n\
                { minutes = 20, exercises = [\"two/third\"] },\n]\n\
                \n[[path]]\nname = \"all\"\ntitle = \"Everything\"\n";
    student.write("course.toml", &(student.read("course.toml") + path));
    student
}

#[test]
fn a_student_stays_on_a_path() {
    let student = a_student("path");
    assert_data_eq!(
        student.says(&["path"]),
        str![[r#"
You follow the whole course.

  short  A short way          0:25 h  1 exercise
  skip   Without the second   0:40 h  2 exercises
  all    Everything           0:30 h  3 exercises

To follow one: cargo course path NAME
Its steps: cargo course list --path NAME

"#]]
    );
    let error = student.fails(&["path", "half"]);
    assert!(error.contains("there is no path `half`; there are short, skip, all"), "{error}");
    assert_data_eq!(
        student.says(&["path", "skip"]),
        str![[r#"
You now follow skip, 0:40 h with talks and breaks. To return to the whole course: cargo course path all
━━ 0 of 2 on skip, about 25 min left

Next: one/first (One), 10 minutes
  Return 1
  read   modules/01_one/lessons/first.md
  edit   modules/01_one/src/first.rs
  check  cargo course run one/first
  stuck? cargo course hint one/first

"#]]
    );
    student.solve("01_one/src/first.rs");
    assert!(student.says(&["run"]).contains("Next: two/third"));
    assert!(student.says(&["next", "--file"]).ends_with("modules/02_two/src/third.rs\n"));
    assert!(student.says(&[]).ends_with("Your path: cargo course list\n"));
    assert_data_eq!(
        student.says(&["list"]),
        str![[r#"
Without the second: 0:40 h
 0:00   5 min           talk
 0:05  10 min  right    one/first  One
 0:15   5 min           break
 0:20   5 min           talk
 0:25  15 min  to do    two/third  Three
━━ 1 of 2 on skip, about 15 min left

"#]]
    );
    let other = student.says(&["list", "--path", "short"]);
    assert!(other.ends_with("━ 1 of 1\nTo follow it: cargo course path short\n"), "{other}");
    assert!(student.says(&["path"]).starts_with("You follow the path skip.\n"));
    // An exercise off the path can still be opened, and the path goes on after it.
    let off = student.fails(&["run", "second"]);
    assert!(off.contains("one/second is not right yet"), "{off}");
    assert!(student.says(&["next"]).starts_with("Next: two/third"));
    student.solve("02_two/src/third.rs");
    let end = student.says(&["run"]);
    assert!(end.contains("You have finished the path skip."), "{end}");
    assert!(end.contains("2 exercises, 1 hour") && end.contains("cargo course path all"), "{end}");
    assert!(student.fails(&["next", "--file"]).contains("you have finished the path skip"));

    let all = student.says(&["path", "all"]);
    assert!(
        all.starts_with("You now follow the whole course\n") && all.contains("Next: one/second"),
        "{all}"
    );
    assert!(student.says(&["list"]).contains("2 of 3, about 5 min left"));
    student.says(&["path", "all"]);
}

#[test]
fn catching_up_on_a_path_installs_only_its_exercises() {
    let student = a_student("path_catch_up");
    student.says(&["path", "skip"]);
    let said = student.says(&["catch-up", "02", "--yes"]);
    assert!(said.contains("installed 1 solution;") && said.contains("Next: two/third"), "{said}");
    assert!(student.read("modules/01_one/src/second.rs").contains("todo!"));
}

#[test]
fn a_path_that_no_longer_exists_is_named() {
    let student = a_student("path_gone");
    student.write(".course/path", "gone\n");
    let (is_well, out, error) = student.run(&["list"]);
    assert!(is_well && out.contains("0 of 3"), "{out}");
    assert!(error.contains("there is no path `gone`; there are short, skip, all"), "{error}");
}

#[test]
fn a_running_watch_follows_a_path_at_once() {
    let student = a_student("path_watch");
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.current_dir(&student.root).env("CARGO_TARGET_DIR", student.root.join("target"));
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("one/first is not right yet");
    student.says(&["path", "skip"]);
    terminal.press("l");
    terminal.shows("0 of 2 on skip");
    terminal.press("n");
    terminal.shows("two/third  Three");
    terminal.press("q");
    assert!(terminal.ends_well());
}
