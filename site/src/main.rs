//! Builds the book and the slides from the course's own files.
//!
//! Everything that the pages show comes from a tested source: code from files with anchors, and tables and reports from
//! the programs that print them. If a page refers to something that can't be found, the build stops and names the page.

mod book;
mod evidence;
mod exercise;
mod links;
mod output;
mod page;
mod picture;
mod slides;
mod source;
mod terminal;

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
    /// Build the book
    Book {
        /// The folder for the pages; its current contents are deleted
        #[arg(long, value_name = "FOLDER", default_value = "target/book")]
        to: PathBuf,
    },
    /// Build the slides
    Slides {
        /// The folder for the decks; its current contents are deleted
        #[arg(long, value_name = "FOLDER", default_value = "target/slides")]
        to: PathBuf,
    },
    /// Run the programs whose output the pages show, and record the output
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("site/ is in the workspace")?;
    match &arguments.what {
        What::Book { to } => made(&root.join(to), |to| book::make(root, to)),
        What::Slides { to } => made(&root.join(to), |to| slides::make(root, to)),
        What::Output { check: true } => output::check(root),
        What::Output { check: false } => output::write(root),
        What::Pictures { check: true } => picture::check(root),
        What::Pictures { check: false } => picture::write(root),
    }
}

/// The name of the file that marks a folder as created by this program; no other folder is ever emptied.
const MARK: &str = ".made-by-site";

/// Creates pages in a folder after deleting the folder's previous contents.
fn made(to: &Path, make: impl FnOnce(&Path) -> anyhow::Result<String>) -> anyhow::Result<String> {
    let is_empty = fs::read_dir(to).map_or(true, |mut entries| entries.next().is_none());
    ensure!(
        is_empty || to.join(MARK).is_file(),
        "{} contains files that this program did not create and would delete: name another folder, or remove this one",
        to.display()
    );
    let mark = || {
        fs::create_dir_all(to)
            .and_then(|()| fs::write(to.join(MARK), ""))
            .with_context(|| format!("can't write into {}", to.display()))
    };
    // Mark the folder even if creating the pages fails, because creating them removes the mark.
    mark()?;
    let text = make(to)?;
    mark()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_not_made_here_is_not_emptied() {
        let folder = std::env::temp_dir().join(format!("site_folder_{}", std::process::id()));
        let make = |to: &Path| {
            fs::create_dir_all(to)?;
            fs::write(to.join("page.html"), "")?;
            Ok(String::new())
        };
        made(&folder, make).unwrap();
        made(&folder, make).unwrap();
        fs::remove_file(folder.join(MARK)).unwrap();
        assert!(made(&folder, make).unwrap_err().to_string().contains("would delete"));
        fs::remove_dir_all(folder).unwrap();
    }
}
