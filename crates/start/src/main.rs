//! Runs `cargo course`: builds the course and starts it. Cargo shows its progress only on the first build, and a line
//! announces later builds that take several seconds.
//!
//! This crate needs nothing but the standard library, so Cargo builds it in a second. If `cargo run --quiet` built the
//! whole course instead, the student would see nothing for minutes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("can't find this program's own path: {error}"))?;
    let course = own.with_file_name("course");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--package", "course"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = if course.is_file() {
        build.arg("--quiet");
        announced(|| build.status())
    } else {
        eprintln!(
            "building the course and its virtual GPU; this happens once and takes a minute or two\n\
             while you wait, read what you will build first: modules/01_init/README.md"
        );
        build.status()
    };
    let status = built.map_err(|error| format!("can't run cargo: {error}"))?;
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let arguments = std::env::args_os().skip(1);
    let error = Command::new(&course).args(arguments).exec();
    Err(format!("can't start {}: {error}", course.display()))
}

/// Runs a build. Prints a line if the build takes longer than usual.
fn announced<T>(build: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            if is_done.recv_timeout(Duration::from_secs(3)) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "building the course, or waiting for another cargo command that is building something"
                );
            }
        });
        let built = build();
        drop(done);
        built
    })
}
