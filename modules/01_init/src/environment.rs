//! Reads this process's rank from the launcher's variables, and opens its GPU.
//!
//! A *launcher* starts the same program once for each GPU, on one machine or on several. It passes each process its
//! numbers in environment variables.

use std::env;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaContext, CudaStream};

/// The numbers that a launcher assigns to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The process's number among all processes, from 0.
    pub rank: usize,
    /// The process's number among those on the same machine, from 0.
    pub local_rank: usize,
    /// The total number of processes on all machines.
    pub world_size: usize,
}

/// The variables of a launcher.
pub struct Launcher {
    /// The name of the launcher.
    pub name: &'static str,
    /// The variable that contains the rank. Other programs may set it, too.
    pub rank: &'static str,
    /// The variable that contains the local rank. No other launcher in [`LAUNCHERS`] sets it.
    pub local_rank: &'static str,
    /// The variable that contains the world size. Other programs may set it, too.
    pub world_size: &'static str,
}

/// The launchers, innermost first: any of the others may start `torchrun`, and a Slurm job may start `mpirun`. A
/// process sees the variables of every launcher involved.
pub const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", rank: "RANK", local_rank: "LOCAL_RANK", world_size: "WORLD_SIZE" },
    Launcher {
        name: "Open MPI's mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
    },
    Launcher {
        name: "MPICH's mpirun",
        rank: "PMI_RANK",
        local_rank: "MPI_LOCALRANKID",
        world_size: "PMI_SIZE",
    },
    Launcher {
        name: "Slurm's srun",
        rank: "SLURM_PROCID",
        local_rank: "SLURM_LOCALID",
        world_size: "SLURM_NTASKS",
    },
];

/// Reads this process's assignment.
///
/// # Errors
/// Fails if no launcher started this process, or if a variable is missing or has an impossible value.
pub fn assignment() -> anyhow::Result<Assignment> {
    // ANCHOR: assignment
    // Read the three numbers of this process:
    // 1. all of them come from the innermost launcher involved;
    // 2. without a launcher, return an error that names the four variables for local ranks;
    // 3. if one of that launcher's variables is missing, the error contains its name; if it is not a whole number, the
    //    error contains its name and value;
    // 4. if a rank or local rank is not below the world size, the error contains the variable's name and value;
    // 5. no number has a default.
    todo!("Read the three numbers of this process")
    // ANCHOR_END: assignment
}

/// Creates a stream on the GPU of the process that has this assignment.
///
/// # Errors
/// Fails if the machine has no GPU for this process, or if a driver call fails.
pub fn own_stream(assignment: &Assignment) -> anyhow::Result<Arc<CudaStream>> {
    // ANCHOR: own_stream
    // Create a new stream on the GPU of this process:
    // 1. the processes on a machine use its GPUs in order, starting with GPU 0;
    // 2. if there is no GPU for this process, return an error that contains both the number of the missing GPU and the
    //    number of GPUs;
    // 3. no other GPU is opened.
    todo!("Create a new stream on the GPU of this process")
    // ANCHOR_END: own_stream
}
