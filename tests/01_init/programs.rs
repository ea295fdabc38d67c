//! Checks for the module's single-process program. They are part of the solutions' package, because Cargo tells only a
//! package's own tests where its programs are.

use std::process::{Command, Stdio};

use lab::{Check, ensure};

use super::launch::{OPEN_MPI, all_variables, free_address};

/// The path of the program.
const PROCESS: &str = env!("CARGO_BIN_EXE_s01_init_process");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("programs::processes_hear_each_other", processes_hear_each_other).min_ranks(2),
        Check::new("programs::a_process_without_a_launcher_reports_it", without_a_launcher_says_so),
    ]
}

/// Returns the program's command, without a launcher's variables.
fn program() -> Command {
    let mut command = Command::new(PROCESS);
    for name in all_variables() {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn processes_hear_each_other() -> anyhow::Result<()> {
    let meet = free_address()?.to_string();
    let mut processes = Vec::new();
    for rank in 0..2 {
        let mut command = program();
        command.args(["--meet", &meet]).envs(OPEN_MPI.sets([rank, rank, 2]));
        processes.push(command.spawn()?);
    }
    for (rank, process) in processes.into_iter().enumerate() {
        let output = process.wait_with_output()?;
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "rank {rank}: {}\n{said}{errors}", output.status);
        let (start, end) = (format!("rank {rank} ("), ") hears rank 0 of 2 on GPU 0; rank 1 of 2 on GPU 1");
        // NCCL before 2.22 also prints its version there.
        let has_line = said.lines().any(|line| line.starts_with(&start) && line.ends_with(end));
        ensure!(has_line, "rank {rank} says: {said}");
    }
    Ok(())
}

fn without_a_launcher_says_so() -> anyhow::Result<()> {
    let output = program().output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{}: {errors}", output.status);
    ensure!(errors.contains("no launcher started this process"), "it says: {errors}");
    Ok(())
}
