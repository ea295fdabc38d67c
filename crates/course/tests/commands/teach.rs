//! `cargo course teach`.

use std::process::Command;

use snapbox::{assert_data_eq, str};

use crate::student::Student;
use crate::terminal::{Size, Terminal};

/// The version of the course.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn verify_is_for_programs_and_report_is_for_instructors() {
    let student = Student::new("verify");
    student.solve("01_one/src/first.rs");
    student.says(&["hint", "second"]);
    let json = student.fails(&["verify", "--json"]);
    assert!(!json.contains("two/third"), "it must stop after the first module that isn't right: {json}");
    let (_, json, _) = student.run(&["verify", "--json", "--keep-going"]);
    assert!(json.contains("two/third"), "{json}");
    student.write("class/ann.json", &json);
    let solved = Student::new("verify_solved");
    for file in ["01_one/src/first.rs", "01_one/src/second.rs", "02_two/src/third.rs"] {
        solved.solve(file);
    }
    student.write("class/bartholomew.json", &solved.says(&["verify", "--json"]));
    assert_data_eq!(
        student.says(&["teach", "report", "class"]),
        str![[r#"
student      right  wrong  to do  hints    01_one  02_two
ann              1      2      0      1       1/2     0/1
bartholomew      3      0      0      0       2/2     1/1

The students reported this themselves: each file is what its student's machine wrote, and can be edited.

"#]]
    );
    // Invalid files are skipped, and the other files still get their rows.
    let passed = r#"{
          "name": "first::it_is_1",
          "outcome": "passed",
          "message": ""
        }"#;
    assert!(json.contains(passed), "{json}");
    for (strange, words) in [
        ("[]", "invalid length 0"),
        ("{}", "missing field `course`"),
        ("", "EOF"),
        (
            &json.replace("\"1.0.0\"", "\"0.9.0\""),
            "it is from version 0.9.0 of the course, but this is 1.0.0",
        ),
        (&format!(r#"{{"course": "{VERSION}", "tier": "virtual", "exercises": []}}"#), "it has no exercise"),
        (&json.replace("\"wrong\"", "\"right\""), "one/second is right, although 1 check failed"),
        (&json.replace("\"right\"", "\"wrong\""), "one/first is wrong, although no check failed"),
        (&json.replace("\"passed\"", "\"ignored\""), "one/first is right, although no check passed"),
        (&json.replace("one/second", "one/first"), "one/first occurs twice"),
        (&json.replace("one/second", "one/fifth"), "this course has no exercise `one/fifth`"),
        (&json.replace("first::it_is_1", "first::it_is_7"), "one/first has no check `first::it_is_7`"),
        (
            &json.replace(passed, &format!("{passed}, {passed}")),
            "one/first lists 2 checks, 1 of them different, but the course has 1",
        ),
        (
            &json.replace("\"wrong\"", "\"fine\""),
            "unknown variant `fine`, expected one of `right`, `wrong`, `broken`, `ignored`",
        ),
    ] {
        student.write("class/zoe.json", strange);
        let error = student.fails(&["teach", "report", "class", "class/ann.json"]);
        let warning = "warning: class/zoe.json is not output from `cargo course verify --json`: ";
        assert!(error.contains(warning) && error.contains(words) && error.contains("skipping it"), "{error}");
        assert!(error.contains("\nann  ") && !error.contains("\nzoe"), "{error}");
    }
    // Grades list the same exercises, for several students, and come from the instructor's own machine.
    let exercises = json.split_once("\"exercises\": ").unwrap().1.trim_end().trim_end_matches('}');
    let exercises = exercises.replace("\"message\"", "\"seconds\": 0.5, \"message\"");
    student.write(
        "grades.json",
        &format!(
            r#"{{"course": "{VERSION} (0123abc)", "tier": "virtual", "sandbox": "bubblewrap", "students": [
                {{"name": "ann", "exercises": {exercises}, "unused": []}},
                {{"name": "bob", "exercises": {exercises}, "unused": []}}
            ]}}"#
        ),
    );
    assert_data_eq!(
        student.says(&["teach", "report", "grades.json"]),
        str![[r#"
student  right  wrong  to do  hints    01_one  02_two
ann          1      2      0      1       1/2     0/1
bob          1      2      0      1       1/2     0/1

"#]]
    );
    // What stops at a `todo!` is not wrong, and only the exercises of a path count.
    student.write("unbegun/ann.json", &json.replace("not yet implemented", "not yet implemented: Return 2"));
    let all = student.says(&["teach", "report", "unbegun"]);
    assert!(all.contains("\nann          1      0      2      1       1/2     0/1\n"), "{all}");
    let of_path = student.says(&["teach", "report", "--path", "short", "unbegun"]);
    assert!(
        of_path.starts_with(
            "student  right  wrong  to do  hints    01_one\nann          1      0      0      0       1/1\n"
        ),
        "{of_path}"
    );
    assert!(student.fails(&["teach", "report", "--path", "x", "unbegun"]).contains("there is no path `x`"));
    student.write("other/ann.json", &json);
    assert!(
        student
            .fails(&["teach", "report", "class", "other"])
            .contains("class/ann.json and other/ann.json: two students have the same name")
    );
    assert!(
        student
            .fails(&["teach", "report", "solutions"])
            .contains("found no output from `cargo course verify --json` in solutions")
    );
}

#[test]
fn the_json_says_what_was_checked() {
    let student = Student::new("json");
    student.write("modules/01_one/src/first.rs", "pub fn first() -> u32 { 7 }");
    student.write("modules/02_two/src/third.rs", "pub fn third() -> u32 { \"3\" }");
    let (_, json, _) = student.run(&["verify", "--json", "--keep-going"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["course"] == VERSION && json["tier"].is_string(), "{json}");
    assert_eq!(
        json["exercises"][0],
        serde_json::json!({
            "id": "one/first",
            "state": "wrong",
            "reason": null,
            "checks": [
                {"name": "first::it_is_1", "outcome": "failed", "message": "rank 1: got 7, expected 1"}
            ],
            "hints": 0,
            // What `sha256sum` prints.
            "sha256": "87201bba3bda642464d42720333cd20b815922b44150ab9522a17e43294716e6",
        })
    );
    let broken = &json["exercises"][2];
    assert_eq!((&broken["state"], &broken["checks"]), (&"broken".into(), &serde_json::json!([])));
    let reason = broken["reason"].as_str().unwrap();
    assert!(reason.contains("mismatched types") && !reason.contains('\u{1b}'), "{reason}");
}

#[test]
fn mistakes_are_shown_with_the_checks_that_find_them() {
    let student = Student::new("mistakes");
    let head = "mistake: it counts from 0\nfails: first::it_is_1\nsays: got 0\nsays: expected 1\n";
    let diff = "--- a/solutions/01_one/src/first.rs\n+++ b/solutions/01_one/src/first.rs\n@@ -2,2 +2,2 @@\n {\n-    1\n+    0\n";
    student.write("tests/mistakes/one/first/zero.patch", &format!("{head}{diff}"));
    assert_data_eq!(
        student.says(&["teach", "mistakes", "one/first"]),
        str![[r#"
one/first  One  1 mistake

zero  it counts from 0
 {
-    0
+    1
  ask: Which line breaks the rule “it is 1”, and what happens instead?
  first::it_is_1 reports:
    got 0
    expected 1
  tests/mistakes/one/first/zero.patch


"#]]
    );
    assert_data_eq!(
        student.fails(&["teach", "mistakes", "one/second"]),
        str![[r#"
error: one/second has no known mistakes

"#]]
    );
    let of_path = student.says(&["teach", "mistakes", "--path", "short"]);
    assert_eq!(of_path, student.says(&["teach", "mistakes", "first"]));
    assert!(student.fails(&["teach", "mistakes", "--path", "long"]).contains("there is no path `long`"));
    assert!(student.fails(&["teach", "mistakes"]).contains("one/second has no known mistakes"));
    for (id, file) in [("one/second", "01_one/src/second.rs"), ("two/third", "02_two/src/third.rs")] {
        let diff = diff.replace("01_one/src/first.rs", file);
        student.write(&format!("tests/mistakes/{id}/zero.patch"), &format!("{head}{diff}"));
    }
    let all = student.says(&["teach", "mistakes"]);
    let ids = ["one/first", "one/second", "two/third"];
    let at = ids.map(|id| all.find(&format!("{id}  ")).unwrap());
    assert!(at.is_sorted() && all.matches("ask:").count() == 3, "{all}");
}

#[test]
fn the_archive_has_no_solution() {
    let student = Student::new("archive");
    student.solve("01_one/src/first.rs");
    student.write(".gitignore", "target\n.course\n");
    for arguments in [&["init", "-q"][..], &["add", "."]] {
        assert!(Command::new("git").args(arguments).current_dir(&student.root).status().unwrap().success());
    }
    assert_data_eq!(
        student.says(&["teach", "archive", "class.tar.gz"]),
        str![[r#"
wrote 10 files to class.tar.gz

"#]]
    );
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar").args(arguments).current_dir(&student.root).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = tar(&["-tzf", "class.tar.gz"]);
    assert!(!listed.contains("solutions"), "{listed}");
    assert!(tar(&["-xzOf", "class.tar.gz", "class/modules/01_one/src/first.rs"]).contains("todo!"));
    assert!(student.read("modules/01_one/src/first.rs").contains("    1\n"));
    assert!(!listed.contains(".github"), "{listed}");
    // Without dependencies, there is nothing to include.
    student.says(&["teach", "archive", "--vendor", "--autograding", "class.tar.gz"]);
    tar(&["-xzf", "class.tar.gz"]);
    let handed_out = Student { root: student.root.join("class") };
    let readme = handed_out.read("README.md");
    for missing in ["solution", "cargo course diff", "catch-up", "cargo course reset"] {
        assert!(readme.contains("cargo course discuss") && !readme.contains(missing), "{missing}: {readme}");
    }
    let workflow = handed_out.read(".github/workflows/autograding.yml");
    let steps: Vec<&str> = workflow
        .lines()
        .filter_map(|line| line.strip_prefix("        run: jq ")?.split(' ').nth(4))
        .collect();
    assert_eq!(steps, ["one/first", "one/second", "two/third"], "{workflow}");
    handed_out.write("modules/01_one/src/main.rs", "fn main() { println!(\"mine\") }");
    assert_data_eq!(
        handed_out.fails(&["demo", "01"]),
        str![[r#"
error: this copy of the course has no solutions, so this would run your own program, which needs every exercise up to this module, and 2 exercises are still to do
what the solved program prints: modules/01_one/README.md
the first exercise to do: cargo course run one/first

"#]]
    );
    assert!(handed_out.says(&["hint", "first", "2"]).ends_with("\nThat was the last hint.\n"));
    for file in ["first", "second"] {
        let file = format!("01_one/src/{file}.rs");
        std::fs::copy(
            student.root.join("solutions").join(&file),
            handed_out.root.join("modules").join(&file),
        )
        .unwrap();
    }
    assert!(handed_out.says(&["demo", "01"]).contains("mine"));
    assert!(!handed_out.says(&["run", "first"]).contains("cargo course diff"));
    for arguments in
        [&["reset", "first", "--yes"][..], &["catch-up", "02", "--yes"], &["diff", "first", "--spoil"]]
    {
        let error = handed_out.fails(arguments);
        assert!(error.contains(": this copy of the course has no solutions"), "{error}");
    }
    let help = handed_out.says(&["--help"]);
    for missing in ["diff", "reset", "restore", "catch-up", "teach"] {
        assert!(!help.contains(&format!("\n  {missing} ")), "{help}");
    }
    let mut watch = Command::new(env!("CARGO_BIN_EXE_course"));
    watch.current_dir(&handed_out.root).env("CARGO_TARGET_DIR", handed_out.root.join("target"));
    let mut terminal = Terminal::of_size(watch, Size::SMALL);
    terminal.shows("d edits · a look back");
    terminal.press("s");
    terminal.shows("s does nothing.");
    terminal.shows("version before\r\n  a  look back");
    terminal.press("\u{3}");
    assert!(terminal.ends_well());
    for name in [".tar.gz", "class.zip/.tar.gz"] {
        assert!(student.fails(&["teach", "archive", name]).contains("the file name must end in .tar.gz"));
    }
    assert_data_eq!(
        student.fails(&["teach", "archive", "class.zip"]),
        str![[r#"
error: class.zip: the file name must end in .tar.gz

"#]]
    );
}
