//! Fetches NVIDIA's wheels from the Python package registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Returns the folder with a wheel's files, such as `nvidia-nccl-cu12==2.18.3`; without a version, the newest. A wheel
/// with a version is fetched once, and kept below `target/nvidia`.
///
/// # Errors
/// Fails if there is no pip, if the registry can't be reached, or if it has no such wheel.
pub(crate) fn fetch(root: &Path, package: &str) -> anyhow::Result<PathBuf> {
    let wheels = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("nvidia");
    let folder = wheels.join(package.replace("==", "-"));
    if folder.is_dir() {
        return Ok(folder);
    }
    // A download that breaks off must not pass for the whole.
    let part = wheels.join(format!("{package}.part"));
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| part.display().to_string())?;
    }
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"])
        .args(["--no-deps", "--root-user-action", "ignore", "--target"])
        .arg(&part)
        .arg(package)
        .output()
        .context("can't run python3")?;
    ensure!(output.status.success(), "pip: {}", String::from_utf8_lossy(&output.stderr).trim());
    fs::rename(&part, &folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}
