//! The GPUs and the host's memory.

use cudarc::driver::{CudaContext, sys};
use lab::Tier;
use lab::explain::error_text;

use super::diagnosis::{Diagnosis, Status};

/// Describes the GPUs of the tier that one rank runs on, or why there are none.
pub(super) fn gpus() -> Vec<Diagnosis> {
    described_gpus().unwrap_or_else(|error| vec![Diagnosis::new("GPUs", Status::Bad, error_text(&error))])
}

/// Describes the GPUs' names and memory, and which pairs of GPUs can access each other's memory.
fn described_gpus() -> anyhow::Result<Vec<Diagnosis>> {
    let tier = lab::attach(1)?;
    let count = usize::try_from(CudaContext::device_count()?)?;
    let mut diagnoses = Vec::new();
    for ordinal in 0..count {
        let context = CudaContext::new(ordinal)?;
        let (major, minor) = context.compute_capability()?;
        context.bind_to_thread()?;
        let (free, total) = cudarc::driver::result::mem_get_info()?;
        let says = format!(
            "{}, compute capability {major}.{minor}, {} of {} GiB free",
            context.name()?,
            gib(free),
            gib(total)
        );
        diagnoses.push(Diagnosis::good(format!("GPU {ordinal}"), says));
    }
    if count > 1 {
        diagnoses.push(peer_access(tier, count)?);
    }
    Ok(diagnoses)
}

/// Reports which of the first `count` GPUs can't access which other GPUs' memory.
fn peer_access(tier: Tier, count: usize) -> anyhow::Result<Diagnosis> {
    let mut unreachable = Vec::new();
    for ordinal in 0..count {
        for peer in (0..count).filter(|&peer| peer != ordinal) {
            let mut reaches = 0;
            // SAFETY: the number is writable, and both GPUs exist.
            let answer = unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, ordinal as i32, peer as i32) };
            answer.result()?;
            if reaches == 0 {
                unreachable.push(format!("{ordinal} → {peer}"));
            }
        }
    }
    let note = |says: String| Diagnosis::new("peer access", Status::Note, says);
    Ok(match unreachable.as_slice() {
        [] => Diagnosis::good("peer access", "every GPU can access every other GPU's memory"),
        pairs if pairs.len() == count * (count - 1) => {
            note("no GPU can access another GPU's memory".to_owned()).help(match tier {
                Tier::Virtual => {
                    "the modeled node has no NVLink, so kernels can't use peer memory; copies and NCCL use its links"
                }
                _ => "kernels can't use peer memory; copies and NCCL go through host memory",
            })
        }
        pairs => note(format!("not from {}", pairs.join(", ")))
            .help("between these GPUs, copies and NCCL go through host memory, which is slower"),
    })
}

fn gib(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

/// Reports the size of the shared memory, which NCCL needs on several GPUs.
pub(super) fn shared_memory() -> Diagnosis {
    let what = "shared memory";
    match lab::tier::shared_memory() {
        Ok(size) => {
            let says = format!("{} GiB in /dev/shm", gib(size as usize));
            match size < lab::tier::SHARED_MEMORY {
                true => Diagnosis::new(what, Status::Note, says)
                    .help("for NCCL on several real GPUs, start the container with --shm-size=1g --ulimit memlock=-1"),
                false => Diagnosis::good(what, says),
            }
        }
        Err(error) => Diagnosis::new(what, Status::Note, format!("/dev/shm can't be examined: {error}")),
    }
}

/// Reports how much host memory is available according to Linux.
pub(super) fn memory() -> Diagnosis {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()
    });
    match kib {
        Some(kib) if kib < 2 << 20 => {
            Diagnosis::new("host memory", Status::Note, format!("{} GiB free", gib(kib << 10)))
                .help("building the course needs about 2 GiB")
        }
        Some(kib) => Diagnosis::good("host memory", format!("{} GiB free", gib(kib << 10))),
        None => Diagnosis::new("host memory", Status::Note, "/proc/meminfo does not list it"),
    }
}
