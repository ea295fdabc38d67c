//! Open MPI's `mpirun`.

use std::process::Command;

use super::{Found, Session};
use crate::install::find_version;
use crate::place::Place;
use crate::state::State;

pub(super) fn found() -> Option<Found> {
    // Debian gives the name without a suffix to one of several installed MPIs.
    let names = ["mpirun.openmpi", "mpirun"];
    let (program, version) = find_version(&names, "--version", &["Open MPI", "OpenRTE"])?;
    Some(Found { program, version: Some(version) })
}

/// Sets the variables that versions 4 and 5 require to run as root, or with more processes than cores.
pub(super) fn allow_any_user(command: &mut Command) {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
}

pub(super) fn start<'a>(found: &'a Found, place: Place<'a>, state: &State) -> anyhow::Result<Session<'a>> {
    let remote_shell = place.remote_shell(state)?;
    let commands = move |ranks: usize| {
        let mut command = place.launcher(0, &found.program, ranks);
        command.args(["-n", &ranks.to_string()]);
        allow_any_user(&mut command);
        if let Some((nodes, remote_shell)) = &remote_shell {
            command.args(["--host", &nodes.with_slots(ranks)]);
            command.env("OMPI_MCA_plm_rsh_agent", remote_shell).env("PRTE_MCA_plm_ssh_agent", remote_shell);
            // Open MPI passes its own variables to other machines, but no others.
            for (name, _) in place.variables(ranks) {
                command.args(["-x", name]);
            }
        }
        Ok(vec![command])
    };
    Ok(Session { commands: Box::new(commands) })
}
