//! Compiles a student's test program without Cargo, which takes a seventh of a second to find that nothing else has
//! changed. Cargo prints the compiler's command when it runs it. As long as nothing that the command depends on has
//! changed, except for the module's own sources and its checks, the same command is run again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

use super::stop::{Stop, Then};
use crate::replace::replace;
use crate::syllabus::{Exercise, Module};

/// The folder for the programs, next to Cargo's `deps`, which has the libraries that they load.
const FOLDER: &str = "checks";

/// The compiler's command for a test program, as Cargo ran it but for the folder of the program.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    compiler: PathBuf,
    arguments: Vec<String>,
    /// Cargo's variables for the compiler.
    variables: BTreeMap<String, String>,
    /// The program that the command makes.
    program: PathBuf,
    /// [`sources`] when Cargo was started.
    sources: u64,
    /// [`libraries`](Self::libraries) after Cargo had ended.
    libraries: u64,
}

/// How the compiler ended.
pub(super) enum Compiled {
    Program(PathBuf),
    /// The compiler found errors. Each message is one line of JSON.
    Failed(Vec<String>),
}

/// What was known about a build before Cargo was started.
pub(super) struct Before {
    file: PathBuf,
    /// The exercise's name among its module's checks.
    checks: String,
    sources: Option<u64>,
}

impl Before {
    /// Notes what Cargo's build of an exercise's checks depends on.
    pub(super) fn new(root: &Path, module: &Module, exercise: &Exercise) -> Self {
        let checks = exercise.checks();
        Self { file: file(root, module, exercise), checks, sources: sources(root, module) }
    }

    /// Records the command, if Cargo says that it ran one for this package.
    pub(super) fn record(self, package: &str, program: &Path, said: &str) {
        let Some(sources) = self.sources else { return };
        let read = |line| Recorded::read(line, package, &self.checks, program, sources);
        let recorded = said.lines().find_map(read);
        // Without the file, Cargo builds the next time, too.
        match recorded.map(|recorded| serde_json::to_string(&recorded)) {
            Some(Ok(text)) => _ = replace(&self.file, text),
            _ => _ = fs::remove_file(&self.file),
        }
    }
}

/// Returns the file with the command for an exercise.
fn file(root: &Path, module: &Module, exercise: &Exercise) -> PathBuf {
    let name = format!("{}-{}.json", module.starter_package(), exercise.checks());
    crate::progress::folder(root).join("compilers").join(name)
}

/// Compiles an exercise's checks with the recorded command, with messages in color or not. Returns `None` if there is no such
/// command, or if something else than the module's sources or its checks has changed. Cargo then has to build.
pub(super) fn compile(
    root: &Path,
    module: &Module,
    exercise: &Exercise,
    color: bool,
    stop: &Stop,
) -> anyhow::Result<Option<Compiled>> {
    let recorded = fs::read(file(root, module, exercise)).ok();
    let Some(recorded) = recorded.and_then(|text| serde_json::from_slice::<Recorded>(&text).ok()) else {
        return Ok(None);
    };
    let is_current = || recorded.libraries() == Some(recorded.libraries);
    if recorded.is_in_color() != color || !is_current() {
        return Ok(None);
    }
    // `cargo clean` has removed it, for example.
    if let Some(folder) = recorded.program.parent()
        && fs::create_dir_all(folder).is_err()
    {
        return Ok(None);
    }
    // Nearly always, the sources are as before. To look at all of them takes a while, in which the compiler already runs.
    let (compiled, sources) = thread::scope(|scope| {
        let sources = scope.spawn(|| sources(root, module));
        let compiled = stop.run(recorded.command(root), |_| Then::GoOn);
        (compiled, sources.join().ok().flatten())
    });
    let (is_compiled, said) = compiled?;
    // Otherwise, another Cargo has replaced a library in the meantime.
    let is_current = sources == Some(recorded.sources) && is_current();
    Ok(is_current.then(|| match is_compiled {
        true => Compiled::Program(recorded.program),
        false => Compiled::Failed(said.lines().map(str::to_owned).collect()),
    }))
}

impl Recorded {
    /// Reads the command from a line that Cargo prints with `-vv`: the variables, the compiler, and its arguments, quoted
    /// as for a shell. Returns `None` for other lines.
    fn read(line: &str, package: &str, checks: &str, program: &Path, sources: u64) -> Option<Self> {
        let command = line.trim().strip_prefix("Running `")?.strip_suffix('`')?;
        let mut words = shlex::split(command)?.into_iter().peekable();
        let mut variables = BTreeMap::new();
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        while let Some((name, value)) = words.peek()?.split_once('=').filter(|(name, _)| is_name(name)) {
            variables.insert(name.to_owned(), value.to_owned());
            words.next();
        }
        let compiler = PathBuf::from(words.next()?);
        let mut arguments: Vec<String> = words.collect();
        let is_it = arguments.windows(2).any(|pair| pair == ["--crate-name", package])
            && arguments.iter().any(|argument| argument == "one_exercise");
        if !is_it {
            return None;
        }
        // Cargo does not know that this command will run again. It must find its own program as it has left it. And in
        // another terminal, the checks of another exercise may be compiled.
        let folder = program.parent()?.with_file_name(FOLDER);
        let out = arguments.iter().position(|argument| argument == "--out-dir")?;
        *arguments.get_mut(out + 1)? = folder.to_str()?.to_owned();
        let extra = arguments.iter_mut().find(|argument| argument.starts_with("extra-filename="))?;
        *extra = format!("extra-filename=-{checks}");
        let program = folder.join(format!("{package}-{checks}"));
        let mut recorded = Self { compiler, arguments, variables, program, sources, libraries: 0 };
        recorded.libraries = recorded.libraries()?;
        Some(recorded)
    }

