//! Compares the variables that the course's doctor explains with those that NCCL reads.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::Version;
use crate::elf::Elf;
use crate::report::Comparison;

/// Where the doctor has its list.
const LIST: &str = "crates/course/src/doctor/environment.rs";

/// Read by NVIDIA's network plugin, a library of its own.
const OF_PLUGIN: &str = "NCCL_PLUGIN_P2P";

pub(super) fn compare(
    comparison: &mut Comparison,
    root: &Path,
    elf: &Elf,
    version: Version,
) -> anyhow::Result<()> {
    let text = fs::read_to_string(root.join(LIST)).context(LIST)?;
    let list = text.split("#[cfg(test)]").next().unwrap_or("");
    let (known, nothing) = list.split_once("const NOTHING").context("the doctor's list of no variables")?;
    let known = variables(known);
    ensure!(known.len() > 20, "{LIST}: only {} variables were found", known.len());
    for (name, effect) in known.into_iter().filter(|(name, _)| *name != OF_PLUGIN) {
        let since = since(effect).map(Version::read).transpose()?;
        let expected = since.is_none_or(|since| version >= since);
        comparison.holds(elf.has_text(name) == expected, || match (expected, since) {
            (false, _) => format!("{name}: this version reads it, but the doctor says `{effect}`"),
            (true, None) => {
                format!("{name}: this version doesn't read it; the doctor must say since when NCCL does")
            }
            (true, Some(_)) => {
                format!("{name}: this version doesn't read it, but the doctor says `{effect}`")
            }
        });
    }
    for (name, _) in variables(nothing) {
        comparison.holds(!elf.has_text(name), || {
            format!("{name}: NCCL reads it, but the doctor says that it doesn't")
        });
    }
    Ok(())
}

/// Returns the variables of NCCL in the doctor's source, each with the text after it.
fn variables(source: &str) -> Vec<(&str, &str)> {
    // Every second piece is in quotation marks.
    let texts: Vec<&str> = source.split('"').skip(1).step_by(2).collect();
    let pairs = texts.windows(2).filter(|pair| pair[0].starts_with("NCCL_") && pair[0].len() > "NCCL_".len());
    pairs.map(|pair| (pair[0], pair[1])).collect()
}

/// Returns the version in a text such as `lets ranks share a GPU (since NCCL 2.30)`.
fn since(effect: &str) -> Option<&str> {
    let (_, rest) = effect.split_once("(since NCCL ")?;
    rest.split([')', ',']).next()
}
