//! `cargo course exec`: runs an unchanged program on the virtual GPU.
//!
//! The program must use CUDA's driver API. The CUDA runtime doesn't work, because it uses undocumented parts of the
//! driver (`cuGetExportTable`) that the virtual driver lacks.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;
use course::progress::folder;

/// The names under which programs look for the driver and NCCL, and which of our libraries each name refers to.
const NAMES: [(&str, &str); 4] = [
    ("libcuda.so", "libvirtual_cuda.so"),
    ("libcuda.so.1", "libvirtual_cuda.so"),
    ("libnccl.so", "libvirtual_nccl.so"),
    ("libnccl.so.2", "libvirtual_nccl.so"),
];

/// The virtual GPU's setting for [`Checks`].
const CHECKS: &str = "VIRTUAL_GPU_CHECKS";

/// The virtual GPU's setting for the node whose times it models, and its value for programs from elsewhere. Their data is
/// not as small as that of the course, for which the default node is ten thousand times as slow.
const TOPOLOGY: (&str, &str) = ("VIRTUAL_GPU_TOPOLOGY", "dgx-h100");

/// What the virtual GPU does about a problem that a real GPU would not notice.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Checks {
    /// The call that finds it fails, and so does all later work on the same GPU, as in the course's own checks
    Error,
    /// It is printed once, and the program goes on, as on a real GPU
    Warn,
    /// Nothing looks for problems
    Off,
}

impl Checks {
    /// Returns the value of [`CHECKS`].
    fn value(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Off => "off",
        }
    }
}

/// Replaces this process with the program. Returns only if that fails.
pub(crate) fn run(
    root: &Path,
    checks: Option<Checks>,
    program: &[String],
) -> anyhow::Result<std::convert::Infallible> {
    let Some((name, arguments)) = program.split_first() else {
        bail!("no program was given; run: cargo course exec -- PROGRAM")
    };
    let libraries = libraries(root)?;
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = [libraries].into_iter().chain(std::env::split_paths(&inherited));
    let value = match (checks, std::env::var_os(CHECKS)) {
        (None, Some(value)) => value,
        (checks, _) => checks.unwrap_or(Checks::Warn).value().into(),
    };
    let topology = std::env::var_os(TOPOLOGY.0).unwrap_or_else(|| TOPOLOGY.1.into());
    let error = Command::new(name)
        .args(arguments)
        .env(CHECKS, value)
        .env(TOPOLOGY.0, topology)
        .env("LD_LIBRARY_PATH", std::env::join_paths(paths).context("LD_LIBRARY_PATH")?)
        .exec();
    Err(error).with_context(|| format!("can't run {name}"))
}

/// Returns a folder where our libraries have the real libraries' names.
fn libraries(root: &Path) -> anyhow::Result<PathBuf> {
    let libraries = folder(root).join("libraries");
    let said = || format!("can't make {}", libraries.display());
    std::fs::create_dir_all(&libraries).with_context(said)?;
    for (name, of) in NAMES {
        let (built, link) = (lab::tier::built_library(of)?, libraries.join(name));
        if std::fs::read_link(&link).is_ok_and(|known| known == built) {
            continue;
        }
        // Another program may be starting with these libraries, so the link is replaced atomically.
        let new = libraries.join(format!("{name}.{}", std::process::id()));
        symlink(&built, &new).and_then(|()| std::fs::rename(&new, &link)).with_context(said)?;
    }
    Ok(libraries)
}
