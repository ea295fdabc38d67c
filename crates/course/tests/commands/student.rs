//! A student who runs commands in a small, unsolved course.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const COURSE: &str = r#"
[[module]]
folder = "01_one"
title = "The first"

[[module]]
folder = "02_two"
title = "The second"

[[exercise]]
id = "one/first"
title = "One"
objective = "Return 1"
minutes = 10
needs = []
min_ranks = 1
file = "01_one/src/first.rs"
test = "01_one/first.rs"
hints = ["It is a number.", "It is 1."]

[[exercise]]
id = "one/second"
title = "Two"
objective = "Return 2"
minutes = 5
needs = ["one/first"]
min_ranks = 2
file = "01_one/src/second.rs"
test = "01_one/second.rs"
hints = ["It is a number.", "It is 2."]

[[exercise]]
id = "two/third"
title = "Three"
objective = "Return 3"
minutes = 15
needs = ["one/second"]
min_ranks = 1
file = "02_two/src/third.rs"
test = "02_two/third.rs"
hints = ["It is a number.", "It is 3."]

[[path]]
name = "short"
title = "A short way"
steps = [{ minutes = 20, exercises = ["one/first"] }, { minutes = 5, instead = "pause" }]
"#;

/// A test program that prints what a module's tests would print with the flags that `cargo course` passes. It has one
/// check per exercise.
const TESTS: &str = r###"
#[cfg(test)]
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let filter = arguments.last().map(String::as_str).unwrap_or_default();
    let checks: &[(&str, fn() -> u32, u32)] = &[CHECKS];
    let checks = checks.iter().filter(|check| check.0.contains(filter));
    if arguments.iter().any(|argument| argument == "--list") {
        return checks.for_each(|check| println!("{}: test", check.0));
    }
    for (name, got, expected) in checks {
        match std::panic::catch_unwind(got) {
            Ok(got) if got == *expected => println!(r##"{{"type": "test", "name": "{name}", "event": "ok"}}"##),
            Ok(got) => println!(
                r##"{{"type": "test", "name": "{name}", "event": "failed", "stdout": "Error: \"rank 1: got {got}, expected {expected}\"\n"}}"##
            ),
            Err(_) => println!(
                r##"{{"type": "test", "name": "{name}", "event": "failed", "stdout": "Error: \"not yet implemented\"\n"}}"##
            ),
        }
    }
    println!(r##"{{"type": "suite", "event": "ok"}}"##);
}
"###;

pub(crate) fn solution(name: &str, value: u32) -> String {
    format!(
        "//! Returns {value}.\n\n/// The number.\npub fn {name}() -> u32 {{\n    // ANCHOR: {name}\n    // Return {value}.\n\n    {value}\n    // ANCHOR_END: {name}\n}}\n"
    )
}

/// An unsolved course in a separate folder.
pub(crate) struct Student {
    pub(crate) root: PathBuf,
}

impl Student {
    pub(crate) fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("course_commands_{name}_{}", std::process::id()));
        let student = Self { root };
        student.write("course.toml", COURSE);
        student.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"modules/*\"]\n");
        for (folder, exercises) in
            [("01_one", &[("first", 1), ("second", 2)][..]), ("02_two", &[("third", 3)])]
        {
            let package = format!(
                "[package]\nname = \"m{folder}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                 [lib]\nharness = false\ndoctest = false\n"
            );
            student.write(&format!("modules/{folder}/Cargo.toml"), &package);
            let modules: String = exercises.iter().map(|(name, _)| format!("pub mod {name};\n")).collect();
            let check = |(name, value): &(&str, u32)| {
                format!("(\"{name}::it_is_{value}\", crate::{name}::{name} as fn() -> u32, {value}),")
            };
            let checks: String = exercises.iter().map(check).collect();
            let tests = TESTS.replace("CHECKS", &checks);
            student.write(&format!("modules/{folder}/src/lib.rs"), &format!("{modules}\n{tests}"));
            for (name, value) in exercises {
                student.write(&format!("solutions/{folder}/src/{name}.rs"), &solution(name, *value));
                let todo = solution(name, *value)
                    .replace(&format!("\n    {value}\n"), &format!("    todo!(\"Return {value}\")\n"));
                student.write(&format!("modules/{folder}/src/{name}.rs"), &todo);
            }
        }
        student
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }

    /// Copies a solution over the student's file.
    pub(crate) fn solve(&self, file: &str) {
        fs::copy(self.root.join("solutions").join(file), self.root.join("modules").join(file)).unwrap();
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
        command
            .args(arguments)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .env("NO_COLOR", "1");
        command
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        let (is_well, out, err) = self.run(arguments);
        assert!(is_well, "{out}{err}");
        out
    }

    /// Runs a command that must fail, and returns its output.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let (is_well, out, err) = self.run(arguments);
        assert!(!is_well, "{out}{err}");
        out + &err
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let output = self.output(arguments);
        let text =
            |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(self.root.to_str().unwrap(), "[ROOT]");
        (output.status.success(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
