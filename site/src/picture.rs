//! The pictures in the book and the slides, drawn from data: program output, and algorithms that are simulated here.

mod bandwidth;
mod collectives;
mod ladder;
mod ring;
mod rows;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, anyhow, ensure};

use crate::terminal;

/// The folder for the pictures, next to the pages that show them.
const KEPT: &str = "site/book/src/pictures";
/// The folder for the data to draw.
const DATA: &str = "target/pictures";

/// What a student sees whose streams race, as the course's own tests recorded it.
const RACE: &str = "crates/course/tests/sessions/grouping_events.ansi";

/// The size of the network whose steps are shown.
const SIZE: &str = "large";
/// The implementations of the ladder, each with a timeline.
const WAYS: [&str; 4] = ["naive", "flat", "overlapped", "bucketed"];
/// The exercises whose timelines module 05's program writes.
const OF_OVERLAP: [&str; 5] = ["waiting", "depth", "layerwise", "pipeline-parallel", "copies"];
/// The exercises whose timelines module 06's program writes: the machine, and the program's arguments.
const OF_SCALE: [(&str, &str, &str); 3] = [
    ("hierarchical", "2x8-h100", "--gpus 16"),
    ("experts", "classroom", "--gpus 4"),
    ("one-f-one-b", "classroom", "--gpus 4"),
];

/// Draws all pictures, and writes them.
///
/// # Errors
/// Fails if a program fails, or if a file can't be written.
pub(crate) fn write(root: &Path) -> anyhow::Result<String> {
    let pictures = draw(root)?;
    fs::create_dir_all(root.join(KEPT)).with_context(|| format!("can't make {KEPT}"))?;
    for (name, picture) in &pictures {
        fs::write(file(root, name), picture).with_context(|| format!("can't write {KEPT}/{name}.svg"))?;
    }
    Ok(format!("wrote {} pictures to {KEPT}", pictures.len()))
}

/// Draws all pictures again, and compares them.
///
/// # Errors
/// Fails if a picture is missing or has changed.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let pictures = draw(root)?;
    let mut stale = String::new();
    for (name, picture) in &pictures {
        let kept = fs::read_to_string(file(root, name));
        let kept =
            kept.with_context(|| format!("can't read {KEPT}/{name}.svg; `cargo xtask pictures` draws it"))?;
        if kept != *picture {
            let _ = writeln!(stale, "{KEPT}/{name}.svg would now be drawn differently");
        }
    }
    ensure!(stale.is_empty(), "{stale}`cargo xtask pictures` draws them again");
    Ok(format!("{} pictures are up to date", pictures.len()))
}

fn file(root: &Path, name: &str) -> PathBuf {
    root.join(KEPT).join(format!("{name}.svg"))
}

/// Draws all pictures, and returns them by name.
fn draw(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let data = root.join(DATA);
    fs::create_dir_all(&data).with_context(|| format!("can't make {DATA}"))?;
    run_all(root)?;
    let mut pictures = BTreeMap::from([
        ("collectives".to_owned(), collectives::draw()),
        ("ring-all-reduce".to_owned(), ring::draw()?),
        ("tree".to_owned(), tree::draw()),
        ("bandwidth".to_owned(), bandwidth::draw(&data).context("bandwidth")?),
        ("ladder".to_owned(), ladder::draw(&data).context("ladder")?),
    ]);
    let race = fs::read_to_string(root.join(RACE)).with_context(|| format!("can't read {RACE}"))?;
    pictures.insert("race".to_owned(), terminal::svg(race.trim_end(), 0) + "\n");
    pictures.extend(collectives::draw_each());
    pictures.extend(rows::draw(root)?);
    let timelines = WAYS.iter().map(|way| ((*way).to_owned(), format!("ladder-{SIZE}-{way}.svg")));
    let of_scale = OF_SCALE.map(|(exercise, _, _)| exercise);
    let others = ["interleave"].into_iter().chain(OF_OVERLAP).chain(of_scale);
    for (name, written) in timelines.chain(others.map(|name| (name.to_owned(), format!("{name}.svg")))) {
        let picture = fs::read_to_string(data.join(&written))
            .with_context(|| format!("timeline-{name}: can't read {DATA}/{written}"))?;
        pictures.insert(format!("timeline-{name}"), picture + "\n");
    }
    Ok(pictures)
}

/// Runs all programs in parallel, each on the virtual GPU, where times are the same on every run.
fn run_all(root: &Path) -> anyhow::Result<()> {
    let written = |name: &str| format!("{DATA}/{name}");
    let mut programs = vec![
        (
            "the ladder and its timelines",
            "classroom",
            format!(
                "--package s05_overlap -- --model-size medium,large,xl --world-size 2 --csv {} --svg {}",
                written("ladder.csv"),
                written("ladder.svg")
            ),
        ),
        (
            "timeline-interleave",
            "classroom",
            format!(
                "--package s05_overlap --bin s05_overlap_interleave -- --gpus 2 --svg {}",
                written("interleave.svg")
            ),
        ),
    ];
    let svg = |exercise: &str| format!("{exercise} --svg {}", written(&format!("{exercise}.svg")));
    programs.extend(OF_OVERLAP.map(|exercise| {
        let arguments = format!("--package s05_overlap --bin s05_overlap_timelines -- {}", svg(exercise));
        ("the timelines of module 05", "classroom", arguments)
    }));
    programs.extend(OF_SCALE.map(|(exercise, node, gpus)| {
        ("the timelines of module 06", node, format!("--package s06_scale -- {} {gpus}", svg(exercise)))
    }));
    programs.extend(bandwidth::NODES.map(|node| {
        let arguments = format!(
            "--package s02_collectives -- --gpus 8 --from 1K --to 4M --factor 4 --csv {}",
            written(&bandwidth::table(node))
        );
        ("bandwidth", node, arguments)
    }));
    thread::scope(|scope| {
        let running: Vec<_> = programs
            .iter()
            .map(|(picture, node, arguments)| scope.spawn(move || run(root, picture, node, arguments)))
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Runs a workspace program on a node's virtual GPUs.
fn run(root: &Path, picture: &str, node: &str, arguments: &str) -> anyhow::Result<()> {
    let said = || format!("{picture}: `VIRTUAL_GPU_TOPOLOGY={node} cargo run {arguments}`");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet"])
        .args(arguments.split(' '))
        .current_dir(root)
        .envs([("LAB_TIER", "virtual"), ("VIRTUAL_GPU_TOPOLOGY", node), ("RUST_BACKTRACE", "0")])
        .output()
        .with_context(|| format!("{} can't be run", said()))?;
    ensure!(
        output.status.success(),
        "{} ended with {}:\n{}{}",
        said(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use chart::card::{contrast, ink_on};

    use super::*;

    #[test]
    fn text_is_read_on_every_color() {
        for fill in ring::COLORS.into_iter().chain(collectives::COLORS).chain([collectives::SUM]) {
            assert!(contrast(fill, ink_on(fill)) >= 4.5, "{fill}: {}", contrast(fill, ink_on(fill)));
        }
    }
}
