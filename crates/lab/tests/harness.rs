//! Tests the check harness from the outside. This program runs itself as a test target whose checks have every possible
//! result.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lab::check::Timelines;
use lab::timeline::Kind;
use lab::{Check, Kernels, Timeline, processes};
use libtest_mimic::{Arguments, Failed, Trial};

type Body = fn() -> anyhow::Result<()>;

/// Makes this program act as the test target.
const BE_THE_SAMPLE: &str = "LAB_HARNESS_SAMPLE";

fn main() -> ExitCode {
    if std::env::var_os(BE_THE_SAMPLE).is_some() {
        return lab::check::run(sample());
    }
    let trials: [(&str, Body); 16] = [
        ("a_pass_is_a_pass_and_quiet", a_pass_is_a_pass_and_quiet),
        ("a_failure_says_why_before_what_was_printed", a_failure_says_why_before_what_was_printed),
        ("todo_says_what_to_do_and_where", todo_says_what_to_do_and_where),
        ("leaving_early_is_no_pass", leaving_early_is_no_pass),
        ("an_answer_can_not_report_its_own_result", an_answer_can_not_report_its_own_result),
        ("an_answer_does_not_learn_its_check", an_answer_does_not_learn_its_check),
        ("a_check_that_ends_the_program_fails_alone", a_check_that_ends_the_program_fails_alone),
        ("a_panic_during_a_panic_still_tells_the_first", a_panic_during_a_panic_still_tells_the_first),
        ("a_hang_ends_with_all_that_it_started", a_hang_ends_with_all_that_it_started),
        ("nocapture_lets_output_through", nocapture_lets_output_through),
        ("list_and_filter_are_those_of_libtest", list_and_filter_are_those_of_libtest),
        ("bad_settings_are_named", bad_settings_are_named),
        ("no_child_outlives_its_parent", no_child_outlives_its_parent),
        (
            "a_check_starts_processes_and_hears_how_they_went",
            a_check_starts_processes_and_hears_how_they_went,
        ),
        ("timelines_are_kept_where_a_folder_is_named", timelines_are_kept_where_a_folder_is_named),
        ("a_missing_program_is_a_reason_to_ignore", a_missing_program_is_a_reason_to_ignore),
    ];
    let trials = trials
        .into_iter()
        .map(|(name, run)| {
            Trial::test(name, move || run().map_err(|error| Failed::from(format!("{error:#}"))))
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A record "passed", as the harness would write it if it had no nonce.
const FORGED: [u8; 5] = [b'o', 0, 0, 0, 0];

fn sample() -> Vec<Check> {
    vec![
        Check::new("fate::passes", || {
            println!("said by the one that passes");
            Ok(())
        }),
        Check::new("fate::fails", || {
            println!("first line on stdout");
            eprintln!("second line on stderr");
            Err(anyhow::anyhow!("the disk is full")).context("rank 3 couldn't save")
        }),
        Check::new("fate::todo", || todo!("open a context for each GPU")),
        Check::new("fate::leaves", || std::process::exit(0)),
        Check::new("fate::writes_to_standard_input", || {
            // SAFETY: the write reads five bytes, and standard input is open.
            unsafe { libc::write(0, FORGED.as_ptr().cast(), 5) };
            std::process::exit(0)
        }),
        Check::new("fate::writes_everywhere", || {
            for descriptor in 3..1024 {
                // SAFETY: the write reads five bytes. Where no descriptor is open, it fails.
                unsafe { libc::write(descriptor, FORGED.as_ptr().cast(), 5) };
            }
            std::process::exit(0)
        }),
        Check::new("fate::kills_its_parent", || {
            // SAFETY: `kill` takes two numbers.
            unsafe { libc::kill(std::os::unix::process::parent_id().cast_signed(), libc::SIGKILL) };
            std::thread::sleep(Duration::from_secs(1000));
            Ok(())
        }),
        Check::new("fate::outlives_its_parent", || {
            // A fork differs in nothing from a new process: it has its own group, blocks no signal, and can be debugged.
            std::thread::sleep(Duration::from_millis(200));
            // SAFETY: the calls take numbers or nothing.
            let (group, dumpable) = unsafe { (libc::getpgid(0), libc::prctl(libc::PR_GET_DUMPABLE)) };
            ensure!(group.cast_unsigned() == std::process::id() && dumpable == 1, "{group}, {dumpable}");
            let status = std::fs::read_to_string("/proc/self/status")?;
            ensure!(status.contains("SigBlk:\t0000000000000000"), "{status}");
            let ended = Command::new("true").status()?;
            ensure!(ended.success(), "{ended}");
            Ok(())
        }),
        Check::new("fate::looks_for_its_name", || {
            for file in ["environ", "cmdline"] {
                let bytes = std::fs::read(format!("/proc/self/{file}"))?;
                let text = String::from_utf8_lossy(&bytes);
                ensure!(!text.contains("looks_for"), "{file} has the check's name: {text}");
            }
            let mut left = String::new();
            std::io::stdin().read_to_string(&mut left)?;
            ensure!(left.is_empty(), "standard input has {left:?}");
            Ok(())
        }),
        Check::new("fate::aborts", || {
            struct Loud;
            impl Drop for Loud {
                fn drop(&mut self) {
                    panic!("the second panic");
                }
            }
            let _loud = Loud;
            panic!("the first panic");
        }),
        Check::new("fate::hangs", || {
            let mut sleeper = Command::new("sleep").arg("1000").spawn()?;
            println!("sleeper {}", sleeper.id());
            sleeper.wait()?;
            Ok(())
        }),
        Check::new("fate::starts", || {
            let fates =
                ["fine", "fails", "panics", "leaves", "dies"].map(|fate| vec![("FATE", fate.to_owned())]);
            for said in processes::run(&["RANK"], &fates)? {
                println!("{said:?}");
            }
            Ok(())
        })
        .process(|| match std::env::var("FATE")?.as_str() {
            "fine" => Ok(format!("it is\nfine, and RANK is {:?}", std::env::var_os("RANK"))),
            "fails" => bail!("the disk is full"),
            "panics" => todo!("read a variable"),
            "dies" => processes::kill_this(),
            _ => std::process::exit(3),
        }),
        Check::new("fate::measures", || {
            let stream = lab::streams(1)?.remove(0);
            let kernels = Kernels::load(stream.context())?;
            let mut timeline = Timeline::start(&stream)?;
            timeline.record(&stream, Kind::Compute, "forward", || kernels.spin(&stream, 1_000_000))?;
            ensure!(timeline.spans()?.is_empty(), "this check fails");
            Ok(())
        }),
        Check::new("fate::delays", || {
            let first = lab::streams(1)?.remove(0);
            let second = first.context().new_stream()?;
            let kernels = Kernels::load(first.context())?;
            for stream in [&first, &second] {
                kernels.spin(stream, 1_000_000)?;
            }
            second.synchronize()?;
            Ok(first.synchronize()?)
        }),
        Check::new("fate::lacks", || Ok(())).needs_program("no-such-launcher"),
    ]
}

fn command(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).env(BE_THE_SAMPLE, "1").env_remove("RUST_BACKTRACE").env_remove("LAB_TIMEOUT");
    Ok(command)
}

fn run(arguments: &[&str]) -> anyhow::Result<(Output, String)> {
    output_of(command(arguments)?)
}

fn output_of(mut command: Command) -> anyhow::Result<(Output, String)> {
    let output = command.output()?;
    let text =
        format!("{}{}", String::from_utf8(output.stdout.clone())?, String::from_utf8(output.stderr.clone())?);
    Ok((output, text))
}

/// Checks that `text` contains all of `parts`, in this order.
fn in_order(text: &str, parts: &[&str]) -> anyhow::Result<()> {
    let mut rest = text;
    for part in parts {
        let Some(at) = rest.find(part) else {
            bail!("`{part}` is missing, or not in its place, in:\n{text}")
        };
        rest = &rest[at + part.len()..];
    }
    Ok(())
}

fn a_pass_is_a_pass_and_quiet() -> anyhow::Result<()> {
    let (output, text) = run(&["passes"])?;
    ensure!(output.status.success(), "{text}");
    in_order(
        &text,
        &["tier: ", "running 1 test", "test fate::passes ... ok", "1 passed; 0 failed", "14 filtered out"],
    )?;
    ensure!(!text.contains("said by"), "{text}");
    let (_, text) = run(&["passes", "--show-output"])?;
    in_order(&text, &["---- fate::passes: output ----", "said by the one that passes"])
}

fn a_failure_says_why_before_what_was_printed() -> anyhow::Result<()> {
    let (output, text) = run(&["fails"])?;
    ensure!(output.status.code() == Some(101), "{text}");
    in_order(
        &text,
        &[
            "---- fate::fails ----\nrank 3 couldn't save\n  because: the disk is full\n",
            "printed by the check:\nfirst line on stdout\nsecond line on stderr\n",
            "0 passed; 1 failed",
        ],
    )
}

fn todo_says_what_to_do_and_where() -> anyhow::Result<()> {
    let (_, text) = run(&["todo"])?;
    let message = "---- fate::todo ----\nnot yet implemented: open a context for each GPU\n  at crates/lab/tests/harness.rs:";
    in_order(&text, &[message])?;
    ensure!(!text.contains("RUST_BACKTRACE"), "{text}");
    Ok(())
}

fn leaving_early_is_no_pass() -> anyhow::Result<()> {
    let (_, text) = run(&["leaves"])?;
    in_order(&text, &["fate::leaves ... FAILED", "ended in the middle of the check, with exit code 0"])
}

fn an_answer_can_not_report_its_own_result() -> anyhow::Result<()> {
    let (_, text) = run(&["writes_to_standard_input"])?;
    in_order(&text, &["FAILED", "ended in the middle of the check, with exit code 0"])?;
    let (_, text) = run(&["writes_everywhere"])?;
    in_order(&text, &["FAILED", "the answer wrote to the connection on which the harness reports"])
}

fn an_answer_does_not_learn_its_check() -> anyhow::Result<()> {
    let (output, text) = run(&["fate::looks"])?;
    ensure!(output.status.success(), "{text}");
    Ok(())
}

fn a_check_that_ends_the_program_fails_alone() -> anyhow::Result<()> {
    let (_, text) = run(&["its_parent", "--test-threads", "2"])?;
    let why = "---- fate::kills_its_parent ----\nthe check's process ended in the middle of the check, with signal 9";
    in_order(&text, &["fate::outlives_its_parent ... ok", why, "1 passed; 1 failed"])
}

fn a_panic_during_a_panic_still_tells_the_first() -> anyhow::Result<()> {
    let (_, text) = run(&["aborts"])?;
    in_order(&text, &["---- fate::aborts ----\nthe first panic\n", "the second panic", "SIGABRT"])
}

fn a_hang_ends_with_all_that_it_started() -> anyhow::Result<()> {
    let started = Instant::now();
    let mut command = command(&["hangs"])?;
    command.env("LAB_TIMEOUT", "1");
    let (_, text) = output_of(command)?;
    ensure!(started.elapsed() < Duration::from_secs(20), "it took {:?}", started.elapsed());
    in_order(
        &text,
        &["---- fate::hangs ----\nthe check was still running after 1 s", "LAB_TIMEOUT", "sleeper "],
    )?;
    let sleeper =
        text.split("sleeper ").nth(1).and_then(|rest| rest.split_whitespace().next()).context("its id")?;
    eventually_gone(sleeper.parse()?)
}

/// Waits until a process is gone, or is a zombie that only init can reap.
fn eventually_gone(pid: u32) -> anyhow::Result<()> {
    for _ in 0..200 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("gone", |(_, rest)| &rest[..1]);
        if matches!(state, "gone" | "Z" | "X") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("process {pid} is still there")
}

fn nocapture_lets_output_through() -> anyhow::Result<()> {
    let (_, text) = run(&["passes", "--nocapture"])?;
    ensure!(text.contains("said by the one that passes"), "{text}");
    Ok(())
}

fn list_and_filter_are_those_of_libtest() -> anyhow::Result<()> {
    let (_, text) = run(&["--list"])?;
    ensure!(text.starts_with("fate::passes: test\nfate::fails: test\n"), "{text}");
    ensure!(!text.contains("tier"), "{text}");
    let (_, text) = run(&["--exact", "fate::passes", "--format", "json"])?;
    ensure!(text.starts_with(r#"{ "type": "suite""#), "{text}");
    Ok(())
}

fn bad_settings_are_named() -> anyhow::Result<()> {
    for (variable, value) in [("LAB_TIMEOUT", "soon"), ("RUST_TEST_THREADS", "0")] {
        let mut command = command(&["passes"])?;
        command.env(variable, value);
        let (output, text) = output_of(command)?;
        ensure!(output.status.code() == Some(2), "{text}");
        in_order(&text, &[&format!("error: {variable}={value}: ")])?;
    }
    let mut command = command(&["run-checks"])?;
    command.stdin(Stdio::null());
    let (output, text) = output_of(command)?;
    ensure!(output.status.code() == Some(2) && text.contains("`run-checks` is reserved"), "{text}");
    Ok(())
}

fn no_child_outlives_its_parent() -> anyhow::Result<()> {
    let mut parent = command(&["hangs", "--nocapture"])?.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(parent.stdout.take().context("its output")?).lines();
    let sleeper = loop {
        let line = lines.next().context("the check never printed its child's id")??;
        if let Some(pid) = line.split("sleeper ").nth(1) {
            break pid.parse()?;
        }
    };
    parent.kill()?;
    parent.wait()?;
    eventually_gone(sleeper)
}

fn a_check_starts_processes_and_hears_how_they_went() -> anyhow::Result<()> {
    let mut command = command(&["starts", "--show-output"])?;
    command.env("RANK", "7");
    let (output, text) = output_of(command)?;
    ensure!(output.status.success(), "{text}");
    in_order(
        &text,
        &[
            r#"Ok("it is\nfine, and RANK is None")"#,
            r#"Err("the disk is full")"#,
            r#"Err("not yet implemented: read a variable\n  at "#,
            "harness.rs:",
            r#"Err("a rank's process ended without a result, with exit status: 3")"#,
            r#"Err("a rank's process ended without a result, with signal: 9 (SIGKILL)")"#,
        ],
    )
}

fn timelines_are_kept_where_a_folder_is_named() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("lab_timelines_{}", std::process::id()));
    let mut command = command(&["fate::"])?;
    command.env("LAB_TIMEOUT", "5");
    Timelines::keep_in(&folder, &mut command)?;
    let (_, text) = output_of(command)?;
    // A failing check saves what it has measured.
    let measured = Timelines::of(&folder, "fate::measures").with_context(|| text.clone())?;
    ensure!(measured.title == "fate::measures" && measured.note.starts_with("Times are "), "{measured:?}");
    let span = &measured.rows[0].spans[0];
    ensure!(span.name == "forward" && span.end - span.start >= 1.0, "{span:?}");
    ensure!(Timelines::of(&folder, "fate::passes").is_none());
    // If a check measures nothing, its streams come from what the virtual GPU recorded.
    if text.contains("tier: virtual") {
        let recorded = Timelines::of(&folder, "fate::delays").context(text)?;
        ensure!(recorded.note.starts_with("Times are modeled for "), "{recorded:?}");
        ensure!(
            recorded.names.len() == 2 && recorded.rows.iter().all(|row| row.spans.len() == 1),
            "{recorded:?}"
        );
    }
    let kept = std::fs::read_dir(&folder)?.count();
    ensure!((1..=2).contains(&kept), "{kept} files");
    Ok(std::fs::remove_dir_all(&folder)?)
}

fn a_missing_program_is_a_reason_to_ignore() -> anyhow::Result<()> {
    let (output, text) = run(&["lacks"])?;
    ensure!(output.status.success(), "{text}");
    in_order(
        &text,
        &[
            "test fate::lacks ... ignored (no-such-launcher is not installed)",
            "0 passed; 0 failed; 1 ignored",
        ],
    )
}
