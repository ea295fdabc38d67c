//! Grades a class whose submissions are right, wrong, broken, or hostile.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, ensure};
use course::answers::solution;
use course::scores;
use course::syllabus::Course;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;

const DEVICES: &str = "modules/01_init/src/devices.rs";

fn main() -> ExitCode {
    let class = in_sandbox("grading::a_class", a_class_is_graded);
    let solutions = in_sandbox("grading::every_solution", every_solution_is_right);
    let refusal = Trial::test("without_a_sandbox_nothing_is_graded", || {
        without_a_sandbox_nothing_is_graded().map_err(|error| Failed::from(format!("{error:#}")))
    });
    libtest_mimic::run(&Arguments::from_args(), vec![refusal, class, solutions]).exit_code()
}

/// Only one test builds the clean course and keeps the cores busy at a time.
static GRADING: Mutex<()> = Mutex::new(());

/// Creates a test that is ignored where there is no bubblewrap.
fn in_sandbox(name: &str, test: fn() -> anyhow::Result<()>) -> Trial {
    Trial::ignorable_test(name, move || {
        let sandbox = Command::new("bwrap").args(["--unshare-all", "--ro-bind", "/", "/", "true"]).output();
        match sandbox {
            Err(error) => return Ok(Completion::ignored_with(format!("bubblewrap can't be run: {error}"))),
            Ok(output) if !output.status.success() => {
                let why = String::from_utf8_lossy(&output.stderr);
                return Ok(Completion::ignored_with(format!("bubblewrap doesn't work here: {}", why.trim())));
            }
            Ok(_) => {}
        }
        let _alone = GRADING.lock().unwrap_or_else(PoisonError::into_inner);
        test().map_err(|error| Failed::from(format!("{error:#}")))?;
        Ok(Completion::Completed)
    })
}

/// A class in a folder of its own, which is removed at the end.
struct Class {
    folder: PathBuf,
    /// What must become of each student's `init/devices`: the state, and words of the explanation.
    expected: BTreeMap<String, (&'static str, &'static str)>,
}

impl Class {
    fn new(name: &str) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}_{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, expected: BTreeMap::new() })
    }

    /// Adds a student with one file, and returns the student's folder.
    fn add(
        &mut self,
        name: &str,
        answer: &str,
        state: &'static str,
        words: &'static str,
    ) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join("submissions").join(name);
        write(&folder.join(DEVICES), answer)?;
        self.expected.insert(name.to_owned(), (state, words));
        Ok(folder)
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        // Files that stay are harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap_or_default()
}

/// The start of an answer that does something before it opens the GPUs.
const HEAD: &str =
    "use std::sync::Arc;\nuse anyhow::ensure;\nuse cudarc::driver::{CudaContext, CudaStream};\n";

/// The right answer.
const RIGHT: &str = "
    let available = usize::try_from(CudaContext::device_count()?)?;
    ensure!(count <= available, \"{count} GPUs were requested, but there are only {available}\");
    (0..count).map(|ordinal| Ok(CudaContext::new(ordinal)?.new_stream()?)).collect()
";

/// Returns an answer: items, and statements in front of the rest of the function.
fn answer(items: &str, statements: &str, rest: &str) -> String {
    format!(
        "{HEAD}{items}\npub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {{\n{statements}\n{rest}\n}}\n"
    )
}

/// Writes a record as the harness did before it had a nonce, to a file descriptor.
const FORGE: &str = "
unsafe extern \"C\" {
    fn write(descriptor: i32, bytes: *const u8, count: usize) -> isize;
    fn _exit(status: i32) -> !;
}
fn forge(descriptor: i32) {
    // SAFETY: the call reads five bytes of an array of five.
    unsafe { write(descriptor, [b'o', 0, 0, 0, 0].as_ptr(), 5) };
}
fn leave() -> ! {
    // SAFETY: `_exit` takes a number and ends the process.
    unsafe { _exit(0) }
}
";

