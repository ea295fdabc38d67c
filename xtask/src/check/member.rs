//! Creates the packages of the scratch workspace: starters and changed solutions, without their programs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Returns the first folder in a path below modules/ or solutions/.
pub(super) fn folder_of(path: &Path) -> String {
    path.iter().next().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the workspace's own manifest, with other members.
pub(super) fn workspace_manifest(manifest: &str, members: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut replaced = 0;
    for line in manifest.lines() {
        if line.starts_with("members = ") {
            replaced += 1;
            text.push_str(&format!("members = [\"{members}\"]\ndefault-members = [\"{members}\"]\n"));
        } else if !line.starts_with("default-members = ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    ensure!(
        replaced == 1,
        "Cargo.toml has {replaced} lines `members = […]`, but exactly 1 is expected, on a line of its own"
    );
    Ok(text)
}

/// Makes links to the folders that the members depend on. Below the workspace, these packages have the same paths as in the
/// repository, so Cargo uses what it has built there, if the target folder is the same.
pub(super) fn link_dependencies(root: &Path, workspace: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(workspace).with_context(|| format!("can't make {}", workspace.display()))?;
    for name in ["crates", "solutions", "tests"] {
        let link = workspace.join(name);
        if fs::read_link(&link).ok().as_ref() != Some(&root.join(name)) {
            // There may be an old link to a different target.
            let _ = fs::remove_file(&link);
            symlink(root.join(name), &link).with_context(|| format!("can't make {}", link.display()))?;
        }
    }
    Ok(())
}

/// Adds a package's file unless it is a program, because only the checks are run.
pub(super) fn add(
    files: &mut BTreeMap<PathBuf, String>,
    root: &Path,
    package: &str,
    path: &Path,
    text: &str,
) -> anyhow::Result<()> {
    let inner: PathBuf = path.iter().skip(1).collect();
    if inner.starts_with("programs") {
        return Ok(());
    }
    let mut text = text.to_owned();
    if inner == Path::new("Cargo.toml") {
        text = manifest(&text);
    }
    let tests = "#[path = \"../../../tests/";
    text = text.replace(tests, &format!("#[path = \"{}/tests/", root.display()));
    files.insert(Path::new("members").join(package).join(inner), text);
    Ok(())
}

/// Returns a member's manifest: it has no programs and no checks for them, and turns warnings into errors for a starter.
pub(super) fn manifest(manifest: &str) -> String {
    let manifest =
        manifest.replace("[lints]\nworkspace = true\n", "[lints.rust]\nwarnings = \"allow\"\n").replace(
            "[lints.rust]\ndead_code = \"allow\"\n",
            "[lints.rust]\nwarnings = \"deny\"\ndead_code = \"allow\"\n",
        );
    let mut text = String::new();
    let mut is_of_program = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_of_program = ["[[bin]]", "[[test]]"].contains(&line);
        }
        if !is_of_program && !line.starts_with("default-run ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_workspace_has_other_members_and_the_same_dependencies() {
        let manifest = "[workspace]\nmembers = [\"a\"]\ndefault-members = [\"a\"]\n[workspace.dependencies]\nlab = { path = \"crates/lab\" }\n";
        assert_eq!(
            workspace_manifest(manifest, "members/*").unwrap(),
            "[workspace]\nmembers = [\"members/*\"]\ndefault-members = [\"members/*\"]\n[workspace.dependencies]\nlab = { path = \"crates/lab\" }\n"
        );
        assert!(workspace_manifest("[workspace]\n", "members/*").is_err());
    }

    #[test]
    fn a_member_has_no_program() {
        let made = manifest(
            "[package]\nname = \"x\"\ndefault-run = \"x\"\n\n[lints.rust]\ndead_code = \"allow\"\n\n[lib]\nharness = false\n\n\
             [[bin]]\nname = \"x\"\n\n[[test]]\nname = \"programs\"\n",
        );
        assert_eq!(
            made,
            "[package]\nname = \"x\"\n\n[lints.rust]\nwarnings = \"deny\"\ndead_code = \"allow\"\n\n[lib]\nharness = false\n\n"
        );
    }
}
