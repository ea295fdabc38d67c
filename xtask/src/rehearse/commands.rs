//! The commands that the pages show.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

/// The beginnings of commands that are not run here, because something else runs them or they need another machine.
const ELSEWHERE: [&str; 16] = [
    // Whole test suites are run by themselves.
    "cargo test",
    "cargo t0",
    "LAB_TIER=real cargo test",
    // The watch waits for a person. What depends on the GPUs is rehearsed by itself.
    "cargo course",
    "cargo xtask",
    "npm",
    // These set up another machine, or a container.
    ". ~/.cargo/env",
    "curl",
    "docker",
    "mkdir",
    "sudo",
    // GitHub's own program needs an account.
    "gh",
    // These need the launcher.
    "mpiexec",
    "mpirun",
    "srun",
    "torchrun",
];

/// Returns the commands that the README files and the book show, for the solutions instead of the exercises.
///
/// # Errors
/// Fails if a page can't be read, or if it shows a command of an unknown kind.
pub(super) fn of_pages(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = vec![root.join("README.md")];
    for folder in fs::read_dir(root.join("modules"))? {
        pages.push(folder?.path().join("README.md"));
    }
    for page in fs::read_dir(root.join("site/book/src"))? {
        pages.push(page?.path());
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let mut commands = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
            if ELSEWHERE.iter().any(|start| line.starts_with(start)) {
                continue;
            }
            let Some(line) = for_solutions(line) else {
                bail!(
                    "{}: `{line}` names no module's program: if something else runs it, add its beginning to {}",
                    page.display(),
                    file!()
                );
            };
            if !commands.contains(&line) {
                commands.push(line);
            }
        }
    }
    Ok(commands)
}

/// Returns the command for the solution of the module that it names, or `None` if it names none.
fn for_solutions(command: &str) -> Option<String> {
    (1..=9).find_map(|module| {
        let [exercise, solution] = ["m", "s"].map(|kind| format!("{kind}0{module}_"));
        (command.contains(&exercise) || command.contains(&solution))
            .then(|| command.replace(&exercise, &solution))
    })
}

/// Returns the number of ranks that a command's options ask for, if they do.
pub(super) fn ranks(command: &str) -> Option<usize> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_count = |word: &str| ["--gpus", "--world-size"].contains(&word);
    words.windows(2).find(|pair| is_count(pair[0])).and_then(|pair| pair[1].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_options() {
        assert_eq!(ranks("cargo run -p s02_collectives -- --gpus 8 --from 4M"), Some(8));
        assert_eq!(ranks("cargo run -p s05_overlap -- --model-size xl --world-size 4"), Some(4));
        assert_eq!(ranks("cargo run -p s05_overlap -- --model-size xl"), None);
    }
}
