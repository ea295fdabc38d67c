//! Describes a panic in terms of the exercise, with the exercise's line.

use std::panic::PanicHookInfo;
use std::path::Path;
use std::thread;

use virtual_gpu_core::source_location::{CallSite, is_below};

use crate::tier::{CRATE_ROOT, own_sources};

/// Returns a panic's message, followed by its location and thread on the next line.
pub(crate) fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let (message, place) = message_and_place(panic);
    let place = place.map_or_else(String::new, |place| format!("\n  at {place}"));
    let thread = match thread::current().name() {
        None | Some("main") => String::new(),
        Some(name) => format!(", in thread `{name}`"),
    };
    format!("{message}{place}{thread}")
}

/// Returns a panic's message and location. If a library panics, the location is the line in the exercise that called
/// the library, if there is one.
pub(crate) fn message_and_place(panic: &PanicHookInfo<'_>) -> (String, Option<String>) {
    let message = panic.payload_as_str().unwrap_or("a panic without a message");
    let place = panic.location().map(|place| {
        let own = own_sources();
        // Cargo passes paths to the compiler that are absolute or relative to the root of the workspace.
        let is_own = own.as_deref().is_some_and(|own| is_in(Path::new(place.file()), own));
        match own.filter(|_| !is_own).and_then(|own| innermost_line(&own)) {
            Some(line) => format!("{line}, which calls {}:{}", short(place.file()), place.line()),
            None => place.to_string(),
        }
    });
    let message = match panic.location().is_some_and(|place| place.file().contains("/cudarc-")) {
        true => in_words(message),
        false => message.to_owned(),
    };
    (message, place)
}

/// Explains what a cudarc assertion means for the caller.
fn in_words(message: &str) -> String {
    let words = match message {
        "assertion failed: dst.len() >= src.len()" => {
            "a copy into a buffer that is too short: the destination has fewer elements than the source"
        }
        "assertion failed: start <= end && end <= self.len"
        | "called `Option::unwrap()` on a `None` value" => {
            "a part of a buffer whose range goes beyond the buffer's end"
        }
        "assertion failed: self.len.is_multiple_of(chunk_size)" => {
            "chunks of a buffer whose length is not a multiple of the chunk length"
        }
        _ => return message.to_owned(),
    };
    format!("{words} (cudarc: {message})")
}

/// Returns whether a path from the compiler is inside a folder, and not the root of its crate, where the checks start.
fn is_in(file: &Path, folder: &Path) -> bool {
    is_below(&root_of(folder).join(file), folder) && !file.ends_with(CRATE_ROOT)
}

/// Returns the root of the workspace that contains a folder. The compiler's relative paths start there.
fn root_of(folder: &Path) -> &Path {
    folder.ancestors().find(|root| root.join("Cargo.lock").is_file()).unwrap_or(Path::new("/"))
}

/// Returns the innermost line of the calling thread's stack whose file is in `folder`, as a path from the root of the
/// workspace and a line number.
fn innermost_line(folder: &Path) -> Option<String> {
    let found = CallSite::here().find(|line| is_in(&line.file, folder))?;
    let file = found.file.strip_prefix(root_of(folder)).unwrap_or(&found.file);
    Some(format!("{}:{}", file.display(), found.line))
}

/// Shortens the path of a dependency, so that it starts at the package.
fn short(file: &str) -> &str {
    file.split_once("/registry/src/")
        .and_then(|(_, path)| path.split_once('/'))
        .map_or(file, |(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assertion_of_cudarc_is_explained_for_the_caller() {
        let text = in_words("assertion failed: dst.len() >= src.len()");
        assert!(text.starts_with("a copy into a buffer that is too short"), "{text}");
        assert_eq!(in_words("not yet implemented"), "not yet implemented");
    }

    #[test]
    fn relative_and_absolute_paths_are_found_in_their_folder() {
        let root = root_of(Path::new(env!("CARGO_MANIFEST_DIR")));
        let folder = root.join("modules/01_init/src");
        assert!(is_in(&root.join("modules/01_init/src/a.rs"), &folder));
        assert!(is_in(Path::new("modules/01_init/src/a.rs"), &folder));
        assert!(!is_in(Path::new("tests/01_init/a.rs"), &folder));
        assert!(!is_in(&root.join("modules/01_init/src/../../../tests/01_init/a.rs"), &folder));
    }

    #[test]
    fn the_innermost_line_belongs_to_the_caller() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        // This function is in the folder itself, so its own line comes first.
        assert!(innermost_line(&folder).unwrap().starts_with("crates/lab/src/panics.rs:"));
        assert_eq!(innermost_line(Path::new("/nowhere")), None);
        assert_eq!(short("/x/registry/src/index/cudarc-0.19.10/src/a.rs"), "cudarc-0.19.10/src/a.rs");
    }
}
