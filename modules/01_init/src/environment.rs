//! One process for each GPU: which rank it is, and which GPU is its own.
//!
//! A launcher starts the same program many times, on one machine or on several, and tells each process its assignment in
//! environment variables. The *rank* counts through all machines; the *local rank* counts anew on each of them, and so do its
//! GPUs.

use std::env;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaContext, CudaStream};

/// What a launcher assigns to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its number among all processes, from 0.
    pub rank: usize,
    /// Its number among those of its machine, from 0.
    pub local_rank: usize,
    /// Processes on all machines.
    pub world_size: usize,
}

/// The variables in which a launcher says these numbers.
pub struct Launcher {
    /// What it is called.
    pub name: &'static str,
    /// Has the rank.
    pub rank: &'static str,
    /// Has the local rank. Only this launcher sets it: where it is, the launcher was.
    pub local_rank: &'static str,
    /// Has the world size.
    pub world_size: &'static str,
}

/// The launchers, the innermost first: `torchrun` may be started by any of the others, and `mpirun` in a job of Slurm's. The
/// variables of all that took part are there, and those of the outer ones are about something else.
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

/// This process's assignment, as the innermost launcher that started it says.
///
/// # Errors
/// No launcher started it: the error names the variables that would have told so. Or one did, and a variable of its three is
/// missing, is no whole number, or is no number that a world of that size has: the error names the variable and its value.
pub fn assignment() -> anyhow::Result<Assignment> {
    // ANCHOR: assignment
    // Find the innermost launcher, and read its three variables, and no other's.
    // What is missing can't be guessed: rank 0 of 1 is an assignment too, and every process would have it.
    todo!("Find the innermost launcher, and read its three variables, and no other's")
    // ANCHOR_END: assignment
}

/// A new stream on the GPU of the process with this assignment.
///
/// # Errors
/// Its machine has no GPU for it (the error says which one, and how many there are), or what the driver answers.
pub fn own_stream(assignment: &Assignment) -> anyhow::Result<Arc<CudaStream>> {
    // ANCHOR: own_stream
    // Open this process's own GPU, and make a stream on it.
    // GPUs are counted on each machine from 0. Which of the two ranks is that, too?
    todo!("Open this process's own GPU, and make a stream on it")
    // ANCHOR_END: own_stream
}
