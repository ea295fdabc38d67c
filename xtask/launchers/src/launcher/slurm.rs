//! Slurm's `srun`, and other launchers in Slurm jobs, whose processes also see Slurm's variables.

mod cluster;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::{Found, Session, open_mpi, torchrun};
use crate::install::{find, find_version, installed};
use crate::place::Place;
use crate::state::State;
use cluster::Cluster;

/// What starts the ranks of a Slurm job.
#[derive(Clone, Copy)]
pub(super) enum Inside {
    /// Slurm itself.
    Srun,
    /// `mpirun`, which Slurm starts once.
    OpenMpi,
    /// `torchrun`, which Slurm starts once on each machine.
    Torchrun,
}

pub(super) fn found() -> Result<Found, String> {
    let missing = ["srun", "salloc", "sinfo", "slurmctld", "slurmd", "munged"];
    if let Some(missing) = missing.into_iter().find(|program| find(program).is_none()) {
        return Err(format!("{missing} is not installed"));
    }
    if fs::metadata("/proc/self").map_or(true, |own| own.uid() != 0) {
        return Err("Slurm's daemons need root".to_owned());
    }
    let version = find_version(&["slurmd"], "-V", &["slurm"]);
    let (_, version) = version.ok_or("`slurmd -V` prints no version of Slurm")?;
    Ok(Found { program: "srun".into(), version: Some(version) })
}

pub(super) fn start<'a>(
    found: &Found,
    inside: Inside,
    place: Place<'a>,
    state: &State,
) -> anyhow::Result<Session<'a>> {
    let cluster = Cluster::start(found.version.as_deref().unwrap_or_default(), place, state)?;
    let commands = move |ranks: usize| {
        let mut command = job(inside, place, ranks)?;
        command.env("SLURM_CONF", &cluster.configuration);
        Ok(vec![command])
    };
    Ok(Session { commands: Box::new(commands) })
}

/// Returns the command that submits a job with this many ranks, and waits for it.
fn job(inside: Inside, place: Place<'_>, ranks: usize) -> anyhow::Result<Command> {
    let per_machine = (ranks / place.machines()).to_string();
    let submit = installed(if matches!(inside, Inside::OpenMpi) { "salloc" } else { "srun" })?;
    let mut command = place.launcher(0, submit, ranks);
    let tasks = if matches!(inside, Inside::Torchrun) { "1" } else { &per_machine };
    command.args(["-N", &place.machines().to_string(), "--ntasks-per-node", tasks]);
    command.args(["--gpus-per-node", &per_machine]);
    match inside {
        Inside::Srun => {}
        Inside::OpenMpi => {
            let mpirun = open_mpi::found().ok_or_else(|| anyhow::anyhow!("Open MPI is not installed"))?;
            command.arg(mpirun.program);
            open_mpi::allow_any_user(&mut command);
        }
        Inside::Torchrun => {
            command.args(["sh", "-c", "exec \"$0\" torchrun --node-rank \"$SLURM_NODEID\" \"$@\""]);
            command.arg(std::env::current_exe()?).args(torchrun::options(place, ranks)?);
        }
    }
    Ok(command)
}
