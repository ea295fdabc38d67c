//! The commands as a student gives them, in a small course that each test makes for itself.

mod student;
mod terminal;

use std::fs;
use std::path::Path;
use std::process::Command;

use snapbox::{assert_data_eq, str};
use student::{Student, solution};
use terminal::Terminal;

#[test]
fn every_command_has_help_with_an_example() {
    let student = Student::new("help");
    let help = student.says(&["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let names: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let help = student.says(&[name, "--help"]);
        assert!(help.contains(&format!("Example: cargo course {name}")), "{help}");
    }
}

#[test]
fn from_the_first_exercise_to_the_last() {
    let student = Student::new("all");
    assert_data_eq!(
        student.says(&["list"]),
        str![[r#"
01_one  The first
  to do    one/first   One
  to do    one/second  Two
02_two  The second
  to do    two/third   Three
0 of 3 exercises are right; the others take about 30 minutes.

"#]]
    );
    assert_data_eq!(
        student.fails(&["run"]),
        str![[r#"
first::it_is_1
not yet implemented
one/first is not right yet: 1 check failed
checking one/first …

"#]]
    );
    student.solve("01_one/src/first.rs");
    assert!(student.says(&["list"]).contains("  written  one/first"));
    assert_data_eq!(
        student.says(&["run", "first"]),
        str![[r#"
one/first is right: 1 check passed

Next: one/second (Two), 5 minutes
  Return 2
  read   modules/01_one/README.md
  edit   modules/01_one/src/second.rs
  check  cargo course run one/second
  stuck? cargo course hint one/second

"#]]
    );
    student.write(
        "modules/01_one/src/second.rs",
        "//! Wrong.\n\n/// The number.\npub fn second() -> u32 {\n    3\n}\n",
    );
    assert_data_eq!(
        student.fails(&["test", "1"]),
        str![[r#"
second::it_is_2
rank 1: got 3, expected 2

one/first is right: 1 check passed
one/second is not right yet: 1 check failed
checking 01_one …

"#]]
    );
    assert!(student.says(&["list"]).contains("  wrong    one/second"));
    student.solve("01_one/src/second.rs");
    student.says(&["run"]);
    assert!(
        student.says(&["list"]).contains("2 of 3 exercises are right; the others take about 15 minutes.")
    );
    student.solve("02_two/src/third.rs");
    student.says(&["verify"]);
    assert!(student.says(&["list"]).contains("3 of 3 exercises are right; the others take about 0 minutes."));
    assert!(student.says(&["next"]).contains("Every exercise is right"));
    assert!(student.says(&["diff", "two/third"]).contains("your file is the solution"));
    // A check counts for the answer that it saw.
    student.write("modules/02_two/src/third.rs", &solution("third", 4));
    assert!(student.says(&["list"]).contains("  written  two/third"));
}

#[test]
fn verify_tells_programs_and_report_tells_instructors() {
    let student = Student::new("verify");
    student.solve("01_one/src/first.rs");
    student.says(&["hint", "second"]);
    let json = student.fails(&["verify", "--json"]);
    assert!(!json.contains("two/third"), "it stops behind the first module that isn't right: {json}");
    let (_, json, _) = student.told(&["verify", "--json", "--keep-going"]);
    assert!(json.contains("two/third"), "{json}");
    student.write("class/ann.json", &json);
    student.write("class/bartholomew.json", &json.replace("\"wrong\"", "\"right\""));
    assert_data_eq!(
        student.says(&["report", "class"]),
        str![[r#"
student      right  wrong  hints    01_one  02_two
ann              1      2      1       1/2     0/1
bartholomew      3      0      1       2/2     1/1

"#]]
    );
    // What is strange is left out; the others have their rows.
    for (strange, words) in [
        ("{}", "invalid type: map"),
        ("", "EOF"),
        (&json.replace("one/second", "one/first"), "one/first is there twice"),
        (&json.replace("one/second", "one/fifth"), "this course has no exercise `one/fifth`"),
        (&json.replace("\"wrong\"", "\"fine\""), "`fine` is no state"),
    ] {
        student.write("class/zoe.json", strange);
        let told = student.fails(&["report", "class", "class/ann.json"]);
        let warning = "warning: class/zoe.json is not what `cargo course verify --json` prints: ";
        assert!(told.contains(warning) && told.contains(words) && told.contains("it is left out"), "{told}");
        assert!(told.contains("\nann  ") && !told.contains("\nzoe"), "{told}");
    }
    student.write("other/ann.json", &json);
    assert!(
        student
            .fails(&["report", "class", "other"])
            .contains("class/ann.json and other/ann.json: two students of one name")
    );
    assert!(
        student
            .fails(&["report", "solutions"])
            .contains("no output of `cargo course verify --json` is in solutions")
    );
}

#[test]
fn hints_come_one_by_one() {
    let student = Student::new("hint");
    assert_data_eq!(
        student.says(&["hint"]),
        str![[r#"
one/first, hint 1 of 2: It is a number.
A clearer one: cargo course hint one/first

"#]]
    );
    assert_data_eq!(
        student.says(&["hint"]),
        str![[r#"
one/first, hint 1 of 2: It is a number.
one/first, hint 2 of 2: It is 1.
That was the last. The solution: cargo course diff --spoil one/first

"#]]
    );
    assert!(student.says(&["hint", "two/third", "2"]).contains("hint 2 of 2: It is 3."));
}

#[test]
fn nothing_of_a_student_s_is_lost() {
    let student = Student::new("reset");
    let file = "modules/01_one/src/first.rs";
    let starter = student.read(file);
    assert!(student.says(&["reset", "first"]).contains("is as you got it"));
    student.write(file, "mine");
    assert!(student.fails(&["reset", "first"]).contains("There is no terminal to ask: say --yes"));
    assert_eq!(student.read(file), "mine");
    assert!(student.says(&["reset", "first", "--yes"]).contains("[ROOT]/.course/backups/0001"));
    assert_eq!(
        (student.read(file), student.read(".course/backups/0001/01_one/src/first.rs")),
        (starter.clone(), "mine".into())
    );

    student.write(file, "mine again");
    let told = student.says(&["catch-up", "02", "--yes"]);
    assert!(told.contains("2 solutions are in place"), "{told}");
    assert_eq!(student.read(".course/backups/0002/01_one/src/first.rs"), "mine again");
    assert_eq!(student.read(file), student.read("solutions/01_one/src/first.rs"));
    assert!(
        student.read("modules/02_two/src/third.rs").contains("todo!"),
        "the module itself is the student's"
    );
    student.says(&["test", "01"]);
    assert!(student.says(&["catch-up", "02"]).contains("everything before 02_two is right"));

    // Where nothing can be kept, nothing is overwritten.
    student.write(file, "mine for ever");
    fs::remove_dir_all(student.root.join(".course")).unwrap();
    student.write(".course/backups", "a file");
    assert!(
        student.fails(&["reset", "first", "--yes"]).contains("can't make a backup in [ROOT]/.course/backups")
    );
    assert_eq!(student.read(file), "mine for ever");
}

#[test]
fn interrupted_at_any_point_it_has_kept_what_it_overwrote() {
    let student = Student::new("interrupted");
    let files = ["01_one/src/first.rs", "01_one/src/second.rs"];
    let mut overwritten = 0;
    for round in 0..60_u64 {
        let mine = |file: &str| format!("mine, {file}, {round}");
        files.iter().for_each(|file| student.write(&format!("modules/{file}"), &mine(file)));
        let mut child = Command::new(env!("CARGO_BIN_EXE_course"))
            .args(["catch-up", "02", "--yes"])
            .current_dir(&student.root)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The last one is left alone.
        if round < 59 {
            std::thread::sleep(std::time::Duration::from_micros(200 * round));
            child.kill().unwrap();
        }
        child.wait().unwrap();
        for file in files {
            let now = student.read(&format!("modules/{file}"));
            if now == mine(file) {
                continue;
            }
            overwritten += 1;
            assert_eq!(now, student.read(&format!("solutions/{file}")), "round {round}");
            let backups = fs::read_dir(student.root.join(".course/backups")).unwrap();
            let kept =
                backups.filter_map(|folder| fs::read_to_string(folder.unwrap().path().join(file)).ok());
            assert!(kept.into_iter().any(|text| text == mine(file)), "round {round}: {file} is lost");
        }
    }
    assert!(overwritten > 0);
}

#[test]
fn the_solution_shows_once_the_answer_is_right() {
    let student = Student::new("diff");
    assert!(student.fails(&["diff", "first"]).contains("say --spoil to see the solution all the same"));
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
    let told = student.fails(&["diff", "first", "--spoil"]);
    assert!(
        told.contains("one/first has no solution here: can't read [ROOT]/solutions/01_one/src/first.rs"),
        "{told}"
    );
}

#[test]
fn bad_input_is_named() {
    let student = Student::new("bad");
    let told = student.fails(&["run", "frist"]);
    assert!(told.contains("there is no exercise `frist`; did you mean one/first?"), "{told}");
    assert!(student.fails(&["test", "7"]).contains("there is no module `7`; there are 01_one, 02_two"));
    assert!(student.fails(&["list", "--path", "long"]).contains("there is no path `long`; there are short"));
    assert!(student.fails(&["demo", "01"]).contains("module 01_one has no program"));
    assert!(
        student
            .fails(&["overlap", "--compute", "0", "--comm", "1"])
            .contains("--compute 0: a time in ms, above 0")
    );

    student.write("modules/01_one/src/first.rs", "pub fn first() -> u32 { \"1\" }");
    let told = student.fails(&["run"]);
    assert!(told.contains("mismatched types") && told.contains("one/first can't be checked"), "{told}");

    student.write(".course/progress.json", "{");
    let told = student.fails(&["run"]);
    assert!(told.contains("progress.json is damaged") && told.contains("progress.json.damaged"), "{told}");

    student.write("Cargo.toml", "[workspace");
    assert!(student.fails(&["run"]).contains("cargo can't build m01_one"));
    student.write("course.toml", "[[module]]\nfolder = 1\n");
    assert!(student.fails(&["list"]).contains("course.toml is no course"));
}

#[test]
fn watched_from_red_to_green() {
    let student = Student::new("watch");
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command
        .current_dir(&student.root)
        .env("CARGO_TARGET_DIR", student.root.join("target"))
        .env("TERM", "xterm");
    let mut terminal = Terminal::run(command);
    terminal.shows("not yet implemented");
    terminal.shows("one/first is not right yet");
    terminal.press("h");
    terminal.shows("hint 1 of 2: It is a number.");
    // Some editors write a new file and put it in the place of the old one.
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
    terminal.shows("1 of 3 exercises are right");
    terminal.press("q");
    assert!(terminal.ends_well());
    assert!(student.says(&["list"]).contains("  right    one/first"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.arg("watch").current_dir(&student.root).env("CARGO_TARGET_DIR", student.root.join("target"));
    let mut terminal = Terminal::run(command);
    terminal.shows("checking");
    terminal.press("\u{3}");
    assert!(terminal.ends_well(), "Ctrl-C quits, whatever is under way");
}

#[test]
fn watch_goes_on_whatever_becomes_of_the_files() {
    let student = Student::new("survives");
    let file = "modules/01_one/src/first.rs";
    student.write(file, "//! A contract of words so long that a terminal\n//! of forty columns has to break it.\npub fn first() -> u32 { super::second::second() }");
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.current_dir(&student.root).env("CARGO_TARGET_DIR", student.root.join("target"));
    let mut terminal = Terminal::run(command);
    terminal.shows("one/first is not right yet");
    student.write("modules/01_one/src/second.rs", "pub fn second() -> u32 { 1 }");
    terminal.shows("one/first is right");
    fs::remove_file(student.root.join(file)).unwrap();
    terminal.shows("first.rs is missing; it comes back with `cargo course reset one/first`");
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

#[test]
fn a_full_disk_is_told() {
    let student = Student::new("full");
    for arguments in
        [&["list"][..], &["run"], &["diff", "first", "--spoil"], &["reset", "first"], &["verify", "--json"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_course"))
            .args(arguments)
            .current_dir(&student.root)
            .env("CARGO_TARGET_DIR", student.root.join("target"))
            .stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.ends_with("error: can't print: No space left on device (os error 28)\n"),
            "{arguments:?}: {told}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_missing_file_stops_nothing_else() {
    let student = Student::new("missing");
    let file = "modules/01_one/src/first.rs";
    let starter = student.read(file);
    fs::remove_file(student.root.join(file)).unwrap();
    assert!(student.says(&["list"]).contains("  missing  one/first"));
    assert!(
        student.fails(&["run"]).contains("is missing; it comes back with `cargo course reset one/first`")
    );
    let told = student.fails(&["verify", "--keep-going"]);
    assert!(told.contains("one/first can't be checked") && told.contains("two/third is not right"), "{told}");
    assert!(student.says(&["reset", "one/first"]).contains("its file was missing"));
    assert_eq!(student.read(file), starter);
    fs::write(student.root.join(file), b"// \xff").unwrap();
    assert!(student.fails(&["run"]).contains("one/first can't be checked"));
    student.says(&["reset", "one/first", "--yes"]);
    assert_eq!(fs::read(student.root.join(".course/backups/0001/01_one/src/first.rs")).unwrap(), b"// \xff");
}

#[test]
fn the_doctor_looks_at_the_machine() {
    let student = Student::new("doctor");
    let run = |variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_course"))
            .args(["doctor", "--json"])
            .current_dir(&student.root)
            .env("LAB_TIER", "virtual")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.success(), findings)
    };
    let (is_well, findings) = run(&[("NCCL_TIMEOUT", "30"), ("VIRTUAL_GPU_COUNT", "2")]);
    let of = |what: &str| findings.iter().find(|finding| finding["what"] == what).unwrap();
    assert!(is_well);
    assert_eq!(of("smoke test")["status"], "good");
    assert_eq!(of("NCCL_TIMEOUT=30")["help"], "unset NCCL_TIMEOUT");
    assert!(of("GPU 1")["says"].as_str().unwrap().contains("80.0 GiB free"));

    let (is_well, findings) = run(&[("LAB_TIER", "vritual")]);
    assert!(!is_well);
    let bad = findings.iter().find(|finding| finding["status"] == "bad").unwrap();
    assert!(bad["says"].as_str().unwrap().contains("LAB_TIER=vritual"), "{bad}");
}

#[test]
fn any_program_runs_on_the_virtual_gpu() {
    let student = Student::new("exec");
    let script = "for name in libcuda.so libcuda.so.1 libnccl.so libnccl.so.2; do \
                  test -e ${LD_LIBRARY_PATH%%:*}/$name || exit 7; done; echo $0 $1; exit 3";
    let output = student.output(&["exec", "--", "sh", "-c", script, "a program", "--with-a-flag"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a program --with-a-flag\n");
    assert!(student.fails(&["exec", "--", "/no/program"]).contains("can't run /no/program"));
}

#[test]
fn two_tables_are_compared_row_by_row() {
    let student = Student::new("compare");
    let head = "implementation,model_size,d_model,num_layers,world_size,calls_per_step,avg_step_time_ms,speedup_vs_naive\n";
    student.write("a.csv", &format!("{head}naive,small,64,2,4,8,2.0,1.0\nflat,small,64,2,4,1,1.5,1.33\n"));
    student.write("b.csv", &format!("{head}naive,small,64,2,4,8,3.0,1.0\n"));
    assert_data_eq!(
        student.says(&["compare", "a.csv", "b.csv"]),
        str![[r#"
implementation model_size world_size: avg_step_time_ms of a.csv, of b.csv, and their ratio
  naive small 4        2.000        3.000    1.500
1 rows stand in one of the tables only

"#]]
    );
    student.write("c.csv", "a,b\n1,2\n");
    assert!(
        student
            .fails(&["compare", "a.csv", "c.csv"])
            .contains("c.csv is neither a table of `cargo course bench` nor")
    );
    student.write("d.csv", &format!("{head}naive,small,64,2,4,8,fast,1.0\n"));
    assert!(student.fails(&["compare", "d.csv", "a.csv"]).contains("d.csv, line 2: avg_step_time_ms is `"));
    student.write("f.csv", head);
    assert!(student.fails(&["compare", "a.csv", "f.csv"]).contains("f.csv has no row"));
    assert!(student.fails(&["compare", "e.csv", "a.csv"]).contains("can't read e.csv"));
}

#[test]
fn any_folder_of_a_course_will_do() {
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
A short way: 0 h 25 min
 20 min  to do    one/first  One
  5 min           pause

"#]]
    );
}

#[test]
fn mistakes_are_told_with_what_finds_them() {
    let student = Student::new("mistakes");
    let head = "mistake: it counts from 0\nfails: first::it_is_1\nsays: got 0\nsays: expected 1\n";
    let diff = "--- a/solutions/01_one/src/first.rs\n+++ b/solutions/01_one/src/first.rs\n@@ -2,2 +2,2 @@\n {\n-    1\n+    0\n";
    student.write("tests/mistakes/one/first/zero.patch", &format!("{head}{diff}"));
    assert_data_eq!(
        student.says(&["mistakes", "one/first"]),
        str![[r#"
zero  it counts from 0
 {
-    1
+    0
  first::it_is_1 says:
    got 0
    expected 1
  tests/mistakes/one/first/zero.patch


"#]]
    );
    assert_data_eq!(
        student.fails(&["mistakes", "one/second"]),
        str![[r#"
error: one/second has no mistake

"#]]
    );
}

#[test]
fn the_starter_archive_has_no_solution() {
    let student = Student::new("archive");
    student.solve("01_one/src/first.rs");
    student.write(".gitignore", "target\n.course\n");
    for arguments in [&["init", "-q"][..], &["add", "."]] {
        assert!(Command::new("git").args(arguments).current_dir(&student.root).status().unwrap().success());
    }
    assert_data_eq!(
        student.says(&["starter-archive", "class.tar.gz"]),
        str![[r#"
12 files are in class.tar.gz

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
    tar(&["-xzf", "class.tar.gz"]);
    let handed_out = Student { root: student.root.join("class") };
    handed_out.write("modules/01_one/src/main.rs", "fn main() { println!(\"mine\") }");
    assert!(handed_out.says(&["demo", "01"]).contains("mine"));
    for arguments in
        [&["reset", "first", "--yes"][..], &["catch-up", "02", "--yes"], &["diff", "first", "--spoil"]]
    {
        let told = handed_out.fails(arguments);
        assert!(told.contains("one/first: this copy of the course has no solutions"), "{told}");
    }
    for name in [".tar.gz", "class.zip/.tar.gz"] {
        assert!(student.fails(&["starter-archive", name]).contains("call it something.tar.gz"));
    }
    assert_data_eq!(
        student.fails(&["starter-archive", "class.zip"]),
        str![[r#"
error: class.zip: call it something.tar.gz

"#]]
    );
}

#[test]
fn a_folder_that_can_t_be_written_is_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let student = Student::new("readonly");
    // The superuser may write everywhere, so that it must become another one, who may also run this copy.
    let course = student.root.join("course");
    student.write("modules/01_one/src/first.rs", "// my own work\n");
    fs::copy(env!("CARGO_BIN_EXE_course"), &course).unwrap();
    let root = &student.root;
    fs::set_permissions(root, fs::Permissions::from_mode(0o555)).unwrap();
    let is_superuser = fs::File::create(root.join("written")).is_ok();
    let told = |arguments: &[&str]| {
        let mut command = Command::new(&course);
        command.args(arguments).current_dir(root).env("NO_COLOR", "1");
        if is_superuser {
            command.uid(NOBODY);
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap().replace(root.to_str().unwrap(), "[ROOT]"))
    };
    let (listed, hint, reset) = (told(&["list"]), told(&["hint"]), told(&["reset", "one/first", "--yes"]));
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(listed.0 && listed.1.contains("one/first"), "{}", listed.1);
    assert_data_eq!(
        hint.1,
        str![[r#"
one/first, hint 1 of 2: It is a number.
A clearer one: cargo course hint one/first
warning: your progress can't be kept: can't write [ROOT]/.course/progress.json: Permission denied (os error 13)

"#]]
    );
    assert_data_eq!(
        reset.1,
        str![[r#"
error: can't make a backup in [ROOT]/.course/backups: Permission denied (os error 13)

"#]]
    );
    assert!(hint.0 && !reset.0);
    assert_eq!(student.read("modules/01_one/src/first.rs"), "// my own work\n");
}
