//! Fetches Debian's package of NVIDIA's driver library, without installing it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::wheel::downloads;

const PACKAGE: &str = "libcuda1";

/// The section of the archive that has it; most machines don't have this section in their lists.
const COMPONENT: &str = "non-free";

/// The keys of Debian's archive, where Debian installs them.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the folder with the driver's libraries. The package is fetched once, and kept below `target/nvidia`.
///
/// # Errors
/// Fails if this is no Debian, or if the archive can't be reached.
pub(super) fn fetch(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = downloads(root).join(PACKAGE);
    if !folder.is_dir() {
        let part = downloads(root).join(format!("{PACKAGE}.part"));
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        download(&part)?;
        fs::rename(&part, &folder).with_context(|| folder.display().to_string())?;
    }
    folder_of(&folder, "libcuda.so.1")?.context("the package has no libcuda.so.1")
}

/// Downloads and unpacks the package, with lists of its own, so that the machine's lists stay as they are.
fn download(folder: &Path) -> anyhow::Result<()> {
    let (apt, files) = (folder.join("apt"), folder.join("files"));
    for folder in [&files, &apt.join("lists/partial"), &apt.join("archives/partial")] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let list = apt.join("sources.list");
    fs::write(&list, format!("deb [signed-by={KEYS}] {} {COMPONENT}\n", archive()?))?;
    let apt_get = |command: &str| {
        let mut run = Command::new("apt-get");
        run.current_dir(&apt).arg("--quiet").arg(command);
        for (option, value) in [
            ("Dir::Etc::sourcelist", list.as_path()),
            ("Dir::Etc::sourceparts", Path::new("/dev/null")),
            ("Dir::State::lists", &apt.join("lists")),
            ("Dir::Cache", &apt),
        ] {
            run.arg("-o").arg(format!("{option}={}", value.display()));
        }
        run
    };
    output(apt_get("update").args(["-o", "APT::Update::Error-Mode=any"]))?;
    output(apt_get("download").arg(PACKAGE))?;
    let mut packages = fs::read_dir(&apt)?.filter_map(|entry| Some(entry.ok()?.path()));
    let package = packages.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get downloaded no package")?;
    output(Command::new("dpkg-deb").arg("-x").arg(package).arg(&files))?;
    Ok(())
}

/// Returns the address and the release of the archive that this machine's packages come from.
fn archive() -> anyhow::Result<String> {
    let format = "$(ORIGIN) $(RELEASE) $(REPO_URI)";
    let text = output(Command::new("apt-get").args(["indextargets", "--format", format]))?;
    text.lines()
        .find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            // Updates and backports have a hyphen.
            ["Debian", release, address] if !release.contains('-') => Some(format!("{address} {release}")),
            _ => None,
        })
        .context("apt has no list of a Debian release; `apt-get update` fetches it")
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("can't run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find(|line| !line.starts_with("W:")).unwrap_or("no message");
    ensure!(output.status.success(), "{name} failed: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the folder that has a file with this name.
fn folder_of(folder: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = folder_of(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.ends_with(name) {
            return Ok(Some(folder.to_owned()));
        }
    }
    Ok(None)
}
