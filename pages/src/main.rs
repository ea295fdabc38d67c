//! Makes the book and the slides from the course's own files.
//!
//! Whatever they show is taken from where it is tested: code by its anchors, tables and reports from the programs that print
//! them. What can't be found stops the build, with the page that asked for it.

mod book;
mod exercise;
mod links;
mod output;
mod page;
mod picture;
mod slides;
mod source;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make the book
    Book {
        /// The folder in which its pages are put
        #[arg(long, value_name = "FOLDER", default_value = "target/book")]
        to: PathBuf,
    },
    /// Make the slides
    Slides {
        /// The folder in which the decks are put; what is in it is lost
        #[arg(long, value_name = "FOLDER", default_value = "target/slides")]
        to: PathBuf,
    },
    /// Run the programs whose output the pages show, and keep what they print
    Output {
        /// Compare instead
        #[arg(long)]
        check: bool,
    },
    /// Draw the pictures that the pages show
    Pictures {
        /// Compare instead
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("pages/ lies in the workspace")?;
    match &arguments.what {
        What::Book { to } => book::make(root, &root.join(to)),
        What::Slides { to } => slides::make(root, &root.join(to)),
        What::Output { check: true } => output::check(root),
        What::Output { check: false } => output::write(root),
        What::Pictures { check: true } => picture::check(root),
        What::Pictures { check: false } => picture::write(root),
    }
}
