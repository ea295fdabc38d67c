//! Compares the virtual GPU with NVIDIA's own libraries, compilers, and headers. They come from the package registries,
//! and none of them needs a GPU for what is compared here.

mod driver;
mod elf;
mod headers;
mod nccl;
mod probe;
mod ptxas;
mod report;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use report::Report;

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// What to compare; everything if nothing is named
    what: Vec<What>,
    /// Make the calls of a probe, and print what they return; the program starts itself with this
    #[arg(long, hide = true)]
    probe: Option<probe::Probe>,
    /// A library to load before a probe's calls
    #[arg(long, hide = true)]
    load: Vec<PathBuf>,
}

/// What is compared with ours.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum What {
    /// Versions of libnccl: codes, texts, symbols, log lines, and variables
    Nccl,
    /// Debian's libcuda on a machine without a GPU: codes, texts, symbols, and the course's doctor
    Driver,
    /// Versions of ptxas: the repository's PTX, and PTX with a mistake
    Ptxas,
    /// The declarations in cuda.h and nccl.h
    Headers,
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
    if let Some(probe) = arguments.probe {
        return probe.run(&arguments.load);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("in the workspace")?;
    let mut report = Report::default();
    for what in What::value_variants() {
        if arguments.what.is_empty() || arguments.what.contains(what) {
            match what {
                What::Nccl => nccl::compare(root, &mut report)?,
                What::Driver => driver::compare(root, &mut report)?,
                What::Ptxas => ptxas::compare(root, &mut report)?,
                What::Headers => headers::compare(root, &mut report)?,
            }
        }
    }
    report.finish()
}
