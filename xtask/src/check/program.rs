//! Test programs with many variants of an exercise. Building a separate program for each of hundreds of variants would
//! take three times as long: for each program, the compiler would read the same crates and the linker would write the
//! same code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use course::syllabus::Course;

use super::member;
use super::variants::Variant;

/// The maximum number of variants in a program. Programs are built in parallel, so there should be several.
const VARIANTS_EACH: usize = 16;

/// The folder for the variants' sources. A variant's checks run in its folder there, just as Cargo runs a package's
/// checks in the package's folder.
const VARIANTS: &str = "variants";

/// A test program, as a package of the scratch workspace.
pub(super) struct Program {
    pub(super) package: String,
    /// The names of its variants.
    pub(super) variants: Vec<String>,
    manifest: String,
    /// The name that the checks use for the exercise's library: `multi_gpu`.
    library: String,
}

impl Program {
    /// Distributes variants among programs. Each program has variants of only one exercise. The names of the packages
    /// begin with `kind`: workspaces with different variants of an exercise share their build outputs, and Cargo would
    /// take a program of one for a program of another.
    pub(super) fn all<'v>(
        course: &Course,
        kind: &str,
        solutions: &BTreeMap<PathBuf, String>,
        variants: impl Iterator<Item = &'v Variant>,
    ) -> anyhow::Result<Vec<Self>> {
        let mut by_exercise: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Variant { exercise, name, .. } in variants {
            by_exercise.entry(exercise).or_default().push(name.clone());
        }
        let mut programs = Vec::new();
        for (id, names) in by_exercise {
            let module = course.exercise(id)?.folder();
            let library = crate_name(solutions, module)?;
            let manifest = Path::new(&module).join("Cargo.toml");
            let manifest = solutions
                .get(&manifest)
                .with_context(|| format!("solutions/ has no {}", manifest.display()))?;
            for (at, variants) in names.chunks(VARIANTS_EACH).enumerate() {
                let package = format!("{kind}_{}_{at}", id.replace('/', "_"));
                let manifest = manifest.replace(&format!("s{module}"), &package);
                programs.push(Self {
                    manifest: with_main(&member::manifest(&manifest), &package)?,
                    variants: variants.to_vec(),
                    library: library.clone(),
                    package,
                });
            }
        }
        Ok(programs)
    }

    /// Returns the lines of the workspace's manifest that say how to build the program. Programs are built in parallel,
    /// and to divide each of them would take a fifth more processor time. The dependencies are built as for students, so
    /// that Cargo uses what the repository has built.
    pub(super) fn profile(&self) -> String {
        format!("\n[profile.dev.package.{}]\ncodegen-units = 1\n", self.package)
    }

    /// Returns the files of the package in the workspace `folder`, containing the variants that `has` selects.
    pub(super) fn files(&self, folder: &Path, has: impl Fn(&str) -> bool) -> [(PathBuf, String); 2] {
        let Self { package, library, .. } = self;
        let (mut modules, mut arms) = (String::new(), String::new());
        for name in self.variants.iter().filter(|name| has(name)) {
            let sources = folder.join(VARIANTS).join(name);
            let sources = sources.display();
            let _ = write!(
                modules,
                "mod {name} {{\n    #[path = \"{sources}/src/lib.rs\"]\n    pub mod {library};\n    \
                 #[path = \"{sources}/tests/exercise/mod.rs\"]\n    pub mod exercise;\n}}\n\n"
            );
            let _ = writeln!(arms, "        Some(\"{name}\") => {name}::exercise::checks(),");
        }
        let main = format!(
            "{modules}fn main() -> std::process::ExitCode {{\n    \
             let folder = std::env::current_dir().expect(\"a current folder\");\n    \
             let checks = match folder.file_name().and_then(|name| name.to_str()) {{\n{arms}        \
             _ => panic!(\"run it in the folder of a variant\"),\n    }};\n    lab::check::run(checks)\n}}\n"
        );
        let package = Path::new("members").join(package);
        [(package.join("Cargo.toml"), self.manifest.clone()), (package.join("tests/main.rs"), main)]
    }
}

/// Returns a variant's folder in the workspace.
pub(super) fn folder_of_variant(name: &str) -> PathBuf {
    Path::new(VARIANTS).join(name)
}

/// Returns the variant that a source file belongs to.
pub(super) fn variant_of(file: &Path) -> Option<&str> {
    let mut parts = file.iter().skip_while(|part| *part != VARIANTS);
    parts.nth(1)?.to_str()
}

/// Returns the name that the checks use for a module's library: the library contains `use crate as multi_gpu;`.
pub(super) fn crate_name(solutions: &BTreeMap<PathBuf, String>, module: &str) -> anyhow::Result<String> {
    let path = format!("{module}/src/lib.rs");
    let text = solutions.get(Path::new(&path)).with_context(|| format!("solutions/ has no {path}"))?;
    let name = text.lines().find_map(|line| line.strip_prefix("use crate as ")?.strip_suffix(';'));
    Ok(name.with_context(|| format!("solutions/{path} has no line `use crate as …;`"))?.to_owned())
}

/// Returns a manifest with a test program instead of the library, whose sources are part of the program.
fn with_main(manifest: &str, package: &str) -> anyhow::Result<String> {
    let (before, after) = manifest.split_once("[lib]\n").context("the manifest has no [lib]")?;
    let after = after.split_once("\n[").map_or("", |(_, after)| after);
    let test = format!("[[test]]\nname = \"{package}\"\npath = \"tests/main.rs\"\nharness = false\n");
    Ok(format!("{before}{test}\n[{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_file_belongs_to_its_variant() {
        assert_eq!(variant_of(Path::new("/target/check/variants/x_a/src/a.rs")), Some("x_a"));
        assert_eq!(variant_of(Path::new("members/m01/src/a.rs")), None);
    }

    #[test]
    fn a_program_has_no_library() {
        let manifest = "[package]\n\n[lib]\nharness = false\n\n[dependencies]\n";
        let expected = "[package]\n\n[[test]]\nname = \"v\"\npath = \"tests/main.rs\"\nharness = false\n\n[dependencies]\n";
        assert_eq!(with_main(manifest, "v").unwrap(), expected);
    }

    #[test]
    fn only_selected_variants_are_modules() {
        let program = Program {
            package: "v_a_0".to_owned(),
            variants: ["x_b", "x_c"].map(str::to_owned).to_vec(),
            manifest: String::new(),
            library: "init".to_owned(),
        };
        let [_, (path, main)] = program.files(Path::new("/check"), |name| name == "x_c");
        assert_eq!(path, Path::new("members/v_a_0/tests/main.rs"));
        assert!(main.contains("mod x_c {") && !main.contains("x_b"), "{main}");
        assert!(main.contains("#[path = \"/check/variants/x_c/src/lib.rs\"]\n    pub mod init;"), "{main}");
    }
}
