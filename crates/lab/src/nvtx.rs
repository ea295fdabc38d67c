//! Ranges that a profiler shows by name, together with the calls made in them.

use std::sync::OnceLock;

use cudarc::nvtx::{Event, Range, sys};

/// Begins a start/end range, which ends when the result is dropped. Returns `None` if NVIDIA's `libnvToolsExt`,
/// which passes ranges on to the profiler, isn't installed.
pub fn range(name: &str) -> Option<Range> {
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    // SAFETY: this only looks for the library; loading it runs only its own initializers.
    let is_installed = *IS_INSTALLED.get_or_init(|| unsafe { sys::is_culib_present() });
    is_installed.then(|| Event::message(name).range())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_needs_the_library() {
        // SAFETY: this only looks for the library; loading it runs only its own initializers.
        let is_installed = unsafe { sys::is_culib_present() };
        assert_eq!(range("test").is_some(), is_installed);
    }
}
