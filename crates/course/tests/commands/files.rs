//! A student's files, which are never lost.

use std::fs;
use std::process::Command;

use snapbox::{assert_data_eq, str};

use crate::student::Student;

#[test]
fn no_work_of_a_student_is_lost() {
    let student = Student::new("reset");
    let file = "modules/01_one/src/first.rs";
    let starter = student.read(file);
    assert!(student.says(&["reset", "first"]).contains("still has its starter"));
    student.write(file, "mine");
    // Without a terminal, the command does not ask.
    let told = student.says(&["reset", "first"]);
    assert!(told.contains("your file is in [ROOT]/.course/backups/0001"), "{told}");
    assert_eq!(
        (student.read(file), student.read(".course/backups/0001/01_one/src/first.rs")),
        (starter.clone(), "mine".into())
    );

    student.write(file, "mine, and the next exercise");
    assert!(student.says(&["reset"]).contains("restored the starter for one/first"));
    fs::remove_dir_all(student.root.join(".course/backups/0002")).unwrap();

    student.write(file, "mine again");
    let printed = student.says(&["catch-up", "02", "--yes"]);
    assert!(printed.contains("installed 2 solutions"), "{printed}");
    assert_eq!(student.read(".course/backups/0002/01_one/src/first.rs"), "mine again");
    assert_eq!(student.read(file), student.read("solutions/01_one/src/first.rs"));
    assert!(
        student.read("modules/02_two/src/third.rs").contains("todo!"),
        "the module itself still has the student's files"
    );
    let told = student.says(&["restore"]);
    assert!(told.starts_with("restored one/first, one/second from [ROOT]/.course/backups/0002"), "{told}");
    assert_eq!(student.read(file), "mine again");
    student.says(&["restore", "1"]);
    assert_eq!(student.read(file), "mine");
    assert!(student.fails(&["restore", "9"]).contains("there is no backup 0009; there are 0001, 0002, 0003"));
    student.says(&["restore", "3"]);
    student.says(&["test", "01"]);
    assert!(student.says(&["catch-up", "02"]).contains("everything before 02_two is already right"));

    // If no backup can be created, nothing is overwritten.
    student.write(file, "mine for ever");
    fs::remove_dir_all(student.root.join(".course")).unwrap();
    student.write(".course/backups", "a file");
    assert!(
        student
            .fails(&["reset", "first", "--yes"])
            .contains("can't create a backup in [ROOT]/.course/backups")
    );
    assert_eq!(student.read(file), "mine for ever");
}

#[test]
fn an_interruption_at_any_point_loses_no_file() {
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
        // The last process is not killed.
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
fn a_missing_file_stops_nothing_else() {
    let student = Student::new("missing");
    let file = "modules/01_one/src/first.rs";
    let starter = student.read(file);
    fs::remove_file(student.root.join(file)).unwrap();
    assert!(student.says(&["list"]).contains("  missing  one/first"));
    assert!(student.fails(&["run"]).contains("is missing; restore it with `cargo course reset one/first`"));
    let error = student.fails(&["verify", "--keep-going"]);
    assert!(
        error.contains("one/first can't be checked") && error.contains("two/third is not right"),
        "{error}"
    );
    assert!(student.says(&["reset", "one/first"]).contains("its file was missing"));
    assert_eq!(student.read(file), starter);
    fs::write(student.root.join(file), b"// \xff").unwrap();
    assert!(student.fails(&["run"]).contains("one/first can't be checked"));
    student.says(&["reset", "one/first", "--yes"]);
    assert_eq!(fs::read(student.root.join(".course/backups/0001/01_one/src/first.rs")).unwrap(), b"// \xff");
}

#[test]
fn a_full_disk_is_reported() {
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
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.ends_with("error: can't print: No space left on device (os error 28)\n"),
            "{arguments:?}: {error}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_folder_that_can_t_be_written_is_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let student = Student::new("readonly");
    // The superuser may write anywhere, so the test switches to another user, who must be allowed to run this copy.
    let course = student.root.join("course");
    student.write("modules/01_one/src/first.rs", "// my own work\n");
    fs::copy(env!("CARGO_BIN_EXE_course"), &course).unwrap();
    let root = &student.root;
    fs::set_permissions(root, fs::Permissions::from_mode(0o555)).unwrap();
    let is_superuser = fs::File::create(root.join("written")).is_ok();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&course);
        command.args(arguments).current_dir(root).env("NO_COLOR", "1");
        if is_superuser {
            command.uid(NOBODY);
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap().replace(root.to_str().unwrap(), "[ROOT]"))
    };
    let (listed, hint, reset) = (run(&["list"]), run(&["hint"]), run(&["reset", "one/first", "--yes"]));
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(listed.0 && listed.1.contains("one/first"), "{}", listed.1);
    assert_data_eq!(
        hint.1,
        str![[r#"
one/first, hint 1 of 2: It is a number.
For a clearer one: cargo course hint one/first
warning: your progress can't be saved: can't write [ROOT]/.course/progress.json: Permission denied (os error 13)

"#]]
    );
    assert_data_eq!(
        reset.1,
        str![[r#"
error: can't create a backup in [ROOT]/.course/backups: Permission denied (os error 13)

"#]]
    );
    assert!(hint.0 && !reset.0);
    assert_eq!(student.read("modules/01_one/src/first.rs"), "// my own work\n");
}
