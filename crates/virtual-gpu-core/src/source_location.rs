//! The place in the user's program where a call was made.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use crate::debug_info::{Frame, frames_at, read_loaded_files};
use crate::loaded_file::InFile;
use crate::map::Map;
use crate::stack;

/// Source paths that belong to a library, set by [`hide_library`].
static LIBRARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes reports skip the sources under `path`: a call made from there is shown at its caller's line.
pub fn hide_library(path: &Path) {
    let mut libraries = LIBRARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !libraries.iter().any(|known| known == path) {
        libraries.push(path.to_owned());
    }
    drop(libraries);
    own_calls().clear();
}

/// A copy of [`LIBRARIES`].
struct Libraries(Vec<PathBuf>);

impl Libraries {
    fn known() -> Self {
        Self(LIBRARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }

    fn have(&self, line: &SourceLine) -> bool {
        self.0.iter().any(|library| line.file.starts_with(library))
    }
}

/// The folder of the program's own sources, set by [`show_sources_first`].
static OWN_SOURCES: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes reports show the nearest line under `path` first: a call made from elsewhere is shown at both lines. Reads the
/// debug information of the files that are loaded.
pub fn show_sources_first(path: &Path) {
    *OWN_SOURCES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(path.to_owned());
    own_calls().clear();
    read_loaded_files();
}

fn own_sources() -> Option<PathBuf> {
    OWN_SOURCES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}

/// The answers of [`CallSite::own_call`], by stack.
type OwnCalls = Map<Arc<[usize]>, Option<(SourceLine, bool)>>;

fn own_calls() -> MutexGuard<'static, OwnCalls> {
    static OWN_CALLS: LazyLock<Mutex<OwnCalls>> = LazyLock::new(Mutex::default);
    OWN_CALLS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns whether a path from the compiler is in a folder. An exercise's crate names its checks by paths that leave its
/// folder: `modules/01_init/src/../../../tests/01_init/devices.rs`.
pub fn is_below(file: &Path, folder: &Path) -> bool {
    let leaves = |inner: &Path| inner.components().any(|part| part == Component::ParentDir);
    file.strip_prefix(folder).is_ok_and(|inner| !leaves(inner))
}

/// Returns a function's own name: `leak` for `core::CudaSlice<T>::leak`, and for the `leak<f32>` of an inlined call.
fn function_name(path: &str) -> &str {
    let mut open = 0;
    let colon = path.bytes().rposition(|byte| {
        open += i32::from(byte == b'>') - i32::from(byte == b'<');
        byte == b':' && open == 0
    });
    let name = &path[colon.map_or(0, |colon| colon + 1)..];
    name.split('<').next().unwrap_or(name)
}

/// The call stack of one API call. It is captured unresolved, in at most a few microseconds, and resolved only when a
/// report prints it. For what a kernel does, it is a line in the kernel.
#[derive(Clone, Debug, Default)]
pub struct CallSite(Origin);

#[derive(Clone, Debug, Default)]
enum Origin {
    #[default]
    Unknown,
    Stack(Arc<[usize]>),
    Kernel(Arc<SourceLine>),
}

impl CallSite {
    /// Returns the location for a call that was not made by any line in the user's program, such as the context's own
    /// allocations.
    pub fn unknown() -> Self {
        Self(Origin::Unknown)
    }

    /// Returns a line in a kernel.
    pub fn in_kernel(line: SourceLine) -> Self {
        Self(Origin::Kernel(Arc::new(line)))
    }

    /// Runs the body of one call of the program, in which [`Self::here`] captures the stack only once.
    pub fn captured_once_in<T>(body: impl FnOnce() -> T) -> T {
        stack::share(body)
    }

    /// Captures the calling thread's stack.
    pub fn here() -> Self {
        Self(Origin::Stack(stack::take()))
    }

    /// Returns the innermost line that does not belong to Rust, a registry crate, or a hidden library. If there is no
    /// such line, returns the innermost line of a hidden library.
    pub fn line(&self) -> Option<SourceLine> {
        let libraries = Libraries::known();
        let mut of_library = None;
        self.find(|line| match libraries.have(line) {
            true => {
                of_library.get_or_insert_with(|| line.clone());
                false
            }
            false => true,
        })
        .or(of_library)
    }

