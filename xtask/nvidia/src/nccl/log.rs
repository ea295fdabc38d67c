//! Fills in the texts with which a version of NCCL logs communicators and calls, and lets the course read the result.

use std::path::Path;

use anyhow::{Context, ensure};
use lab::NcclLog;

use crate::elf::Elf;
use crate::probe::{Probe, print};
use crate::report::Comparison;

/// The element count and the GPU in each line.
const COUNT: &str = "1031";
const GPU: &str = "1";

pub(super) fn compare(comparison: &mut Comparison, library: &Path) -> anyhow::Result<()> {
    // The log belongs to a process, and changes its variables.
    for (line, result) in Probe::Log.results(&[library], &[])? {
        comparison.same(line, &result.as_str(), &"read");
    }
    Ok(())
}

/// Writes the lines of a library to a log, and prints which of them the course reads.
///
/// # Errors
/// Fails if the library has no such texts.
pub(crate) fn read(library: &Path) -> anyhow::Result<()> {
    let elf = Elf::read(library)?;
    // SAFETY: this process has one thread.
    let log = unsafe { NcclLog::open() };
    let file = std::env::var_os("NCCL_DEBUG_FILE").context("the log has no file")?;
    let write = |lines: &[String]| std::fs::write(&file, lines.concat());
    formats(&elf, "[%d] NCCL INFO ")?;

    for format in formats(&elf, ": opCount %lx sendbuff ")? {
        write(&[filled(format, "AllReduce", "0x5")])?;
        let is_read = log.calls("AllReduce")? == [COUNT.parse::<usize>()?];
        print(format, if is_read { "read" } else { "not read" });
    }
    let (starts, ends) = (formats(&elf, " - Init COMPLETE")?, ends(&elf)?);
    for start in &starts {
        let first = filled(start, "ncclCommInitRank", "0x5");
        write(std::slice::from_ref(&first))?;
        let is_read = log.communicators()? == 1 && log.most_at_once(GPU.parse()?)? == 1;
        print(start, if is_read { "read" } else { "not read" });
        for end in &ends {
            // NCCL logs the end of a destruction with the format for the end of an abort.
            let lines = [&first, &filled(end, "Abort", "0x5"), &filled(start, "ncclCommInitRank", "0x6")];
            write(&lines.map(String::clone))?;
            let is_read = log.most_at_once(GPU.parse()?)? == 1;
            print(&format!("{start}, then {end}"), if is_read { "read" } else { "not read" });
        }
    }
    Ok(())
}

fn formats<'a>(elf: &'a Elf, part: &'a str) -> anyhow::Result<Vec<&'a str>> {
    let found: Vec<&str> = elf.texts_with(part).collect();
    ensure!(!found.is_empty(), "the library has no text with `{part}`");
    Ok(found)
}

/// Returns the texts about the end of a communicator.
fn ends(elf: &Elf) -> anyhow::Result<Vec<&str>> {
    let parts =
        [" - %s COMPLETE", " - Abort COMPLETE", " - Destroy COMPLETE", " - Abort START", " - Destroy START"];
    let found: Vec<&str> = parts.iter().flat_map(|part| elf.texts_with(part)).collect();
    ensure!(!found.is_empty(), "the library has no text about the end of a communicator");
    Ok(found)
}

/// Fills in a format of `printf`, as a line of the log.
fn filled(format: &str, name: &str, comm: &str) -> String {
    let mut line = "host:1:2 [1] NCCL INFO ".to_owned();
    let mut rest = format;
    while let Some((text, after)) = rest.split_once('%') {
        line += text;
        let end = after.find(|c: char| !matches!(c, 'l' | 'z')).unwrap_or(0);
        line += match (&after[end..=end], text) {
            ("s", _) => name,
            ("p", _) if text.ends_with("comm ") => comm,
            ("p", _) => "0x7f0000000000",
            (_, _) if text.ends_with(" cudaDev ") => GPU,
            (_, _) if text.ends_with(" count ") => COUNT,
            _ => "7",
        };
        rest = &after[end + 1..];
    }
    line + rest + "\n"
}
