//! Runs the examples from cudarc's own package on the virtual GPU. These programs were not written for the course.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{cargo, command, target};

/// The package with the examples in the scratch workspace.
const PACKAGE: &str = "cudarc_examples";

/// An example, with its expected output.
struct Example {
    name: &'static str,
    /// The value of `VIRTUAL_GPU_CHECKS`.
    checks: &'static str,
    succeeds: bool,
    says: &'static [&'static str],
}

const fn runs(name: &'static str, says: &'static [&'static str]) -> Example {
    Example { name, checks: "error", succeeds: true, says }
}

/// The examples that need only the driver and NVRTC. Some of them only assert their results and print nothing.
const EXAMPLES: &[Example] = &[
    runs("01-allocate", &[]),
    runs("02-copy", &[]),
    runs("03-launch-kernel", &["Found [0.841471, 0.90929747, 0.14112]"]),
    runs("04-streams", &["Found [0.841471, 0.90929747, 0.14112]"]),
    runs("05-device-repr", &[]),
    runs(
        "06-threading",
        &["Hello from the cuda kernel in thread 0\n", "Hello from the cuda kernel in thread 9\n"],
    ),
    runs("09-constant-memory", &["'coefficients' has 16 bytes", "All results match expected values!"]),
    runs("10-function-attributes", &["Static shared memory:     0 bytes", "Max threads per block:    1024"]),
    runs(
        "12-context-config",
        &["Updated stack size: 2048 bytes", "Updated cache config: CU_FUNC_CACHE_PREFER_SHARED"],
    ),
    // The example uses handle 0 for the default stream of each GPU, but that handle means the default stream of the
    // current context. cudarc makes the other GPU's context current while it copies. So the copy is not guaranteed to
    // happen before the read that follows it.
    Example {
        name: "13-copy-multi-gpu",
        checks: "error",
        succeeds: false,
        says: &["data race on GPU 1", "the default stream of GPU 1 wait for the default stream of GPU 0"],
    },
    Example { name: "13-copy-multi-gpu", checks: "warn", succeeds: true, says: &["data race on GPU 1"] },
    runs("matmul-kernel", &["Found [7.0, 10.0, 15.0, 22.0]"]),
    runs("nvrtc-compile", &["Compilation succeeded!"]),
];

/// Returns the files of the examples' package. The sources remain where Cargo unpacked them.
pub(super) fn files(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let folder = source(root)?.join("examples");
    let mut manifest = format!(
        "[package]\nname = \"{PACKAGE}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ncudarc.workspace = true\nlab.workspace = true\n"
    );
    let mut names: Vec<&str> = EXAMPLES.iter().map(|example| example.name).collect();
    names.dedup();
    for name in names {
        let path = folder.join(format!("{name}.rs"));
        ensure!(path.is_file(), "cudarc has no example {}", path.display());
        write!(manifest, "\n[[example]]\nname = \"{name}\"\npath = \"{}\"\n", path.display())?;
    }
    let package = Path::new("members").join(PACKAGE);
    Ok(BTreeMap::from([
        (package.join("Cargo.toml"), manifest),
        (package.join("src/lib.rs"), "//! Holds cudarc's examples.\n".to_owned()),
    ]))
}

/// Builds the examples in the scratch workspace `scratch` and runs them. Returns a problem for each unexpected result.
pub(super) fn check(root: &Path, scratch: &Path) -> anyhow::Result<Vec<String>> {
    let target = target(root);
    let mut build = cargo(scratch);
    build.args(["build", "--quiet", "-p", PACKAGE, "--examples"]).env("CARGO_TARGET_DIR", &target);
    let mut problems = command(&mut build)?;
    if problems.is_empty() {
        let libraries = scratch.join("virtual");
        link(&target.join("debug/deps/libvirtual_cuda.so"), &libraries.join("libcuda.so"))?;
        for example in EXAMPLES {
            let program = target.join("debug/examples").join(example.name);
            problems.extend(run(example, &program, &source(root)?, &libraries)?);
        }
    }
    Ok(problems)
}

/// Runs an example in the folder with its own files, using the virtual driver as `libcuda.so`.
fn run(example: &Example, program: &Path, folder: &Path, libraries: &Path) -> anyhow::Result<Option<String>> {
    let Example { name, checks, succeeds, says } = example;
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = [libraries.to_owned()].into_iter().chain(std::env::split_paths(&inherited));
    let output = Command::new(program)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", std::env::join_paths(paths)?)
        .env("VIRTUAL_GPU_CHECKS", checks)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("can't run {}", program.display()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let missing: Vec<&str> = says.iter().copied().filter(|words| !text.contains(words)).collect();
    let ended = output.status.success() == *succeeds;
    Ok((!ended || !missing.is_empty()).then(|| {
        format!(
            "{name} with VIRTUAL_GPU_CHECKS={checks}: {}, lacks {missing:?}. It says:\n{text}",
            output.status
        )
    }))
}

/// Makes `link` point to `file`.
fn link(file: &Path, link: &Path) -> anyhow::Result<()> {
    ensure!(file.is_file(), "{} was not built", file.display());
    let folder = link.parent().context("the link has no parent folder")?;
    fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    if fs::read_link(link).is_ok_and(|to| to == file) {
        return Ok(());
    }
    let _ = fs::remove_file(link);
    symlink(file, link).with_context(|| format!("can't make {}", link.display()))
}

/// Returns the source folder of the cudarc version that this workspace uses.
fn source(root: &Path) -> anyhow::Result<PathBuf> {
    let output = cargo(root)
        .args(["metadata", "--format-version", "1"])
        .output()
        .context("can't run cargo metadata")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let manifests = text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_cudarc =
        |folder: &&Path| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cudarc-"));
    let folder = manifests.filter_map(|path| Path::new(path).parent()).find(is_cudarc);
    folder.map(Path::to_owned).context("cargo metadata names no cudarc")
}
