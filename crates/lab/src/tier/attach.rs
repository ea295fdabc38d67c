//! Loads a tier's libraries, and returns how many ranks they can run.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, ensure};
use cudarc::driver::{CudaContext, CudaStream};

use super::choice::{RANKS_PER_GPU, Tier, is_virtual_requested, tier_for};
use super::survey::{NcclVersion, survey};
use crate::library::Library;

/// The largest world size for checks on the virtual tier, where GPUs cost nothing.
const VIRTUAL_WORLD_SIZES: usize = 5;

/// The largest world size for checks on real GPUs. The checks' data is exact for this many ranks, but not for any
/// number.
pub(super) const REAL_WORLD_SIZE: usize = 8;

/// The first NCCL version that writes into another GPU's buffer only if the buffer is registered.
const REGISTERED_ONLY: NcclVersion = NcclVersion::new(2, 23, 0);

/// The variable that hides GPUs. A launcher may set it to a process's own GPU.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Loads the libraries for the tier that `ranks` ranks can run on. Call it before the first use of cudarc. Further
/// calls only check that the tier has room for `ranks` ranks.
///
/// # Errors
/// Fails like [`tier_for`], if a library can't be loaded, or if the driver does not start.
pub fn attach(ranks: usize) -> anyhow::Result<Tier> {
    static ATTACHED: Mutex<Option<Tier>> = Mutex::new(None);
    let mut attached = ATTACHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let tier = match *attached {
        Some(tier) => tier,
        None => {
            let tier = tier_for(ranks)?;
            load(tier)?;
            cudarc::driver::result::init().context("the driver failed to start")?;
            *attached = Some(tier);
            tier
        }
    };
    let most = most_ranks(tier)?;
    ensure!(
        ranks <= most,
        "{ranks} ranks need more GPUs than there are: the {tier} tier has room for {most}{}",
        match std::env::var_os(VISIBLE) {
            Some(visible) => format!(" ({VISIBLE}={})", visible.display()),
            None => String::new(),
        }
    );
    ROOM.get_or_init(|| (tier, most));
    Ok(tier)
}

/// The attached tier, and the number of ranks that it has room for.
static ROOM: OnceLock<(Tier, usize)> = OnceLock::new();

/// Returns the attached tier, if there is one.
pub(crate) fn attached() -> Option<Tier> {
    ROOM.get().map(|&(tier, _)| tier)
}

fn load(tier: Tier) -> anyhow::Result<()> {
    match tier {
        Tier::Virtual => load_virtual(),
        Tier::Real | Tier::Shared => {
            if tier == Tier::Shared {
                set("NCCL_MULTI_RANK_GPU_ENABLE");
            }
            // Before that version, ranks of one process write directly into each other's buffers. cudarc allocates them
            // from a memory pool, which other GPUs can't access. NCCL documents this variable for such buffers:
            // <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-direct-disable>.
            if matches!(survey().nccl, Ok(version) if version < REGISTERED_ONLY)
                && std::env::var_os("NCCL_P2P_DIRECT_DISABLE").is_none()
            {
                set("NCCL_P2P_DIRECT_DISABLE");
            }
            // The library that the survey asked, even if another one is called `libnccl.so`.
            Library::open(&built_library("libsystem_nccl.so")?)?;
            Ok(())
        }
    }
}

/// Loads the virtual libraries if only they can be meant. Then each fork of this process has them already. No thread is
/// started.
pub(crate) fn prepare() {
    if is_virtual_requested() {
        // What fails here fails in the forks, too, and they say so.
        let _ = load_virtual();
    }
}

/// Sets one of NCCL's switches.
fn set(switch: &str) {
    // SAFETY: no other thread of the lab is running yet, and NCCL reads the variable only when it starts.
    unsafe { std::env::set_var(switch, "1") };
}

