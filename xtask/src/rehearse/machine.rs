//! A machine whose installed driver and NCCL are the virtual ones.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use course::replace::replace;
use object_rewrite::Rewriter;

/// The folder with a machine's libraries.
pub(super) struct Machine {
    pub(super) gpus: usize,
    nccl: String,
    folder: PathBuf,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.gpus {
            0 => f.write_str("a driver without a GPU"),
            1 => write!(f, "1 GPU, NCCL {}", self.nccl),
            gpus => write!(f, "{gpus} GPUs, NCCL {}", self.nccl),
        }
    }
}

impl Machine {
    /// Installs the virtual libraries that Cargo has built into a folder of their own, under the names that NVIDIA's
    /// packages use: `libcuda.so.1`, `libcuda.so`, and `libnccl.so.2`. `nccl` is the value of `VIRTUAL_NCCL`: what the
    /// versions do differs, see `virtual_gpu_nccl::strict`. `init` is how long NCCL takes to create a communicator, in
    /// seconds.
    ///
    /// # Errors
    /// Fails if a library can't be read or written.
    pub(super) fn build(root: &Path, gpus: usize, nccl: &str, init: Option<f64>) -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let folder = target.join("rehearsal").join(format!("{gpus}-{nccl}"));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let built = |name: &str| target.join("debug/deps").join(name);
        rename(&built("libvirtual_cuda.so"), &folder.join("libcuda.so.1"))?;
        rename(&built("libvirtual_nccl.so"), &folder.join("libnccl.so.2"))?;
        let link = folder.join("libcuda.so");
        if !link.is_symlink() {
            std::os::unix::fs::symlink("libcuda.so.1", &link).with_context(|| link.display().to_string())?;
        }
        let visible = if gpus == 0 {
            "CUDA_VISIBLE_DEVICES = \"\"".to_owned()
        } else {
            format!("VIRTUAL_GPU_COUNT = \"{gpus}\"")
        };
        let mut settings = format!("VIRTUAL_GPU_CHECKS = \"off\"\nVIRTUAL_NCCL = \"{nccl}\"\n{visible}\n");
        if let Some(seconds) = init {
            settings += &format!("VIRTUAL_NCCL_INIT = \"{seconds}\"\n");
        }
        replace(&folder.join("virtual-gpu.toml"), settings)?;
        Ok(Self { gpus, nccl: nccl.to_owned(), folder })
    }

    /// Lets a command run on this machine.
    pub(super) fn install(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", &self.folder);
    }
}

/// Copies a library, and gives the copy the file's name as its SONAME. If it depends on the virtual driver, it then
/// depends on the installed one.
fn rename(library: &Path, copy: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(library).with_context(|| library.display().to_string())?;
    let name = copy.file_name().context("the copy has a name")?.as_encoded_bytes();
    let mut renamed = Vec::new();
    let mut change = || -> object_rewrite::Result<()> {
        let mut library = Rewriter::read(&bytes)?;
        library.elf_set_soname(name.to_vec())?;
        library.elf_replace_needed(&HashMap::from([(b"libcuda.so".to_vec(), b"libcuda.so.1".to_vec())]))?;
        library.write(&mut renamed)
    };
    // `object` expects the section `.gnu.version_r` at a multiple of 8, but linkers align it to 4. Its place depends on the
    // number of dynamic symbols: the remainder by 4 must be 0 or 3.
    change().map_err(|error| anyhow::anyhow!("{}: {error}", library.display()))?;
    replace(copy, renamed)
}