    /// Returns the line of [`Self::line`] in parentheses, after a space; an empty string if there is none.
    pub fn in_parentheses(&self) -> String {
        self.line().map(|line| format!(" ({line})")).unwrap_or_default()
    }

    /// Returns the innermost line of the program's own sources, or of any source if they are not set (see
    /// [`show_sources_first`]).
    pub fn own_line(&self) -> Option<SourceLine> {
        let Some(own) = own_sources() else { return self.line() };
        let libraries = Libraries::known();
        self.find(|line| is_below(&line.file, &own) && !libraries.have(line))
    }

    /// Returns the same line as [`Self::own_line`], and whether the call can return an error to it. Destructors can't.
    /// cudarc's `device_ptr`, `stream_synced_…`, and `leak` can't either: cudarc returns their errors from the next call
    /// on the context.
    ///
    /// Answers are remembered: a program makes its calls from few places.
    pub fn own_call(&self) -> Option<(SourceLine, bool)> {
        /// The maximum number of answers. A program with more stacks is recursive.
        const REMEMBERED: usize = 1 << 12;
        let Origin::Stack(stack) = &self.0 else { return self.find_own_call() };
        if let Some(known) = own_calls().get(&**stack) {
            return known.clone();
        }
        let found = self.find_own_call();
        let mut known = own_calls();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(stack.clone(), found.clone());
        found
    }

    fn find_own_call(&self) -> Option<(SourceLine, bool)> {
        let line = self.own_line()?;
        let keeps_error = ["drop", "device_ptr", "stream_synced_", "leak"];
        let mut reports_errors = true;
        for frames in self.calls() {
            for frame in frames.iter() {
                if line.is_of(frame) {
                    return Some((line, reports_errors));
                }
                let called = function_name(&frame.function);
                reports_errors &= !keeps_error.iter().any(|start| called.starts_with(start));
            }
        }
        Some((line, reports_errors))
    }

    /// Returns whether the call was made from this line, directly or through other calls.
    pub fn is_below(&self, line: &SourceLine) -> bool {
        self.calls().any(|frames| frames.iter().any(|frame| line.is_of(frame)))
    }

    /// Returns the return addresses, innermost first; none if the call site is unknown or in a kernel.
    fn addresses(&self) -> &[usize] {
        match &self.0 {
            Origin::Stack(addresses) => addresses,
            Origin::Unknown | Origin::Kernel(_) => &[],
        }
    }

    /// Returns the functions of each call on the stack, innermost first.
    fn calls(&self) -> impl Iterator<Item = Arc<[Frame]>> {
        // A return address points after its call. The outermost frame may have none.
        self.addresses().iter().filter_map(|address| address.checked_sub(1)).map(frames_at)
    }

    /// Returns the innermost line that `is_it` accepts, skipping Rust's own lines and those of registry crates.
    pub fn find(&self, mut is_it: impl FnMut(&SourceLine) -> bool) -> Option<SourceLine> {
        if let Origin::Kernel(line) = &self.0 {
            return is_it(line).then(|| SourceLine::clone(line));
        }
        for frames in self.calls() {
            // Functions that were inlined at the call come first.
            let mut own =
                frames.iter().filter(|frame| !frame.is_foreign).filter_map(|frame| frame.line.as_ref());
            if let Some(line) = own.find(|line| is_it(line)) {
                return Some(line.clone());
            }
        }
        None
    }
}

/// A call stack that another process can resolve if it has loaded the same files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableCallSite {
    /// Each frame's file, as a key, and offset in it.
    pub frames: Vec<(u64, u64)>,
}

impl CallSite {
    /// Returns the stack for another process.
    pub fn to_portable(&self) -> PortableCallSite {
        let places = self.addresses().iter().filter_map(|&address| InFile::of(address));
        PortableCallSite { frames: places.map(|InFile { file, offset }| (file, offset)).collect() }
    }

    /// Returns a stack that came from another process, without the frames in files that this process has not loaded.
    pub fn from_portable(call_site: &PortableCallSite) -> Self {
        let places = call_site.frames.iter().map(|&(file, offset)| InFile { file, offset });
        let frames: Arc<[usize]> = places.filter_map(InFile::address).collect();
        if frames.is_empty() { Self::unknown() } else { Self(Origin::Stack(frames)) }
    }
}

