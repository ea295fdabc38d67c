//! Chores of authors and CI. A student needs none of them.

mod check;
mod kernels;
mod starters;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check that starters, solutions, mistakes, kernels and course.toml belong together
    Check,
    /// Compile kernels/*.cu to kernels/*.ptx, with NVRTC 12.0
    Kernels(kernels::Options),
    /// Make modules/ from solutions/; what is in modules/ is lost
    Starters(starters::Options),
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    match &arguments.chore {
        Chore::Check => check::run(root),
        Chore::Kernels(options) => kernels::run(options),
        Chore::Starters(options) => starters::run(root, options),
    }
}