    /// Returns the command. Its messages are lines of JSON on standard error. With any other arguments, the compiler would
    /// begin without what it knows from the last time.
    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(&self.arguments).current_dir(root).envs(&self.variables);
        command
    }

    /// Returns whether the messages' text is in color.
    fn is_in_color(&self) -> bool {
        let is_json = |argument: &&String| argument.starts_with("--json=");
        self.arguments.iter().find(is_json).is_some_and(|json| json.contains("diagnostic-rendered-ansi"))
    }

    /// Returns a key of the compiler and of the libraries that the command reads: their paths, sizes, and times. Returns
    /// `None` if one is missing.
    fn libraries(&self) -> Option<u64> {
        let externs = self.arguments.windows(2).filter(|pair| pair[0] == "--extern");
        let libraries = externs.filter_map(|pair| Some(Path::new(pair[1].split_once('=')?.1)));
        let mut hasher = DefaultHasher::new();
        for path in libraries.chain([self.compiler.as_path()]) {
            state(path).ok()?.hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// What Cargo builds from, besides the sources of the module at hand.
const SOURCES: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", "crates", "modules", "solutions"];

/// Variables with these prefixes change what Cargo builds:
/// <https://doc.rust-lang.org/cargo/reference/environment-variables.html>.
const VARIABLES: [&str; 6] =
    ["RUST", "CARGO_BUILD_", "CARGO_ENCODED_", "CARGO_INCREMENTAL", "CARGO_PROFILE_", "CARGO_TARGET_"];

/// Returns a key of everything that Cargo builds a module from except for the module's own sources: the path, size, and
/// time of each file, and Cargo's variables. Returns `None` if a file can't be looked at.
fn sources(root: &Path, module: &Module) -> Option<u64> {
    let own = root.join("modules").join(&module.folder).join("src");
    let mut hasher = DefaultHasher::new();
    for name in SOURCES {
        look(&root.join(name), &own, &mut hasher).ok()?;
    }
    // Cargo reads the settings of all folders above, and its own.
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let above = root.ancestors().skip(1).map(|folder| folder.join(".cargo"));
    for folder in above.chain(home) {
        for name in ["config", "config.toml"] {
            look(&folder.join(name), &own, &mut hasher).ok()?;
        }
    }
    let is_of_cargo = |name: &OsString| {
        let name = name.to_string_lossy();
        VARIABLES.iter().any(|start| name.starts_with(start))
    };
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| is_of_cargo(name)).collect();
    variables.sort();
    variables.hash(&mut hasher);
    Some(hasher.finish())
}

/// Adds a file, or all files below a folder except for `without`. A file that does not exist adds nothing.
fn look(path: &Path, without: &Path, hasher: &mut DefaultHasher) -> std::io::Result<()> {
    if path == without {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let mut inside: Vec<PathBuf> =
                fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
            inside.sort();
            inside.iter().try_for_each(|path| look(path, without, hasher))
        }
        Ok(_) => {
            state(path)?.hash(hasher);
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns what changes when a file is written: its path, size, and time.
fn state(path: &Path) -> std::io::Result<(PathBuf, u64, std::time::SystemTime)> {
    let metadata = fs::metadata(path)?;
    Ok((path.to_owned(), metadata.len(), metadata.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_the_test_program_is_read() {
        let own = std::env::current_exe().unwrap();
        let line = format!(
            "     Running `CARGO=/bin/cargo CARGO_PKG_DESCRIPTION='It'\\''s one' {0} --crate-name m01 --json=artifacts \
             --cfg test -C extra-filename=-7f --out-dir /t/debug/deps --extern lab={0} --cfg one_exercise --cfg devices`",
            own.display()
        );
        let program = Path::new("/t/debug/deps/m01-7f");
        let read = Recorded::read(&line, "m01", "devices", program, 5).unwrap();
        assert_eq!(read.variables["CARGO_PKG_DESCRIPTION"], "It's one");
        assert_eq!((&read.compiler, read.sources), (&own, 5));
        assert_eq!(read.program, Path::new("/t/debug/checks/m01-devices"));
        let arguments = format!(
            "--crate-name m01 --json=artifacts --cfg test -C extra-filename=-devices --out-dir /t/debug/checks --extern lab={} --cfg one_exercise --cfg devices",
            own.display()
        );
        assert_eq!(read.arguments.join(" "), arguments);
        for other in [
            line.replace("m01 ", "m02 "),
            line.replace("one_exercise", "other"),
            line.replace("Running", "Fresh"),
        ] {
            assert_eq!(Recorded::read(&other, "m01", "devices", program, 5), None);
        }
    }

    #[test]
    fn a_changed_file_changes_the_key() {
        let root = std::env::temp_dir().join(format!("compiler_sources_{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let module = Module { folder: "01_one".to_owned(), title: String::new() };
        let key = || sources(&root, &module).unwrap();
        write("modules/01_one/src/first.rs", "1");
        let before = key();
        write("modules/01_one/src/first.rs", "12");
        assert_eq!(key(), before);
        for path in
            ["modules/01_one/Cargo.toml", "modules/02_two/src/a.rs", "crates/lab/src/a.rs", "Cargo.lock"]
        {
            let before = key();
            write(path, "1");
            assert_ne!(key(), before, "{path}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
