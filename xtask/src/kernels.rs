//! `cargo xtask kernels`: compiles CUDA C to PTX, through `cudarc::nvrtc`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use course::replace::replace;
use cudarc::nvrtc::{self, CompileError, CompileOptions, compile_ptx_with_opts};

/// The PTX of this NVRTC has ISA version 8.0, which driver 525 and later accept.
const COMPILER: (i32, i32) = (12, 0);
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12==12.0.140";
/// The oldest architecture that the course runs on. A driver compiles its PTX for any newer one.
const ARCHITECTURE: &str = "compute_70";

/// Options of `cargo xtask kernels`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a PTX file differs from what its source compiles to
    #[arg(long)]
    check: bool,
    /// Compile the virtual GPU's test kernels instead, with NVRTC 12.0 or 12.9, whichever is installed
    #[arg(long)]
    tests: bool,
    /// The folder with CUDA's headers: `include` from nvidia-cuda-runtime-cu12 (from 12.9 on, nvidia-cuda-cccl-cu12 as
    /// well)
    #[arg(long, value_name = "DIR", requires = "tests")]
    include: Vec<PathBuf>,
}

/// The course's kernels and their PTX.
const KERNELS: &str = "crates/lab/kernels";

/// The kernels that the virtual GPU's own tests run. Their PTX is in one folder per NVRTC and architecture.
const TESTS: &str = "crates/conformance/tests/kernels";
const TEST_COMPILERS: [(i32, i32); 2] = [(12, 0), (12, 9)];
const TEST_ARCHITECTURES: [&str; 2] = ["compute_70", "compute_90"];

/// The PTX compiled from a source file, and its path next to the source.
struct Compiled {
    path: PathBuf,
    ptx: String,
}

impl Compiled {
    fn is_on_disk(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|found| found == self.ptx)
    }
}

/// Compiles every kernel, and then either compares the PTX with the files or writes those that differ.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")?;
    let all = if options.tests {
        compile_tests(root, &options.include)?
    } else {
        require_compiler()?;
        compile_folder(root, KERNELS)?
    };
    let stale: Vec<&Compiled> = all.iter().filter(|compiled| !compiled.is_on_disk()).collect();
    if options.check {
        let names: Vec<String> = stale.iter().map(|compiled| compiled.path.display().to_string()).collect();
        ensure!(
            names.is_empty(),
            "these files differ from what their sources compile to:\n  {}\nhelp: run `cargo xtask kernels{}`",
            names.join("\n  "),
            if options.tests { " --tests" } else { "" }
        );
        println!("kernels: {} files are up to date", all.len());
        return Ok(());
    }
    for compiled in &stale {
        replace(&compiled.path, &compiled.ptx)?;
        println!("kernels: wrote {}", compiled.path.display());
    }
    println!("kernels: {} files, {} changed", all.len(), stale.len());
    Ok(())
}

/// Returns whether any NVRTC version can be loaded.
pub(crate) fn is_compiler_installed() -> bool {
    // SAFETY: the call only loads a shared library by its well-known names; NVRTC's initializers have no preconditions.
    unsafe { nvrtc::sys::is_culib_present() }
}

/// Checks that the required version of NVRTC is installed. Another version would change every PTX file.
pub(crate) fn require_compiler() -> anyhow::Result<()> {
    let help = format!(
        "help: `pip install --target DIR {PACKAGE}`, then set LD_LIBRARY_PATH=DIR/nvidia/cuda_nvrtc/lib; no GPU is needed"
    );
    let (major, minor) = compiler_version().with_context(|| help.clone())?;
    ensure!(
        (major, minor) == COMPILER,
        "NVRTC {major}.{minor} is installed, but the PTX must be compiled with {}.{}\n{help}",
        COMPILER.0,
        COMPILER.1
    );
    Ok(())
}

fn compiler_version() -> anyhow::Result<(i32, i32)> {
    ensure!(is_compiler_installed(), "NVRTC (libnvrtc.so.12) is not installed here");
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for writes for the duration of the call.
    let answer = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    answer.result().context("nvrtcVersion failed")?;
    Ok((major, minor))
}

