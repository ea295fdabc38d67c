//! MPICH's `mpiexec`, which is called Hydra.

use super::{Found, Session};
use crate::install::find_version;
use crate::place::Place;
use crate::state::State;

pub(super) fn found() -> Option<Found> {
    let names = ["mpiexec.mpich", "mpiexec.hydra", "mpiexec"];
    let (program, version) = find_version(&names, "--version", &["HYDRA"])?;
    Some(Found { program, version: Some(version) })
}

pub(super) fn start<'a>(found: &'a Found, place: Place<'a>, state: &State) -> anyhow::Result<Session<'a>> {
    let remote_shell = place.remote_shell(state)?;
    let commands = move |ranks: usize| {
        let mut command = place.launcher(0, &found.program, ranks);
        if let Some((nodes, remote_shell)) = &remote_shell {
            command.args(["-hosts", &nodes.with_slots(ranks)]);
            command.args(["-launcher", "rsh", "-launcher-exec"]).arg(remote_shell);
        }
        command.args(["-n", &ranks.to_string()]);
        Ok(vec![command])
    };
    Ok(Session { commands: Box::new(commands) })
}
