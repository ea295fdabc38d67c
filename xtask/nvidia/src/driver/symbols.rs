//! Compares the functions that a driver exports with those that cudarc declares for its CUDA version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use virtual_cuda::EXPORTS;

use crate::elf::Elf;
use crate::report::Comparison;

/// Compares what the virtual driver exports with a driver for this version of CUDA, such as 12020.
pub(super) fn compare(
    comparison: &mut Comparison,
    root: &Path,
    driver: &Path,
    version: u32,
) -> anyhow::Result<()> {
    let elf = Elf::read(driver)?;
    let (theirs, declared) = (elf.exports("cu"), declared(root)?);
    let table = std::fs::read_to_string(root.join("crates/virtual-cuda/src/versions.txt"))
        .context("the versions of the driver's functions")?;
    for export in EXPORTS.iter().filter(|export| export.name.starts_with("cu")) {
        let Some(versions) = declared.get(export.name) else {
            // Not every function of the virtual driver is one that cudarc calls.
            let name = export.name;
            if since(&table, name).is_none_or(|since| since <= version) {
                comparison.holds(theirs.contains(name), || format!("{name}: only the virtual driver has it"));
            }
            continue;
        };
        if versions.is_empty() || versions.contains(&version) {
            let name = export.name;
            comparison.holds(theirs.contains(name), || {
                format!("{name}: cudarc declares it for CUDA {version}, but the driver lacks it")
            });
        }
    }
    Ok(())
}

/// Returns the version of CUDA in which a function appeared, by the virtual driver's table.
fn since(table: &str, name: &str) -> Option<u32> {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let (base, number) =
        match name.rsplit_once("_v").and_then(|(base, number)| Some((base, number.parse().ok()?))) {
            Some(versioned) => versioned,
            None => (name, 1),
        };
    let line = table.lines().find(|line| line.split(' ').next() == Some(base))?;
    line.split(' ').nth(number)?.parse().ok()
}

/// Returns the functions that cudarc declares, with the CUDA versions that it declares them for.
fn declared(root: &Path) -> anyhow::Result<BTreeMap<String, Vec<u32>>> {
    let file = cudarc_source(root)?.join("src/driver/sys/mod.rs");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let lines: Vec<&str> = text.lines().collect();
    let mut declared = BTreeMap::new();
    for pair in lines.windows(2) {
        let Some(name) = pair[1].strip_prefix("pub unsafe fn cu").and_then(|it| it.split('(').next()) else {
            continue;
        };
        // `#[cfg(any(feature = "cuda-11040", …))]`; without it, for all versions.
        let versions =
            pair[0].split("\"cuda-").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok());
        declared.insert(format!("cu{name}"), versions.collect());
    }
    ensure!(declared.len() > 300, "{}: only {} functions were found", file.display(), declared.len());
    Ok(declared)
}

/// Returns the folder of cudarc's source.
pub(crate) fn cudarc_source(root: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Unlike `cargo metadata`, this needs only the packages for this platform.
    let output = Command::new(cargo)
        .args(["build", "--message-format", "json", "--package", "lab"])
        .current_dir(root)
        .output()
        .context("can't run cargo")?;
    ensure!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let manifests = text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut folders = manifests.filter_map(|manifest| Path::new(manifest).parent());
    let is_cudarc = |folder: &&Path| folder.file_name().is_some_and(|name| name == "cudarc-0.19.10");
    Ok(folders.find(is_cudarc).context("cudarc 0.19.10 is not a dependency")?.to_owned())
}