/// Compiles each test kernel for each architecture, using the installed compiler.
fn compile_tests(root: &Path, include: &[PathBuf]) -> anyhow::Result<Vec<Compiled>> {
    let (major, minor) = compiler_version()?;
    ensure!(
        TEST_COMPILERS.contains(&(major, minor)),
        "NVRTC {major}.{minor} is installed, but the tests' PTX must be compiled with one of {TEST_COMPILERS:?}"
    );
    let mut all = Vec::new();
    for source in
        files_in(&root.join(TESTS))?.iter().filter(|path| path.extension() == Some(OsStr::new("cu")))
    {
        for architecture in TEST_ARCHITECTURES {
            let options = CompileOptions {
                arch: Some(architecture),
                include_paths: include.iter().map(|path| path.display().to_string()).collect(),
                options: vec!["--device-int128".to_owned()],
                ..Default::default()
            };
            let mut compiled = compile(root, source, options)?;
            let name = compiled.path.file_name().context("a source has a name")?;
            compiled.path = root.join(TESTS).join(format!("{major}.{minor}-{architecture}")).join(name);
            all.push(compiled);
        }
    }
    Ok(all)
}

/// Compiles each `.cu` file in `root/folder`, in alphabetical order. A PTX file without a source is an error.
fn compile_folder(root: &Path, folder: &str) -> anyhow::Result<Vec<Compiled>> {
    let files = files_in(&root.join(folder))?;
    let has = |extension: &'static str| {
        files.iter().filter(move |path| path.extension() == Some(OsStr::new(extension)))
    };
    if let Some(orphan) = has("ptx").find(|ptx| !files.contains(&ptx.with_extension("cu"))) {
        bail!("{} has no source: {} is missing", orphan.display(), orphan.with_extension("cu").display());
    }
    let all: Vec<Compiled> = has("cu")
        .map(|source| {
            let options = CompileOptions {
                arch: Some(ARCHITECTURE),
                options: vec!["-lineinfo".to_owned()],
                ..Default::default()
            };
            compile(root, source, options)
        })
        .collect::<anyhow::Result<_>>()?;
    ensure!(!all.is_empty(), "{folder} contains no .cu files");
    Ok(all)
}

fn files_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut files = read().with_context(|| format!("can't list {}", folder.display()))?;
    files.sort();
    Ok(files)
}

fn compile(root: &Path, source: &Path, options: CompileOptions) -> anyhow::Result<Compiled> {
    let text = fs::read_to_string(source).with_context(|| format!("can't read {}", source.display()))?;
    let name = source.strip_prefix(root)?.to_str().context("a kernel's path is UTF-8")?;
    let options = CompileOptions { name: Some(name.to_owned()), ..options };
    match compile_ptx_with_opts(&text, options) {
        Ok(ptx) => {
            Ok(Compiled { path: source.with_extension("ptx"), ptx: with_relative_file(&ptx.to_src(), name) })
        }
        Err(CompileError::CompileError { log, .. }) => {
            bail!("{name} does not compile:\n{}", log.to_string_lossy())
        }
        Err(other) => Err(other).with_context(|| format!("NVRTC failed on {name}")),
    }
}

/// Removes the working directory that NVRTC adds to the file's name. The PTX is then the same on every machine.
fn with_relative_file(ptx: &str, name: &str) -> String {
    let mut lines: Vec<String> = ptx.lines().map(str::to_owned).collect();
    for line in &mut lines {
        if line.trim_start().starts_with(".file")
            && line.ends_with(&format!("/{name}\""))
            && let Some((directive, _)) = line.split_once('"')
        {
            *line = format!("{directive}\"{name}\"");
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_that_names_the_file_changes() {
        let ptx = "// kernels/x.cu\n\t.loc\t1 6 0\n\t.file\t1 \"/anywhere/kernels/x.cu\"\n";
        let expected = "// kernels/x.cu\n\t.loc\t1 6 0\n\t.file\t1 \"kernels/x.cu\"\n";
        assert_eq!(with_relative_file(ptx, "kernels/x.cu"), expected);
    }
}
