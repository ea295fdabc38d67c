//! Looks for what an answer must not do, in what the compiler says it has read and in the program that it has made.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use elf::ElfBytes;
use elf::abi::{SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC};
use elf::endian::AnyEndian;
use elf::string_table::StringTable;
use elf::symbol::{Symbol, SymbolTable};

/// The sections whose functions run before or after `main`.
const AROUND_MAIN: [&str; 3] = [".preinit_array", ".init_array", ".fini_array"];

/// Returns the files outside `course` that the compiler has read, by its list of dependencies. The compiler ran in
/// `course`.
pub(crate) fn read_outside(dependencies: &str, course: &Path) -> Vec<PathBuf> {
    let rule = dependencies.lines().find_map(|line| Some(line.split_once(": ")?.1)).unwrap_or_default();
    let mut files: Vec<PathBuf> = rule
        .replace("\\ ", "\0")
        .split_whitespace()
        .map(|path| normal(&course.join(path.replace('\0', " "))))
        .filter(|path| !path.starts_with(course))
        .collect();
    files.sort();
    files.dedup();
    files
}

/// Returns the file that the compiler could not read, by its messages.
pub(crate) fn missing(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("couldn't read `")?;
    Some(rest.split_once('`')?.0)
}

/// Returns a path without `..`, as the text says. Nothing in the clean course is a link.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// What a program does besides what its `main` calls.
pub(crate) struct Hooks {
    /// The bytes of each section in [`AROUND_MAIN`].
    around_main: [u64; 3],
    /// The functions with names as in C, which replace those of the C library.
    functions: BTreeSet<String>,
    /// The names that the program offers to the libraries that it loads, where they replace the libraries' own.
    exports: BTreeSet<String>,
}

impl Hooks {
    /// Reads them from a program.
    ///
    /// # Errors
    /// Fails if the file can't be read, or is not a program.
    pub(crate) fn read(program: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(program).with_context(|| format!("can't read {}", program.display()))?;
        let elf = ElfBytes::<AnyEndian>::minimal_parse(&bytes)?;
        let mut around_main = [0; 3];
        for (name, size) in AROUND_MAIN.iter().zip(&mut around_main) {
            *size = elf.section_header_by_name(name)?.map_or(0, |section| section.sh_size);
        }
        let is_function = |symbol: &Symbol| [STT_FUNC, STT_GNU_IFUNC].contains(&symbol.st_symtype());
        let mut functions = defined(elf.symbol_table()?.context("it has no symbols")?, is_function)?;
        functions.retain(|name| !is_of_rust(name));
        let exports = match elf.dynamic_symbol_table()? {
            Some(table) => defined(table, |_| true)?,
            None => BTreeSet::new(),
        };
        Ok(Self { around_main, functions, exports })
    }

    /// Returns what a program does that the one with the solved exercise does not.
    pub(crate) fn beyond(&self, solved: &Self) -> Option<String> {
        let sections = AROUND_MAIN.iter().zip(self.around_main.iter().zip(solved.around_main));
        if let Some((section, _)) = sections.into_iter().find(|(_, (own, solved))| *own > solved) {
            return Some(format!("it runs code before or after `main`, through the section {section}"));
        }
        let mut replacing =
            self.functions.difference(&solved.functions).chain(self.exports.difference(&solved.exports));
        let function = replacing.next()?;
        Some(format!(
            "it defines a function that other programs know as `{function}`, which could replace one that the checks call"
        ))
    }
}

/// Returns the names of the chosen symbols that a program defines.
fn defined(
    (symbols, names): (SymbolTable<'_, AnyEndian>, StringTable<'_>),
    is_chosen: impl Fn(&Symbol) -> bool,
) -> anyhow::Result<BTreeSet<String>> {
    let defined = symbols.iter().filter(|symbol| symbol.st_shndx != SHN_UNDEF && is_chosen(symbol));
    defined.map(|symbol| Ok(names.get(symbol.st_name as usize)?.to_owned())).collect()
}

/// Returns whether a symbol's name is one that the compiler made from a path: <https://doc.rust-lang.org/rustc/symbol-mangling>.
fn is_of_rust(name: &str) -> bool {
    name.starts_with("_ZN") || name.starts_with("_R")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_outside_the_course_are_found() {
        let course = Path::new("/job/course");
        let rule =
            "out.d: modules/01_init/src/lib.rs modules/01_init/src/../../../tests/a\\ b.rs\n\nout: x\n";
        assert!(read_outside(rule, course).is_empty());
        let rule = "out.d: modules/01_init/src/../../../../solutions/a.rs /etc/hostname tests/mod.rs\n";
        let outside = read_outside(rule, course);
        assert_eq!(outside, [PathBuf::from("/etc/hostname"), PathBuf::from("/job/solutions/a.rs")]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let said = "error: couldn't read `modules/01_init/src/../../../solutions/a.rs`: No such file";
        assert_eq!(missing(said), Some("modules/01_init/src/../../../solutions/a.rs"));
        assert_eq!(missing("error[E0308]: mismatched types"), None);
    }

    #[test]
    fn hooks_beyond_the_solved_program_are_named() {
        let hooks = |init, functions: &[&str]| Hooks {
            around_main: [0, init, 8],
            functions: functions.iter().map(|&name| name.to_owned()).collect(),
            exports: BTreeSet::new(),
        };
        let solved = hooks(16, &["main", "_start"]);
        assert_eq!(hooks(16, &["main"]).beyond(&solved), None);
        assert!(hooks(24, &["main"]).beyond(&solved).unwrap().contains(".init_array"));
        assert!(hooks(16, &["main", "write"]).beyond(&solved).unwrap().contains("`write`"));
        let replacing = Hooks { exports: ["_ZN3lab5check3run".to_owned()].into(), ..hooks(16, &["main"]) };
        assert!(replacing.beyond(&solved).unwrap().contains("`_ZN3lab5check3run`"));
    }

    #[test]
    fn this_program_has_a_main() {
        let own = Hooks::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.functions.contains("main") && own.around_main[1] > 0);
    }
}
