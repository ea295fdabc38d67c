//! Runs ranks as processes under real launchers, on this machine and on two machines in network namespaces. The
//! processes must form one group, each with the GPU of its local rank, and must train exactly as threads do.
//!
//! This is a package of its own, because it needs the solutions, which no other task should wait for. It runs on
//! virtual GPUs, even where there are real ones.

mod bounded;
mod install;
mod interrupt;
mod launcher;
mod nodes;
mod orphans;
mod place;
mod rounds;
mod state;
mod training;

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};

use launcher::torchrun::Torchrun;
use rounds::Outcomes;

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// Only launchers whose name contains this, such as `slurm`
    #[arg(long, default_value = "")]
    only: String,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What the processes do that this program starts.
#[derive(Subcommand)]
enum Part {
    /// Train as one rank, in the process that a launcher starts for it
    #[command(hide = true)]
    Rank {
        #[arg(long)]
        meet: String,
    },
    /// Train with a thread for each rank
    #[command(hide = true)]
    Threads { ranks: usize },
    /// Stand in for torchrun
    #[command(hide = true)]
    Torchrun(Torchrun),
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.part {
        Some(Part::Rank { meet }) => {
            let address = meet.to_socket_addrs().with_context(|| format!("--meet {meet}"))?.next();
            let address = address.with_context(|| format!("--meet {meet}: no such host"))?;
            training::as_process(address)?.iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        Some(Part::Threads { ranks }) => {
            training::as_threads(*ranks)?.iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        Some(Part::Torchrun(torchrun)) => torchrun.run(),
        None => all_rounds(&arguments.only),
    }
}

/// Runs every launcher in every place, and prints a line for each.
///
/// # Errors
/// Fails if a launcher's ranks do, or if they print something else than expected. A launcher that is not installed is
/// reported as skipped.
fn all_rounds(only: &str) -> anyhow::Result<()> {
    interrupt::watch()?;
    let Outcomes { passed, skipped, failed } = rounds::run(only, &built_process()?)?;
    println!("launchers: {passed} passed, {} failed, {skipped} skipped", failed.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    ensure!(passed + skipped > 0, "nothing ran");
    Ok(())
}

/// Builds the solved program of module 1 that runs one rank in a process, and returns its path.
fn built_process() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "s01_init", "--bin", "s01_init_process"])
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    ensure!(status.success(), "can't build s01_init_process");
    let own = std::env::current_exe().context("can't find this executable")?;
    Ok(own.with_file_name("s01_init_process"))
}
