//! The machines on which a launcher starts processes.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

use crate::nodes::{INTERFACE, Nodes};
use crate::state::State;

/// The variables that mark a process as started by a launcher, or configure one. If this program runs inside a job,
/// its processes must not see the job's variables.
const LAUNCHERS_PREFIXES: [&str; 7] = ["SLURM", "OMPI_", "PMI", "PMIX_", "MPI_", "HYD", "TORCHELASTIC_"];
const JOBS_VARIABLES: [&str; 12] = [
    "CUDA_VISIBLE_DEVICES",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Where processes run.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// All on this machine.
    Here,
    /// Half of them on each of two machines.
    Nodes(&'a Nodes),
}

impl<'a> Place<'a> {
    /// Returns the machines and the remote shell with which a launcher reaches them, if there are several.
    pub(crate) fn remote_shell(self, state: &State) -> anyhow::Result<Option<(&'a Nodes, PathBuf)>> {
        match self {
            Self::Here => Ok(None),
            Self::Nodes(nodes) => Ok(Some((nodes, nodes.remote_shell(state)?))),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Here => "one machine",
            Self::Nodes(_) => "two machines",
        }
    }

    /// Returns the number of machines.
    pub(crate) fn machines(self) -> usize {
        match self {
            Self::Here => 1,
            Self::Nodes(nodes) => nodes.names().len(),
        }
    }

    /// Returns the host names, in order.
    pub(crate) fn hosts(self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Here => Ok(vec![own_host()?]),
            Self::Nodes(nodes) => Ok(nodes.names().map(str::to_owned).to_vec()),
        }
    }

    /// Returns a command that runs on the machine with this index, and starts some of this many ranks.
    pub(crate) fn launcher(self, machine: usize, program: impl AsRef<OsStr>, ranks: usize) -> Command {
        let mut command = self.command(machine, program);
        command.envs(self.variables(ranks));
        command
    }

    /// Returns a command that runs on the machine with this index.
    pub(crate) fn command(self, machine: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self {
            Self::Here => Command::new(program),
            Self::Nodes(nodes) => nodes.command(machine, program),
        };
        let inherited = std::env::vars_os().map(|(name, _)| name.display().to_string());
        for name in inherited {
            let of_launcher = LAUNCHERS_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if of_launcher || JOBS_VARIABLES.contains(&name.as_str()) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Returns the variables that ranks need here. Launchers have to pass them on to other machines.
    pub(crate) fn variables(self, ranks: usize) -> Vec<(&'static str, String)> {
        let gpus = ranks / self.machines();
        let mut variables = vec![("LAB_TIER", "virtual".to_owned()), ("VIRTUAL_GPU_COUNT", gpus.to_string())];
        if let Self::Nodes(_) = self {
            variables.push(("NCCL_SOCKET_IFNAME", INTERFACE.to_owned()));
        }
        variables
    }

    /// Returns the address at which rank 0 can listen.
    pub(crate) fn meet(self) -> anyhow::Result<String> {
        match self {
            Self::Here => Ok(format!("{}:{}", Ipv4Addr::LOCALHOST, free_port()?)),
            Self::Nodes(nodes) => Ok(format!("{}:29600", nodes.names()[0])),
        }
    }
}

/// Returns the name of the machine that this process is on.
pub(crate) fn own_host() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("this machine's name")?;
    Ok(host.trim().to_owned())
}

/// Returns a port on this machine at which no process is listening, a different one on each call. It is outside the
/// range from which the system chooses the ports of outgoing connections.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // A run needs about 20 ports. Another run at the same time, with a number next to this one's, has others.
    let first = 20_000 + std::process::id() % 200 * 60;
    let mut ports = (0..700).filter_map(|_| u16::try_from(first + NEXT.fetch_add(1, Ordering::Relaxed)).ok());
    let port = ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    port.with_context(|| format!("no free port from {first} on"))
}
