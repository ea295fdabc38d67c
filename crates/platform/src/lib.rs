//! Stops the build on platforms that the course can't run on.
//!
//! The crates that would otherwise fail first, with the error of a linker or of a missing function, depend on this
//! crate. So Cargo builds it before them, and its message is the only error.

#[cfg(windows)]
compile_error!(
    "ncclings runs on Linux. On Windows, clone and build it inside WSL2: see site/book/src/platforms.md"
);

#[cfg(target_os = "macos")]
compile_error!(
    "ncclings runs on Linux. On macOS, clone and build it in a container: see site/book/src/platforms.md"
);

#[cfg(not(any(
    windows,
    target_os = "macos",
    all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")),
)))]
compile_error!(
    "ncclings runs on Linux with glibc, on x86-64 or aarch64. For other systems, see site/book/src/platforms.md"
);
