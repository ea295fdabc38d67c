//! Chores of authors and CI. A student needs none of them.

mod check;
mod kernels;
mod starters;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use course::checks::cargo;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Make the book, in target/book
    Book,
    /// Check that starters, solutions, mistakes, kernels and course.toml belong together
    Check,
    /// Compile kernels/*.cu to kernels/*.ptx, with NVRTC 12.0
    Kernels(kernels::Options),
    /// Run the programs whose output the book and the slides show, and keep what they print
    Output {
        /// Compare instead
        #[arg(long)]
        check: bool,
    },
    /// Draw the pictures that the book and the slides show, from what programs write
    Pictures {
        /// Compare instead
        #[arg(long)]
        check: bool,
    },
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
        Chore::Book => pages(root, &["book"]),
        Chore::Check => check::run(root),
        Chore::Kernels(options) => kernels::run(options),
        Chore::Output { check: false } => pages(root, &["output"]),
        Chore::Output { check: true } => pages(root, &["output", "--check"]),
        Chore::Pictures { check: false } => pages(root, &["pictures"]),
        Chore::Pictures { check: true } => pages(root, &["pictures", "--check"]),
        Chore::Starters(options) => starters::run(root, options),
    }
}

/// Runs the program that makes pages. It is a package of its own, so that the other chores don't wait for mdBook to be built.
fn pages(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let status = cargo()
        .args(["run", "--quiet", "--package", "pages", "--"])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    ensure!(status.success(), "pages: {status}");
    Ok(())
}
