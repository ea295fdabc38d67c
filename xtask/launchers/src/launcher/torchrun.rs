//! A stand-in for PyTorch's `torchrun`, which is too large to install for this. It sets the same variables: see
//! `_start_workers` in PyTorch's `torch/distributed/elastic/agent/server/local_elastic_agent.py`.

use std::net::TcpListener;
use std::process::{Child, Command};

use anyhow::{Context, ensure};

use super::{Found, Session};
use crate::place::{Place, free_port};

/// The options of `torchrun` that matter here.
#[derive(clap::Args)]
pub(crate) struct Torchrun {
    #[arg(long)]
    nnodes: usize,
    #[arg(long)]
    node_rank: usize,
    #[arg(long)]
    nproc_per_node: usize,
    #[arg(long)]
    master_addr: String,
    #[arg(long, default_value_t = 29500)]
    master_port: u16,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<String>,
}

pub(super) fn found() -> Result<Found, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Found { program, version: None })
}

/// Starts the stand-in on each machine, as a user of `torchrun` does.
pub(super) fn start<'a>(found: &'a Found, place: Place<'a>) -> Session<'a> {
    let commands = move |ranks: usize| {
        let options = options(place, ranks)?;
        let command = |machine: usize| {
            let mut command = place.launcher(machine, &found.program, ranks);
            command.args(["torchrun", "--node-rank", &machine.to_string()]).args(&options);
            command
        };
        Ok((0..place.machines()).map(command).collect())
    };
    Session { commands: Box::new(commands) }
}

/// Returns the options that are the same on all machines.
pub(super) fn options(place: Place<'_>, ranks: usize) -> anyhow::Result<[String; 8]> {
    let (address, port) = match place {
        Place::Here => ("127.0.0.1", free_port()?),
        Place::Nodes(nodes) => (nodes.names()[0], 29500),
    };
    let (machines, per_machine) = (place.machines(), ranks / place.machines());
    Ok([
        "--master-addr".to_owned(),
        address.to_owned(),
        "--master-port".to_owned(),
        port.to_string(),
        "--nnodes".to_owned(),
        machines.to_string(),
        "--nproc-per-node".to_owned(),
        per_machine.to_string(),
    ])
}

impl Torchrun {
    /// Starts the program for each local rank, and waits for all of them.
    ///
    /// # Errors
    /// Fails if one of them fails.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        // On the first machine, torchrun itself listens at this address, so that rank 0 can't.
        let address = (self.master_addr.as_str(), self.master_port);
        let listener = (self.node_rank == 0).then(|| TcpListener::bind(address)).transpose();
        let _listener = listener.with_context(|| format!("can't listen at {address:?}"))?;
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut processes = Vec::new();
        for local_rank in 0..self.nproc_per_node {
            let mut command = Command::new(program);
            command.args(arguments).envs(self.variables(local_rank));
            processes.push(command.spawn().with_context(|| format!("can't start {program}"))?);
        }
        let ended = processes.iter_mut().map(Child::wait).collect::<Result<Vec<_>, _>>()?;
        let failed = ended.iter().find(|status| !status.success());
        ensure!(failed.is_none(), "a rank's process failed: {failed:?}");
        Ok(())
    }

    fn variables(&self, local_rank: usize) -> Vec<(&'static str, String)> {
        let rank = self.node_rank * self.nproc_per_node + local_rank;
        let world_size = self.nnodes * self.nproc_per_node;
        vec![
            ("LOCAL_RANK", local_rank.to_string()),
            ("RANK", rank.to_string()),
            ("GROUP_RANK", self.node_rank.to_string()),
            ("ROLE_RANK", rank.to_string()),
            ("ROLE_NAME", "default".to_owned()),
            ("LOCAL_WORLD_SIZE", self.nproc_per_node.to_string()),
            ("WORLD_SIZE", world_size.to_string()),
            ("GROUP_WORLD_SIZE", self.nnodes.to_string()),
            ("ROLE_WORLD_SIZE", world_size.to_string()),
            ("MASTER_ADDR", self.master_addr.clone()),
            ("MASTER_PORT", self.master_port.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
            ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
            ("TORCHELASTIC_RUN_ID", "none".to_owned()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()),
            ("OMP_NUM_THREADS", "1".to_owned()),
        ]
    }
}