/// Returns whether a source file belongs to Rust, to a registry crate, to the virtual GPU itself, or to an interpreter.
pub(crate) fn is_foreign(file: &Path) -> bool {
    let text = file.to_string_lossy();
    text.starts_with("/rustc/")
        || text.contains("/registry/src/")
        || text.contains("/rustlib/src/")
        || is_of_virtual_gpu(file)
        || file.is_relative()
        || is_of_interpreter(file)
}

/// Returns whether a source file is in C or C++ and not on this machine. An installed interpreter, such as Python, has
/// debug information but no sources. Its lines say nothing about the program that it runs.
fn is_of_interpreter(file: &Path) -> bool {
    let language = file.extension().and_then(|extension| extension.to_str());
    matches!(language, Some("c" | "cc" | "cpp" | "cxx" | "h" | "hpp")) && !file.exists()
}

/// Returns whether a source file belongs to one of the `virtual-*` crates, which share one folder.
fn is_of_virtual_gpu(file: &Path) -> bool {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let Some(inside) = crates.and_then(|crates| file.strip_prefix(crates).ok()) else { return false };
    let mut parts = inside.iter();
    let is_own = parts.next().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("virtual-"));
    is_own && parts.next().is_some_and(|folder| folder == "src")
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLine {
    /// The file's absolute path.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: u32,
    /// The column where the call begins, counted in bytes from 1.
    pub column: u32,
}

impl SourceLine {
    /// Returns a line in a kernel's source. The file has the name that was passed to the compiler; it is looked up in
    /// the current folder and its ancestors.
    pub fn of_kernel(file: &str, line: u32) -> Self {
        let here = std::env::current_dir().unwrap_or_default();
        let found = here.ancestors().map(|folder| folder.join(file)).find(|file| file.is_file());
        Self { file: found.unwrap_or_else(|| file.into()), line, column: 1 }
    }

    fn is_of(&self, frame: &Frame) -> bool {
        frame.line.as_ref().is_some_and(|line| line.file == self.file && line.line == self.line)
    }

    /// Returns whether it is a line of the program's own sources (see [`show_sources_first`]).
    pub fn is_own(&self) -> bool {
        own_sources().is_some_and(|own| is_below(&self.file, &own))
    }

    /// Returns the file's path from the root of its workspace.
    pub fn shown_path(&self) -> &Path {
        let root = self.file.ancestors().skip(1).find(|folder| folder.join("Cargo.lock").is_file());
        root.and_then(|root| self.file.strip_prefix(root).ok()).unwrap_or(&self.file)
    }
}

impl std::fmt::Display for SourceLine {
    /// Writes `path:line`, with the path from the root of the file's workspace.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.shown_path().display(), self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_a_name_without_its_path_and_types() {
        for (symbol, name) in [
            ("cudarc::driver::safe::core::CudaSlice<T>::leak", "leak"),
            ("leak<f32>", "leak"),
            ("<cudarc::driver::CudaEvent as core::ops::drop::Drop>::drop", "drop"),
            ("core::ptr::drop_in_place<core::option::Option<a::B>>", "drop_in_place"),
            ("main", "main"),
        ] {
            assert_eq!(function_name(symbol), name);
        }
    }

    #[test]
    fn a_path_that_leaves_a_folder_is_not_below_it() {
        let folder = Path::new("/course/modules/01_init/src");
        assert!(is_below(Path::new("/course/modules/01_init/src/devices.rs"), folder));
        assert!(!is_below(
            Path::new("/course/modules/01_init/src/../../../tests/01_init/devices.rs"),
            folder
        ));
    }

    #[test]
    fn a_c_source_that_is_not_here_belongs_to_an_interpreter() {
        assert!(is_foreign(Path::new("/tmp/python-build/Modules/_ctypes/callproc.c")));
        let here = std::env::temp_dir().join(format!("source_{}.c", std::process::id()));
        std::fs::write(&here, "int main() {}").unwrap();
        assert!(!is_foreign(&here));
        std::fs::remove_file(&here).unwrap();
        assert!(!is_foreign(Path::new("/home/me/program/src/main.rs")));
    }
}
