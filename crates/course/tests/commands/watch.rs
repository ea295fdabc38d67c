//! `cargo course watch`, in a terminal.

use std::fs;
use std::process::Command;

use crate::student::Student;
use crate::terminal::{Size, Terminal};

#[test]
fn watched_from_red_to_green() {
    let student = Student::new("watch");
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command
        .current_dir(&student.root)
        .env("CARGO_TARGET_DIR", student.root.join("target"))
        .env("TERM", "xterm");
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("checking first::it_is_1 …");
    terminal.shows("not yet implemented");
    terminal.shows("one/first is not right yet");
    terminal.press("h");
    terminal.shows("hint 1 of 2: It is a number.");
    // Some editors write a new file and rename it over the old one.
    let file = "modules/01_one/src/first.rs";
    student.write("modules/01_one/src/.first.rs.swp", "pub fn first() -> u32 { \"1\" }");
    fs::rename(student.root.join("modules/01_one/src/.first.rs.swp"), student.root.join(file)).unwrap();
    terminal.shows("mismatched types");
    student.solve("01_one/src/first.rs");
    terminal.shows("one/first is right");
    terminal.press("d");
    terminal.shows("Since the version before:");
    terminal.press("n");
    terminal.shows("one/second is not right yet");
    terminal.press("l");
    terminal.shows("1 of 3, about");
    // The first one closes the list.
    terminal.press("q");
    terminal.shows("one/second is not right yet");
    terminal.press("x");
    terminal.shows("x does nothing.");
    terminal.press("?");
    terminal.shows("The keys:");
    terminal.press("t");
    terminal.shows("There is no timeline for this run.");
    terminal.press("s");
    terminal.shows("To see it now: cargo course diff --spoil one/second");
    terminal.press("l");
    terminal.shows("1 of 3, about");
    terminal.press("\u{3}");
    assert!(terminal.ends_well(), "Ctrl-C quits, whatever page is open");
    assert!(student.says(&["list"]).contains("right    one/first"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.arg("watch").current_dir(&student.root).env("CARGO_TARGET_DIR", student.root.join("target"));
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("building");
    terminal.press("\u{3}");
    assert!(terminal.ends_well(), "Ctrl-C quits, whatever is under way");
}

#[test]
fn watch_continues_whatever_happens_to_the_files() {
    let student = Student::new("survives");
    let file = "modules/01_one/src/first.rs";
    student.write(file, "//! A contract of words so long that a terminal\n//! of forty columns has to break it.\npub fn first() -> u32 { super::second::second() }");
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.current_dir(&student.root).env("CARGO_TARGET_DIR", student.root.join("target"));
    let mut terminal = Terminal::of_size(command, Size::SMALL);
    terminal.shows("one/first is not right yet");
    student.write("modules/01_one/src/second.rs", "pub fn second() -> u32 { 1 }");
    terminal.shows("one/first is right");
    fs::remove_file(student.root.join(file)).unwrap();
    terminal.shows("modules/01_one/src/first.rs is missing");
    fs::write(student.root.join(file), b"// \xff").unwrap();
    terminal.shows("one/first can't be checked");
    student.write("Cargo.toml", "[workspace");
    terminal.press("r");
    terminal.shows("error: cargo can't build m01_one");
    student.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"modules/*\"]\n");
    student.solve("01_one/src/first.rs");
    terminal.shows("one/first is right");
    terminal.press("q");
    assert!(terminal.ends_well());
}
