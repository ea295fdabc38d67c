// mistake: the variable of the rank tells which launcher it was
// fails: environment::the_innermost_launcher_counts
// says: `srun --mpi=pmi2`: expected rank 3, local rank 1, world size 4; got an error
// says: a launcher is known by the variable of its local rank alone

use std::env;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaContext, CudaStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub rank: usize,
    pub local_rank: usize,
    pub world_size: usize,
}

pub struct Launcher {
    pub name: &'static str,
    pub rank: &'static str,
    pub local_rank: &'static str,
    pub world_size: &'static str,
}

pub const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", rank: "RANK", local_rank: "LOCAL_RANK", world_size: "WORLD_SIZE" },
    Launcher {
        name: "mpirun of Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
    },
    Launcher {
        name: "mpirun of MPICH",
        rank: "PMI_RANK",
        local_rank: "MPI_LOCALRANKID",
        world_size: "PMI_SIZE",
    },
    Launcher {
        name: "srun of Slurm",
        rank: "SLURM_PROCID",
        local_rank: "SLURM_LOCALID",
        world_size: "SLURM_NTASKS",
    },
];

pub fn assignment() -> anyhow::Result<Assignment> {
    let launcher = LAUNCHERS.iter().find(|launcher| env::var_os(launcher.rank).is_some());
    let launcher = launcher.with_context(|| {
        format!("no launcher started this process: it has none of {:?}", LAUNCHERS.map(|one| one.local_rank))
    })?;
    let number = |name: &str| -> anyhow::Result<usize> {
        let text = env::var(name).with_context(|| format!("{name}, a variable of {}", launcher.name))?;
        text.parse().with_context(|| format!("{name}={text}: a whole number from 0 was expected"))
    };
    let world_size = number(launcher.world_size)?;
    let below_world_size = |name: &str| {
        let number = number(name)?;
        ensure!(number < world_size, "{name}={number}, but {}={world_size}", launcher.world_size);
        Ok(number)
    };
    let rank = below_world_size(launcher.rank)?;
    Ok(Assignment { rank, local_rank: below_world_size(launcher.local_rank)?, world_size })
}

pub fn own_stream(assignment: &Assignment) -> anyhow::Result<Arc<CudaStream>> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let gpu = assignment.local_rank;
    ensure!(gpu < gpus, "local rank {gpu} needs GPU {gpu}, and this process sees {gpus} GPUs");
    Ok(CudaContext::new(gpu)?.new_stream()?)
}
