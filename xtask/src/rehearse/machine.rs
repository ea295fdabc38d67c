//! A machine whose installed driver and NCCL are the virtual ones.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use course::replace::replace;
use elf::ElfBytes;
use elf::abi::{DT_VERNEED, SHT_GNU_VERNEED};
use elf::endian::LittleEndian;
use elf::section::SectionHeader;
use object_rewrite::Rewriter;

/// How far a section that is aligned to 4 bytes is from the next multiple of 8.
const STEP: u64 = 4;

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
    let mut bytes = fs::read(library).with_context(|| library.display().to_string())?;
    align_versions(&mut bytes).with_context(|| library.display().to_string())?;
    let name = copy.file_name().context("the copy has a name")?.as_encoded_bytes();
    let mut renamed = Vec::new();
    let mut change = || -> object_rewrite::Result<()> {
        let mut library = Rewriter::read(&bytes)?;
        library.elf_set_soname(name.to_vec())?;
        library.elf_replace_needed(&HashMap::from([(b"libcuda.so".to_vec(), b"libcuda.so.1".to_vec())]))?;
        library.write(&mut renamed)
    };
    change().map_err(|error| anyhow::anyhow!("{}: {error}", library.display()))?;
    replace(copy, renamed)
}

/// Moves the section `.gnu.version_r` to the next multiple of 8 bytes, where `object` expects it. Linkers align it to 4. The
/// section after it is aligned to 8, so there is room.
fn align_versions(library: &mut [u8]) -> anyhow::Result<()> {
    let (at, size, header, entry) = {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(library)?;
        let (sections, names) = elf.section_headers_with_strtab()?;
        let (sections, names) = sections.zip(names).context("it has no sections")?;
        let is_versions = |section: &SectionHeader| section.sh_type == SHT_GNU_VERNEED;
        let Some(index) = sections.iter().position(|section| is_versions(&section)) else { return Ok(()) };
        let section = sections.get(index)?;
        if section.sh_offset % 8 == 0 {
            return Ok(());
        }
        let end = section.sh_offset + section.sh_size;
        let next = sections.iter().filter(|other| other.sh_offset >= end).map(|other| other.sh_offset).min();
        let name = names.get(section.sh_name as usize)?;
        ensure!(next.is_none_or(|next| next >= end + STEP), "there is no room to move {name}");
        let dynamic = elf.section_header_by_name(".dynamic")?.context("it has no section .dynamic")?;
        let entries = elf.dynamic()?.context("it has no section .dynamic")?;
        let entry =
            entries.iter().position(|entry| entry.d_tag == DT_VERNEED).context("it has no DT_VERNEED")?;
        let header = elf.ehdr.e_shoff as usize + index * usize::from(elf.ehdr.e_shentsize);
        let entry = dynamic.sh_offset as usize + entry * size_of::<[u64; 2]>();
        (section.sh_offset as usize, section.sh_size as usize, header, entry)
    };
    library.copy_within(at..at + size, at + STEP as usize);
    // The fields `sh_addr` and `sh_offset` of the section, and `d_ptr` of the dynamic entry (elf(5)).
    for field in [header + 16, header + 24, entry + 8] {
        let bytes = library.get_mut(field..field + 8).context("a field is outside of the file")?;
        let value = u64::from_le_bytes(bytes.try_into()?) + STEP;
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}
