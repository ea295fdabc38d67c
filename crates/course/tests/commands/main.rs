//! The commands as a student runs them, in a small course that each test creates.

mod exercises;
mod files;
mod machine;
mod path;
mod score;
mod student;
mod teach;
mod terminal;
mod timeline;
mod watch;

use student::Student;
use terminal::{Size, Terminal};

#[test]
fn every_command_has_help_with_an_example() {
    let student = Student::new("help");
    let names = |help: &str| -> Vec<String> {
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        let first = lines.filter_map(|line| line.split("  ").next());
        first
            .filter(|name| !name.is_empty() && !name.starts_with([' ', '-', '<']))
            .map(str::to_owned)
            .collect()
    };
    let top = names(&student.says(&["--help"]));
    assert!(top.len() > 15, "{top:?}");
    for name in &top {
        let help = student.says(&[name, "--help"]);
        assert!(help.contains(&format!("Example: cargo course {name}")), "{help}");
    }
    let teach = names(&student.says(&["teach", "--help"]));
    assert_eq!(teach, ["report", "grade", "mistakes", "archive", "help"]);
    // The grader is a program of its own, and not in this copy.
    for name in ["report", "mistakes", "archive"] {
        let help = student.says(&["teach", name, "--help"]);
        assert!(help.contains(&format!("Example: cargo course teach {name}")), "{help}");
    }
    for old in ["report", "mistakes", "archive"] {
        assert!(student.fails(&[old]).contains("unrecognized subcommand"), "{old}");
    }
}

#[test]
fn bad_input_is_named() {
    let student = Student::new("bad");
    let error = student.fails(&["run", "frist"]);
    assert!(error.contains("there is no exercise `frist`; did you mean one/first?"), "{error}");
    assert!(student.fails(&["test", "7"]).contains("there is no module `7`; there are 01_one, 02_two"));
    assert!(student.fails(&["list", "--path", "long"]).contains("there is no path `long`; there are short"));
    assert!(student.fails(&["demo", "01"]).contains("module 01_one has no program"));
    assert!(
        student
            .fails(&["overlap", "--compute", "0", "--comm", "1"])
            .contains("--compute 0: must be a time in ms above 0")
    );

    student.write("modules/01_one/src/first.rs", "pub fn first() -> u32 { \"1\" }");
    let error = student.fails(&["run"]);
    assert!(error.contains("mismatched types") && error.contains("one/first can't be checked"), "{error}");

    student.write(".course/progress.json", "{");
    let error = student.fails(&["run"]);
    assert!(error.contains("progress.json is damaged") && error.contains("progress.json.damaged"), "{error}");

    student.write("Cargo.toml", "[workspace");
    assert!(student.fails(&["run"]).contains("cargo can't build m01_one"));
    student.write("course.toml", "[[module]]\nfolder = 1\n");
    assert!(student.fails(&["list"]).contains("course.toml is no course"));
}

#[test]
fn lines_are_broken_between_words() {
    let student = Student::new("words");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_course"));
    command.args(["diff", "first"]).current_dir(&student.root);
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("check it first with `cargo course run\r\none/first`, or add --spoil");
}
