//! Fetches NVIDIA's wheels from the Python package registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Returns the folder for downloads, below Cargo's target folder.
pub(crate) fn downloads(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("nvidia")
}

/// Returns the folder with a wheel's files. A wheel is fetched once, and kept below `target/nvidia`.
///
/// # Errors
/// Fails if there is no pip, if the registry can't be reached, or if it has no such wheel.
pub(crate) fn fetch(root: &Path, package: &str, version: &str) -> anyhow::Result<PathBuf> {
    let wheels = downloads(root);
    let folder = wheels.join(format!("{package}-{version}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    // A download that breaks off must not pass for the whole.
    let part = wheels.join(format!("{package}-{version}.part"));
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| part.display().to_string())?;
    }
    let output = pip()
        .args(["install", "--quiet", "--no-cache-dir", "--no-deps", "--root-user-action", "ignore"])
        .arg("--target")
        .arg(&part)
        .arg(format!("{package}=={version}"))
        .output()
        .context("can't run python3")?;
    ensure!(output.status.success(), "pip failed: {}", first_error(&output.stderr));
    fs::rename(&part, &folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Returns the newest version of a package.
///
/// # Errors
/// Fails if there is no pip, or if the registry can't be reached.
pub(crate) fn newest(package: &str) -> anyhow::Result<String> {
    let output = pip().args(["index", "versions", package]).output().context("can't run python3")?;
    ensure!(output.status.success(), "pip failed: {}", first_error(&output.stderr));
    // The first line is `package (version)`.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().next().and_then(|line| line.split_once('(')?.1.strip_suffix(')'));
    Ok(version.with_context(|| format!("pip lists no version of {package}"))?.to_owned())
}

fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
}

/// Returns the line that says what went wrong; pip also writes warnings.
fn first_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().find(|line| line.starts_with("ERROR") || line.contains("No module"));
    line.or_else(|| text.lines().next()).unwrap_or("no message").trim().to_owned()
}
