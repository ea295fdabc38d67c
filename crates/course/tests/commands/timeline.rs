//! The timeline below a verdict, in `cargo course run` and in `cargo course watch`.

use std::process::Command;

use crate::student::Student;
use crate::terminal::{Size, Terminal};

/// A test program that fails until the answer is 1, and stores a timeline as checks do.
const TESTS: &str = r####"
pub mod first;
pub mod second;

#[cfg(test)]
fn main() {
    let name = "first::it_is_1";
    if std::env::args().any(|argument| argument == "--list") {
        return println!("{name}: test");
    }
    if let Ok(folder) = std::env::var("LAB_TIMELINES") {
        let chart = r##"{
            "title": "first::it_is_1", "note": "Times are made up.", "names": [], "rows": [{"uncertainty": 0.0, "spans": [
                {"kind": "Compute", "name": "forward", "start": 0.0, "end": 3.0},
                {"kind": "Communication", "name": "all-reduce", "start": 1.0, "end": 4.0}
            ]}]
        }"##;
        std::fs::write(format!("{folder}/{name}.json"), chart).unwrap();
    }
    match std::panic::catch_unwind(crate::first::first) {
        Ok(1) => println!(r##"{{"type": "test", "name": "{name}", "event": "ok"}}"##),
        _ => println!(r##"{{"type": "test", "name": "{name}", "event": "failed", "stdout": "Error: \"no\"\n"}}"##),
    }
    println!(r##"{{"type": "suite", "event": "ok"}}"##);
}
"####;

const CHART: &str = "\
GPU 0 compute [forward─────────────────────────────────────────]
GPU 0 comm                     [all-reduce─────────────────────────────────────]
              0                                                          4.00 ms
hidden: 2.00 ms of communication ran while the GPU computed; exposed: 1.00 ms
Times are made up.
";

#[test]
fn a_verdict_shows_what_the_streams_did() {
    let student = Student::new("timeline");
    student.write("modules/01_one/src/lib.rs", TESTS);
    let failure = student.fails(&["run", "one/first"]);
    let expected = format!("\nno\n\n{CHART}\none/first is not right yet");
    assert!(failure.contains(&expected), "{failure}");
    student.solve("01_one/src/first.rs");
    let success = student.says(&["run", "one/first"]);
    assert!(success.contains(&format!("1 check passed\n\n{CHART}\nYou can now: Return 1\n")), "{success}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command
        .args(["watch", "one/first"])
        .current_dir(&student.root)
        .env("CARGO_TARGET_DIR", student.root.join("target"))
        .env("TERM", "xterm");
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("hidden: 2.00 ms of communication");
    terminal.shows("t timeline");
    terminal.press("t");
    terminal.shows(".course/timelines/one_first.svg");
    terminal.shows("ui.perfetto.dev");
    // The first one closes the page.
    terminal.shows("q close");
    terminal.press("q");
    terminal.shows("hidden: 2.00 ms of communication");
    terminal.press("q");
    assert!(terminal.ends_well());
    assert!(student.read(".course/timelines/one_first.svg").contains("first::it_is_1"));
    assert!(student.read(".course/timelines/one_first.trace.json").contains("traceEvents"));
}
