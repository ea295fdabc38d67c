//! Creates a copy of the course, and runs student sessions in `cargo course watch` on it.
//! `crates/course/tests/sessions` stores the screens.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use course::starter::read_folder;
use course::syllabus::Course;

use super::{cargo, command, member, target};
use crate::starters;

/// Runs the sessions. Their dependencies are those that the repository has built.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let target = target(root);
    let copy = target.join("xtask-check/sessions");
    let course = Course::read(root)?;
    let last = course.modules.last().context("course.toml lists no modules")?;
    write(root, &course, &copy).with_context(|| format!("can't write {}", copy.display()))?;
    // Builds the modules' dependencies first, so that the simulated students don't wait for them.
    let mut build = cargo(&copy);
    build.args(["test", "--no-run", "-q", "-p", &last.starter_package()]);
    build.env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
    let problems = command(&mut build)?;
    if !problems.is_empty() {
        return Ok(problems);
    }
    let mut test = cargo(root);
    test.args(["test", "-q", "-p", "course", "--test", "sessions"])
        .env("COURSE_SESSIONS", &copy)
        .env("COURSE_SESSIONS_TARGET", &target);
    command(&mut test)
}

/// The variable that makes snapbox store what it sees, and its value.
const OVERWRITE: (&str, &str) = ("SNAPSHOTS", "overwrite");

/// Describes what a successful [`check`] has done.
pub(crate) fn summary() -> &'static str {
    let (name, value) = OVERWRITE;
    match std::env::var(name).is_ok_and(|it| it == value) {
        true => "stored the current screens in crates/course/tests/sessions; git diff shows what has changed",
        false => "the screens are those in crates/course/tests/sessions",
    }
}

/// Writes the files that have changed since the last run. The exercises are written by the test itself.
fn write(root: &Path, course: &Course, copy: &Path) -> anyhow::Result<()> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let mut manifest = member::workspace_manifest(&manifest, "modules/*")?;
    for module in &course.modules {
        manifest = apart(&manifest, &module.starter_package())?;
    }
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::from([("Cargo.toml".into(), manifest)]);
    for name in ["course.toml", "Cargo.lock"] {
        files.insert(name.into(), fs::read_to_string(root.join(name)).context(name)?);
    }
    let modules = Path::new("modules");
    for (path, text) in read_folder(&root.join(modules))? {
        files.insert(modules.join(path), text);
    }
    for (path, text) in starters::starters(root)?.starters {
        let is_manifest = path.ends_with("Cargo.toml");
        let text = if is_manifest { without_programs(&text) } else { text };
        files.insert(modules.join(path), text);
    }
    // A module that no longer exists must not be built.
    match fs::remove_dir_all(copy.join(modules)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("modules"),
        _ => {}
    }
    for (path, text) in files {
        let path = copy.join(path);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(copy))?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    member::link_dependencies(root, copy)
}

/// Returns a manifest with another profile for a module. It has the same path as in the repository and is built in the same folder, so
/// with the same profile, Cargo would take the simulated students' answers for those of the person at this computer.
fn apart(manifest: &str, module: &str) -> anyhow::Result<String> {
    let start = format!("{module} = {{ incremental = true");
    let line = manifest.lines().find(|line| line.starts_with(&start));
    let line = line.with_context(|| format!("Cargo.toml has no line `{start} … }}`"))?;
    Ok(manifest.replace(line, &format!("{module} = {{ codegen-units = 1 }}")))
}

/// Returns a module's manifest without its programs, because linking them would take half of the time.
fn without_programs(manifest: &str) -> String {
    let mut text = String::new();
    let mut in_program = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_program = line == "[[bin]]";
        }
        if !in_program && !line.starts_with("default-run ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.replace("[package]\n", "[package]\nautobins = false\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_a_profile_of_its_own_is_named() {
        let manifest = "[profile.dev.package]\nm1 = { incremental = true, codegen-units = 32 }\n";
        assert_eq!(apart(manifest, "m1").unwrap(), "[profile.dev.package]\nm1 = { codegen-units = 1 }\n");
        assert!(apart(manifest, "m2").unwrap_err().to_string().contains("`m2 = { incremental = true … }`"));
    }

    #[test]
    fn a_module_has_no_programs_here() {
        let manifest = "[package]\nname = \"m\"\ndefault-run = \"m\"\n\n[[bin]]\nname = \"m\"\n\n[[test]]\nname = \"t\"\n";
        let expected = "[package]\nautobins = false\nname = \"m\"\n\n[[test]]\nname = \"t\"\n";
        assert_eq!(without_programs(manifest), expected);
    }
}
