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

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("site/ lies in the workspace")?;
    match &arguments.what {
        What::Book { to } => made(&root.join(to), |to| book::make(root, to)),
        What::Slides { to } => made(&root.join(to), |to| slides::make(root, to)),
        What::Output { check: true } => output::check(root),
        What::Output { check: false } => output::write(root),
        What::Pictures { check: true } => picture::check(root),
        What::Pictures { check: false } => picture::write(root),
    }
}

/// Lies in a folder that was made here: only such a one is emptied.
const MARK: &str = ".made-by-site";

/// Makes pages in a folder, which loses whatever was in it.
fn made(to: &Path, make: impl FnOnce(&Path) -> anyhow::Result<String>) -> anyhow::Result<String> {
    let is_empty = fs::read_dir(to).map_or(true, |mut entries| entries.next().is_none());
    ensure!(
        is_empty || to.join(MARK).is_file(),
        "{} has files that weren't made here, and would be lost: name another folder, or remove it",
        to.display()
    );
    let mark = || {
        fs::create_dir_all(to)
            .and_then(|()| fs::write(to.join(MARK), ""))
            .with_context(|| format!("can't write into {}", to.display()))
    };
    // Also where it is not made to the end; making it takes the mark away.
    mark()?;
    let text = make(to)?;
    mark()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_not_emptied() {
        let folder = std::env::temp_dir().join(format!("site_folder_{}", std::process::id()));
        let make = |to: &Path| {
            fs::create_dir_all(to)?;
            fs::write(to.join("page.html"), "")?;
            Ok(String::new())
        };
        made(&folder, make).unwrap();
        made(&folder, make).unwrap();
        fs::remove_file(folder.join(MARK)).unwrap();
        assert!(made(&folder, make).unwrap_err().to_string().contains("would be lost"));
        fs::remove_dir_all(folder).unwrap();
    }
}