/// Does nothing right.
const NOTHING: &str = "Ok(Vec::new())";

fn fill(class: &mut Class, port: u16, outside: &Path) -> anyhow::Result<()> {
    let right = |statements: &str| answer("", statements, RIGHT);
    let root = root();
    class.add("right", &right(""), "right", "")?;
    class.add("wrong", &right("").replace("new_stream()?", "default_stream()"), "wrong", "default stream")?;
    class.add("unbegun", &fs::read_to_string(root.join(DEVICES))?, "unbegun", "")?;
    let missing = class.add("missing", "", "missing", "")?;
    fs::remove_file(missing.join(DEVICES))?;
    write(&missing.join("modules/01_init/src/buffers.rs"), "")?;
    class.add("broken", &right("let x: u32 = \"1\";"), "broken", "mismatched types")?;

    // Forgeries of the verdict.
    let init = "#[used]\n#[unsafe(link_section = \".init_array\")]\nstatic START: extern \"C\" fn() = start;\nextern \"C\" fn start() { forge(0); leave() }";
    class.add("init_array", &answer(&format!("{FORGE}{init}"), "", NOTHING), "refused", ".init_array")?;
    let before = "forge(0); leave();";
    class.add("forge", &answer(FORGE, before, NOTHING), "wrong", "in the middle of the check")?;
    let everywhere = "for descriptor in 3..1024 { forge(descriptor); }\nstd::process::exit(0);";
    class.add(
        "forge_everywhere",
        &answer(FORGE, everywhere, NOTHING),
        "wrong",
        "the answer wrote to the connection",
    )?;
    class.add(
        "exit",
        &answer("", "std::process::exit(0);", NOTHING),
        "wrong",
        "in the middle of the check",
    )?;
    let interpose =
        "#[unsafe(no_mangle)]\npub extern \"C\" fn getrandom(_: *mut u8, _: usize, _: u32) -> isize { 0 }";
    class.add("interpose", &answer(interpose, "", RIGHT), "refused", "`getrandom`")?;
    let own_tests = class.add("own_tests", &answer("", "", NOTHING), "wrong", "")?;
    write(&own_tests.join("tests/01_init/devices.rs"), "pub fn checks() -> Vec<lab::Check> { vec![] }")?;
    let lib = class.add("own_lib", &answer("", "", NOTHING), "wrong", "")?;
    write(&lib.join("modules/01_init/src/lib.rs"), "fn main() {}")?;

    // Ways to the solution.
    let path =
        "#[path = \"../../../solutions/01_init/src/devices.rs\"]\nmod solved;\npub use solved::open;\n";
    class.add("path", path, "refused", "solutions/01_init/src/devices.rs")?;
    let absolute = root.join("solutions/01_init/src/devices.rs").display().to_string();
    class.add(
        "include",
        &format!("include!({absolute:?});\n"),
        "refused",
        "solutions/01_init/src/devices.rs",
    )?;
    class.add("secret", &right("let _ = include_str!(\"/etc/shadow\");"), "refused", "/etc/shadow")?;
    let solved = class.add("solved_crate", "pub use s01_init::devices::open;\n", "broken", "s01_init")?;
    write(
        &solved.join("modules/01_init/Cargo.toml"),
        "[dependencies]\ns01_init = { path = \"../../solutions/01_init\" }",
    )?;
    let script = class.add(
        "build_script",
        "include!(concat!(env!(\"OUT_DIR\"), \"/devices.rs\"));\n",
        "broken",
        "OUT_DIR",
    )?;
    write(&script.join("modules/01_init/build.rs"), "fn main() {}")?;
    let link = class.add("link", "", "refused", "a link")?;
    fs::remove_file(link.join(DEVICES))?;
    std::os::unix::fs::symlink(root.join("solutions/01_init/src/devices.rs"), link.join(DEVICES))?;

    // Answers that are right only where they find out that they are checked.
    let only_if = |condition: &str| right(&format!("if !({condition}) {{ return Ok(Vec::new()); }}"));
    let named = "std::env::vars().any(|(name, value)| format!(\"{name}={value}\").contains(\"devices::\"))";
    class.add("check_name", &only_if(named), "wrong", "")?;
    class.add("virtual_name", &only_if("CudaContext::new(0)?.name()?.contains(\"Virtual\")"), "wrong", "")?;
    let connect = format!("std::net::TcpStream::connect((\"127.0.0.1\", {port})).is_ok()");
    class.add("network", &only_if(&connect), "wrong", "")?;

    // Answers that take too much. What they leave behind must be gone.
    class.add(
        "memory",
        &right("let all = vec![1_u8; 6 << 30];\nstd::hint::black_box(&all);"),
        "wrong",
        "of memory",
    )?;
    let many = "let mut all = Vec::new();\nfor _ in 0..2000 { all.push(std::process::Command::new(\"sleep\").arg(\"31\").spawn()); }\nstd::thread::sleep(std::time::Duration::from_secs(5));";
    class.add("processes", &right(many), "wrong", "processes")?;
    class.add("hang", &right("loop { std::thread::yield_now(); }"), "wrong", "still running after")?;
    class.add(
        "noise",
        &right("loop { println!(\"{}\", \"x\".repeat(1000)); }"),
        "wrong",
        "still running after",
    )?;
    let disk = "use std::io::Write;\nlet mut file = std::fs::File::create(\"/tmp/big\")?;\nlet written = (0..300).filter(|_| file.write_all(&[1; 1 << 20]).is_ok()).count();\nensure!(written < 300, \"it could fill the disk\");";
    class.add("disk", &right(disk), "right", "")?;
    let orphan =
        "let _ = std::process::Command::new(\"setsid\").args([\"-f\", \"sleep\", \"98765\"]).status();";
    class.add("orphan", &right(orphan), "right", "")?;
    let outside = format!(
        "for file in [{outside:?}, \"../../outside\", \"src/outside.rs\"] {{ let _ = std::fs::write(file, \"x\"); }}"
    );
    class.add("outside", &right(&outside), "right", "")?;

    // Other forms of a submission.
    let helper = class.add("helper", &answer("mod helper;\n", "helper::help();", RIGHT), "right", "")?;
    write(&helper.join("modules/01_init/src/devices/helper.rs"), "pub(crate) fn help() {}\n")?;
    let packed = class.add("tar", &right(""), "right", "")?;
    done(
        Command::new("tar")
            .args(["-czf", "tar.tar.gz", "tar"])
            .current_dir(packed.parent().context("its class")?),
    )?;
    fs::remove_dir_all(&packed)?;
    Ok(())
}

