//! Compares the virtual GPU with NVIDIA's own libraries, compilers, and headers. They come from the package registries,
//! and none of them needs a GPU for what is compared here.

mod headers;
mod wheel;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// What to compare; everything if nothing is named
    what: Vec<What>,
}

/// What is compared with ours.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum What {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("in the workspace")?;
    for what in What::value_variants() {
        if arguments.what.is_empty() || arguments.what.contains(what) {
            match what {
                What::Headers => headers::compare(root)?,
            }
        }
    }
    Ok(())
}
