//! Programs that checks start in separate processes, in order to set variables that the driver reads only once, or to
//! observe how a process ends.

use std::process::{Command, ExitCode};

use crate::{
    contexts, nccl, nccl_threads, overlap, same_reports, shared_between_processes, shared_overruns,
    shared_races, strict, topology, trace, traffic,
};

/// The variable that tells this process which program to run.
const PROGRAM: &str = "LAB_TESTS_PROGRAM";

type Program = fn() -> anyhow::Result<()>;

/// The programs, by name.
const PROGRAMS: [(&str, Program); 25] = [
    ("contexts::reach", contexts::reach),
    ("contexts::thousand", contexts::thousand),
    ("nccl::aborts_at_exit", nccl::aborts_at_exit),
    ("nccl::late", nccl::late),
    ("nccl_threads::asks", nccl_threads::asks),
    ("nccl_threads::polls_slowly", nccl_threads::polls_slowly),
    ("overlap::fit", overlap::fit),
    ("trace::threads", trace::threads),
    ("trace::alone", trace::alone),
    ("same_reports::races", same_reports::races),
    ("same_reports::races_of_one_thread", same_reports::races_of_one_thread),
    ("same_reports::count", same_reports::count),
    ("same_reports::leaves", same_reports::leaves),
    ("same_reports::orders", same_reports::orders),
    ("shared_between_processes::waits", shared_between_processes::waits),
    ("shared_overruns::beyond", shared_overruns::goes_beyond),
    ("shared_overruns::far_beyond", shared_overruns::goes_far_beyond),
    ("shared_races::repeats", shared_races::repeats),
    ("strict::reduce", strict::reduce),
    ("strict::connects", strict::connects),
    ("strict::sums", strict::sums),
    ("topology::start", topology::start),
    ("topology::reduce", topology::reduce),
    ("traffic::products", traffic::products),
    ("traffic::two_kernels", traffic::two_kernels),
];

/// Runs the program that this process was started for, if any.
pub(crate) fn run() -> Option<ExitCode> {
    let name = std::env::var(PROGRAM).ok()?;
    let (_, program) = PROGRAMS.iter().find(|(known, _)| *known == name)?;
    Some(match program() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Runs a program to its end. Returns whether it succeeded, and what it printed to standard output and standard error.
pub(crate) fn start(program: &str, switches: &[(&str, &str)]) -> anyhow::Result<(bool, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(PROGRAM, program).env("RUST_BACKTRACE", "0").envs(switches.iter().copied());
    let output = command.output()?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((output.status.success(), said.concat()))
}