fn done(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn a_class_is_graded() -> anyhow::Result<()> {
    let mut class = Class::new("class")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || listener.incoming().for_each(drop));
    let outside = class.folder.join("written-by-an-answer");
    fill(&mut class, port, &outside)?;
    // A clone of a repository.
    let repository = class.folder.join("git.git");
    write(&repository.join(DEVICES), &answer("", "", RIGHT))?;
    for arguments in [
        &["init", "--quiet"][..],
        &["add", "."],
        &["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "x"],
    ] {
        done(Command::new("git").args(arguments).current_dir(&repository))?;
    }
    class.expected.insert("git".to_owned(), ("right", ""));

    let grades = class.folder.join("grades");
    let table = done(
        Command::new(env!("CARGO_BIN_EXE_grade"))
            .arg(class.folder.join("submissions"))
            .arg(format!("file://{}", repository.display()))
            .args(["--only", "init/devices", "--timeout", "10", "--to"])
            .arg(&grades)
            .current_dir(root()),
    )?;
    ensure!(table.contains("init/devices refused: it runs code before or after `main`"), "{table}");
    let json: Value = serde_json::from_str(&fs::read_to_string(grades.join("grades.json"))?)?;
    let students = json["students"].as_array().context("the students")?;
    ensure!(students.len() == class.expected.len(), "{} students", students.len());
    let mut problems = Vec::new();
    for student in students {
        let name = student["name"].as_str().context("a name")?;
        let (state, words) = class.expected[name];
        let exercise = &student["exercises"][0];
        let text = exercise.to_string();
        if exercise["state"] != state || !text.contains(words) {
            problems.push(format!("{name} must be {state} with `{words}`, and is: {exercise:#}"));
        }
        ensure!(grades.join(format!("student-{name}.html")).is_file(), "{name} has no page");
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    let unused = |name: &str| {
        let student = students.iter().find(|student| student["name"] == name);
        student.map(|student| student["unused"].to_string()).unwrap_or_default()
    };
    ensure!(unused("own_tests").contains("tests/01_init/devices.rs"), "{}", unused("own_tests"));
    ensure!(unused("build_script").contains("modules/01_init/build.rs"), "{}", unused("build_script"));
    ensure!(unused("right") == "[]", "{}", unused("right"));
    ensure!(!outside.exists(), "an answer wrote to {}", outside.display());
    for process in ["sleep 98765", "sleep 31"] {
        let left = Command::new("pgrep").args(["-f", "-x", process]).output()?;
        ensure!(left.stdout.is_empty(), "`{process}` is still running");
    }
    let csv = fs::read_to_string(grades.join("grades.csv"))?;
    ensure!(
        csv.starts_with("student,right,of,hints,init/devices\n") && csv.contains("\nright,1,1,0,right\n"),
        "{csv}"
    );
    let page = fs::read_to_string(grades.join("index.html"))?;
    ensure!(page.contains("Common mistakes"), "{page}");
    Ok(())
}

/// The libraries and the compiler's options differ from those of a student, but no verdict may.
fn every_solution_is_right() -> anyhow::Result<()> {
    let class = Class::new("solutions")?;
    let root = root();
    let course = Course::read(&root)?;
    for exercise in &course.exercises {
        let file = class.folder.join("submissions/solved/modules").join(&exercise.file);
        write(&file, &solution(&root, exercise)?)?;
    }
    let grades = class.folder.join("grades");
    done(
        Command::new(env!("CARGO_BIN_EXE_grade"))
            .arg(class.folder.join("submissions"))
            .arg("--to")
            .arg(&grades)
            .current_dir(&root),
    )?;
    let json: Value = serde_json::from_str(&fs::read_to_string(grades.join("grades.json"))?)?;
    let exercises = json["students"][0]["exercises"].as_array().context("the exercises")?;
    ensure!(exercises.len() == course.exercises.len(), "{} exercises", exercises.len());
    let problems: Vec<String> = exercises
        .iter()
        .filter(|exercise| exercise["state"] != "right")
        .map(|exercise| format!("{exercise:#}"))
        .collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    // The recorded scores are those of the same model of time, so the grader measures the same.
    let capstone = course.exercise("scale/capstone")?;
    let designs = scores::read(&root, capstone)?.context("the recorded scores")?;
    let recorded =
        designs.into_iter().find(|design| design.name == "solution").context("the solution's score")?;
    let graded =
        exercises.iter().find(|exercise| exercise["id"] == "scale/capstone").context("the capstone")?;
    let score = serde_json::from_value::<scores::Score>(graded["score"].clone())?;
    ensure!(score == recorded.score, "{score:?}, but recorded is {:?}", recorded.score);
    Ok(())
}

fn without_a_sandbox_nothing_is_graded() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_grade"))
        .arg("nowhere")
        .env("PATH", env!("CARGO_TARGET_TMPDIR"))
        .current_dir(root())
        .output()?;
    let error = String::from_utf8(output.stderr)?;
    let says = [
        "error: answers are programs that strangers wrote",
        "apt install bubblewrap",
        "site/book/src/instructors.md",
        "--trust",
    ];
    ensure!(!output.status.success() && says.iter().all(|words| error.contains(words)), "{error}");
    Ok(())
}
