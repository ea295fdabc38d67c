//! The launchers, and the commands with which each of them starts a program's ranks.

mod mpich;
mod open_mpi;
mod slurm;
pub(crate) mod torchrun;

use std::path::PathBuf;
use std::process::Command;

use crate::place::Place;
use crate::state::State;
use slurm::Inside;

#[derive(Clone, Copy)]
pub(crate) enum Launcher {
    OpenMpi,
    Mpich,
    Torchrun,
    Slurm,
    OpenMpiInSlurm,
    TorchrunInSlurm,
}

/// An installed launcher.
pub(crate) struct Found {
    /// The program that starts ranks.
    pub(crate) program: PathBuf,
    /// `None` for a stand-in.
    pub(crate) version: Option<String>,
}

/// A launcher that is ready to start ranks. Dropping it ends its daemons.
pub(crate) struct Session<'a> {
    /// Returns the commands that, all together, start this many ranks of the program that is appended to each of them.
    pub(crate) commands: Box<dyn Fn(usize) -> anyhow::Result<Vec<Command>> + 'a>,
}

impl Launcher {
    pub(crate) const ALL: [Self; 6] = [
        Self::OpenMpi,
        Self::Mpich,
        Self::Torchrun,
        Self::Slurm,
        Self::OpenMpiInSlurm,
        Self::TorchrunInSlurm,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Torchrun => "torchrun's variables",
            Self::Slurm => "Slurm",
            Self::OpenMpiInSlurm => "Open MPI in a Slurm job",
            Self::TorchrunInSlurm => "torchrun's variables in a Slurm job",
        }
    }

    /// Finds the installed launcher.
    ///
    /// # Errors
    /// Returns why it can't run here.
    pub(crate) fn find(self) -> Result<Found, String> {
        let open_mpi = || open_mpi::found().ok_or_else(|| "Open MPI is not installed".to_owned());
        match self {
            Self::OpenMpi => open_mpi(),
            Self::Mpich => mpich::found().ok_or_else(|| "MPICH is not installed".to_owned()),
            Self::Torchrun => torchrun::found(),
            Self::Slurm | Self::TorchrunInSlurm => slurm::found(),
            Self::OpenMpiInSlurm => open_mpi().and_then(|_| slurm::found()),
        }
    }

    /// Makes the launcher ready to start ranks in a place.
    pub(crate) fn start<'a>(
        self,
        found: &'a Found,
        place: Place<'a>,
        state: &State,
    ) -> anyhow::Result<Session<'a>> {
        match self {
            Self::OpenMpi => open_mpi::start(found, place, state),
            Self::Mpich => mpich::start(found, place, state),
            Self::Torchrun => Ok(torchrun::start(found, place)),
            Self::Slurm => slurm::start(found, Inside::Srun, place, state),
            Self::OpenMpiInSlurm => slurm::start(found, Inside::OpenMpi, place, state),
            Self::TorchrunInSlurm => slurm::start(found, Inside::Torchrun, place, state),
        }
    }
}