fn load_virtual() -> anyhow::Result<()> {
    let driver = Library::open(&built_library("libvirtual_cuda.so")?)?;
    Library::open(&built_library("libvirtual_nccl.so")?)?;
    // Reports then show the line of the exercise, instead of the lab's line that it called or the check's line that
    // called it.
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    tell_path(&driver, c"virtualGpuHideLibrary", Path::new(own))?;
    let Some(own) = own_sources() else { return Ok(()) };
    tell_path(&driver, c"virtualGpuShowSourcesFirst", &own)?;
    // It has the `main` of the checks, and no exercise.
    tell_path(&driver, c"virtualGpuHideLibrary", &own.join(CRATE_ROOT))
}

/// The file in the source folder that has the `main` of the checks.
pub(crate) const CRATE_ROOT: &str = "lib.rs";

/// Returns the source folder of the exercises being tested, or `None` in other programs. Cargo and the course run a
/// module's checks in the module's folder.
pub(crate) fn own_sources() -> Option<PathBuf> {
    let package = std::env::current_dir().ok()?;
    // The author's checks put starters into `members`, and each changed solution into a folder of `variants`.
    let is_module = ["modules", "solutions", "members", "variants"]
        .iter()
        .any(|name| package.parent().is_some_and(|all| all.ends_with(name)));
    Some(package.join("src")).filter(|sources| is_module && sources.is_dir())
}

/// Calls a virtual driver function that takes a path.
fn tell_path(driver: &Library, function: &CStr, path: &Path) -> anyhow::Result<()> {
    let symbol = driver.symbol(function).context("libvirtual_cuda.so is not the course's virtual driver")?;
    // SAFETY: the function takes a C string and returns nothing.
    let function: extern "C" fn(*const std::ffi::c_char) = unsafe { std::mem::transmute(symbol) };
    let path = CString::new(path.as_os_str().as_bytes())?;
    function(path.as_ptr());
    Ok(())
}

/// Returns a library that Cargo built for this executable: in `deps`, or next to the executable.
///
/// # Errors
/// Fails if it is in neither place.
pub fn built_library(name: &str) -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("can't find this program's own path")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let places = [folder.join("deps"), folder.to_owned(), folder.join("../deps")];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not next to {}: build the program with cargo", executable.display())
    })
}

/// Returns the number of ranks that the attached libraries have room for.
fn most_ranks(tier: Tier) -> anyhow::Result<usize> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    Ok(if tier == Tier::Shared { gpus * RANKS_PER_GPU } else { gpus })
}

/// Returns the world sizes that a check may use on the attached tier, in ascending order: from 1 to 5 on the virtual
/// tier. On real GPUs, where creating a communicator may take seconds, they are 1, 2, 3, and the largest possible, which
/// is at most 8.
///
/// # Panics
/// Panics before [`attach`], because a check without a world size would pass without checking anything.
pub fn world_sizes() -> Vec<usize> {
    let (tier, most) = *ROOM.get().expect("lab::attach must be called before lab::world_sizes");
    sizes(tier, most)
}

fn sizes(tier: Tier, most: usize) -> Vec<usize> {
    match tier {
        Tier::Virtual => (1..=most.min(VIRTUAL_WORLD_SIZES)).collect(),
        Tier::Real | Tier::Shared => {
            let largest = most.min(REAL_WORLD_SIZE);
            (1..=largest.min(3)).chain((largest > 3).then_some(largest)).collect()
        }
    }
}

/// Creates a stream for each rank, on the GPU that the rank uses.
///
/// # Errors
/// Fails if the attached tier has no room for this many ranks, or if a driver call fails.
pub fn streams(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    attach(world_size)?;
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    (0..world_size).map(|rank| Ok(CudaContext::new(rank % gpus)?.new_stream()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_gpus_have_fewer_world_sizes() {
        assert_eq!(sizes(Tier::Virtual, 8), [1, 2, 3, 4, 5]);
        assert_eq!(sizes(Tier::Virtual, 2), [1, 2]);
        for (most, expected) in
            [(1, &[1][..]), (2, &[1, 2]), (3, &[1, 2, 3]), (4, &[1, 2, 3, 4]), (72, &[1, 2, 3, 8])]
        {
            assert_eq!(sizes(Tier::Real, most), expected);
        }
    }
}
