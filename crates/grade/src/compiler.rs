//! The compiler's command for a module's test program: recorded while Cargo builds the clean course, and repeated for
//! each answer. Cargo itself would take a third of the time that an answer needs.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The variable with the file to record in. Cargo then starts this program instead of the compiler, as
/// <https://doc.rust-lang.org/cargo/reference/environment-variables.html> describes for `RUSTC_WRAPPER`.
pub(crate) const RECORD_IN: &str = "GRADE_RECORD_COMPILER_IN";

/// A compiler's command, without the compiler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

/// Runs the compiler in the way that Cargo asks for, and records the command if it compiles a test program. Returns
/// `None` if this process is not to be a compiler.
pub(crate) fn record_if_asked() -> Option<ExitCode> {
    let folder = PathBuf::from(std::env::var_os(RECORD_IN)?);
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next()?;
    let arguments: Vec<String> = arguments.collect();
    let values = |option: &str| values(&arguments, option);
    let is_test = values("--cfg").contains(&"test");
    if is_test && let [name] = values("--crate-name")[..] {
        let of_cargo = |name: &str| name.starts_with("CARGO_") && name != "CARGO_MAKEFLAGS";
        let recorded = Recorded {
            arguments: arguments.clone(),
            variables: std::env::vars().filter(|(name, _)| of_cargo(name)).collect(),
        };
        let file = folder.join(format!("{name}.json"));
        let written = serde_json::to_vec(&recorded).map_err(anyhow::Error::from);
        if let Err(error) = written.and_then(|text| Ok(fs::write(&file, text)?)) {
            eprintln!("can't write {}: {error}", file.display());
            return Some(ExitCode::FAILURE);
        }
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("can't run {program}: {error}");
    Some(ExitCode::FAILURE)
}

/// Returns the values of an option that stands before each of them.
fn values<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
    arguments.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
}

impl Recorded {
    /// Reads what was recorded.
    ///
    /// # Errors
    /// Fails if nothing was.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text = fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| file.display().to_string())
    }

    /// Returns the name of the program that the command makes.
    pub(crate) fn output(&self) -> String {
        let name = values(&self.arguments, "--crate-name").pop().unwrap_or_default();
        let extra =
            values(&self.arguments, "-C").into_iter().find_map(|value| value.strip_prefix("extra-filename="));
        format!("{name}{}", extra.unwrap_or_default())
    }

    /// Returns the variables that Cargo set, for a package in another folder.
    pub(crate) fn variables(&self, package: &Path) -> impl Iterator<Item = (&str, String)> {
        let package = package.display().to_string();
        self.variables.iter().filter_map(move |(name, value)| match name.as_str() {
            "CARGO_MANIFEST_DIR" => Some((name.as_str(), package.clone())),
            "CARGO_MANIFEST_PATH" => Some((name.as_str(), format!("{package}/Cargo.toml"))),
            _ if name.starts_with("CARGO_PKG_") || name == "CARGO_CRATE_NAME" => {
                Some((name.as_str(), value.clone()))
            }
            _ => None,
        })
    }

    /// Returns the arguments that compile the checks of one exercise into `out`, with messages for people.
    pub(crate) fn arguments(&self, checks: &str, out: &Path, incremental: &Path) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut own = self.arguments.iter();
        while let Some(argument) = own.next() {
            match argument.as_str() {
                "--out-dir" => {
                    own.next();
                }
                "-C" => match own.next() {
                    Some(value) if value.starts_with("incremental=") => {}
                    Some(value) => arguments.extend([argument.clone(), value.clone()]),
                    None => {}
                },
                _ if argument.starts_with("--error-format") || argument.starts_with("--json") => {}
                _ if argument.starts_with("--diagnostic-width") => {}
                _ => arguments.push(argument.clone()),
            }
        }
        for cfg in ["one_exercise", checks] {
            arguments.extend(["--cfg".to_owned(), cfg.to_owned()]);
        }
        arguments.extend(["--out-dir".to_owned(), out.display().to_string()]);
        arguments.extend(["-C".to_owned(), format!("incremental={}", incremental.display())]);
        // An incremental build makes up to 256 object files, and copying and linking them takes a fifth of the time.
        arguments.extend(["-C", "codegen-units=32"].map(str::to_owned));
        arguments.extend(["--color=never", "--diagnostic-width=100"].map(str::to_owned));
        arguments
    }

    /// Returns the folders that hold what the command reads: dependencies and their native libraries.
    pub(crate) fn reads(&self) -> Vec<PathBuf> {
        let folder = |path: &str| {
            let path = path.split_once('=').map_or(path, |(_, path)| path);
            path.starts_with('/').then(|| PathBuf::from(path))
        };
        let mut reads: Vec<PathBuf> = values(&self.arguments, "-L").into_iter().filter_map(folder).collect();
        reads.extend(
            values(&self.arguments, "--extern")
                .into_iter()
                .filter_map(folder)
                .filter_map(|path| path.parent().map(Path::to_owned)),
        );
        reads.sort();
        reads.dedup();
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Recorded {
        let arguments = [
            "--crate-name",
            "m01_init",
            "--error-format=json",
            "--json=artifacts",
            "--cfg",
            "test",
            "-C",
            "incremental=/i",
            "-C",
            "extra-filename=-7f",
            "--out-dir",
            "/o",
            "-L",
            "dependency=/t/deps",
            "--extern",
            "anyhow=/t/deps/libanyhow.rlib",
        ];
        Recorded {
            arguments: arguments.map(str::to_owned).to_vec(),
            variables: ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_HOME"]
                .map(|name| (name.to_owned(), "x".to_owned()))
                .to_vec(),
        }
    }

    #[test]
    fn an_answer_is_compiled_as_cargo_did_but_elsewhere_and_for_people() {
        let arguments = recorded().arguments("devices", Path::new("/out"), Path::new("/inc")).join(" ");
        assert_eq!(
            arguments,
            "--crate-name m01_init --cfg test -C extra-filename=-7f -L dependency=/t/deps --extern \
             anyhow=/t/deps/libanyhow.rlib --cfg one_exercise --cfg devices --out-dir /out -C incremental=/inc \
             -C codegen-units=32 --color=never --diagnostic-width=100"
        );
        assert_eq!(recorded().output(), "m01_init-7f");
        assert_eq!(recorded().reads(), [PathBuf::from("/t/deps")]);
    }

    #[test]
    fn the_variables_are_those_of_the_package() {
        let variables: Vec<_> = recorded()
            .variables(Path::new("/j/modules/01_init"))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(variables, ["CARGO_MANIFEST_DIR=/j/modules/01_init", "CARGO_PKG_NAME=x"]);
    }
}
