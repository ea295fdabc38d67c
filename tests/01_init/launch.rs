//! Processes as launchers start them, for the checks of `init/environment` and `init/id_exchange`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use anyhow::{Context, ensure};
use cudarc::driver::CudaContext;
use cudarc::nccl::Comm;
use lab::roll_call::{Answer, roll_call};

/// The variables in which a launcher says rank, local rank and world size, in this order.
pub(crate) struct Launcher {
    pub(crate) name: &'static str,
    pub(crate) variables: [&'static str; 3],
}

pub(crate) const TORCHRUN: Launcher =
    Launcher { name: "torchrun", variables: ["RANK", "LOCAL_RANK", "WORLD_SIZE"] };
pub(crate) const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    variables: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"],
};
/// As MPICH's mpiexec (Hydra) sets them.
pub(crate) const MPICH: Launcher =
    Launcher { name: "MPICH", variables: ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"] };
pub(crate) const SLURM: Launcher =
    Launcher { name: "Slurm", variables: ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"] };

/// All of them, the innermost first.
pub(crate) const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// What a launcher assigns to a process: rank, local rank, world size.
pub(crate) type Numbers = [usize; 3];

/// Where rank 0 listens: torchrun's names, which other launchers' users set themselves.
const ROOT: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// All that a launcher of this test run itself may have set.
pub(crate) fn all_variables() -> Vec<&'static str> {
    LAUNCHERS.iter().flat_map(|launcher| launcher.variables).chain(ROOT).collect()
}

impl Launcher {
    /// What it sets for a process with these numbers.
    pub(crate) fn sets(&self, numbers: Numbers) -> Vec<(&'static str, String)> {
        self.variables.into_iter().zip(numbers.map(|number| number.to_string())).collect()
    }
}

/// The numbers that this process's launcher says, for programs that don't ask the exercise.
pub(crate) fn own_numbers() -> anyhow::Result<Numbers> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let numbers = LAUNCHERS.iter().map(|launcher| launcher.variables.map(number));
    let mut whole = numbers.filter_map(|numbers| Some([numbers[0]?, numbers[1]?, numbers[2]?]));
    whole.next().context("no launcher started this process")
}

/// An address of this machine at which nobody listens.
///
/// The port is none of those that the system gives to connections, so that no attempt to connect can meet itself there.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let first = 20_000 + std::process::id() % 5_000 * 2;
    let addresses = (first..first + 2_000)
        .filter_map(|port| Some((Ipv4Addr::LOCALHOST, u16::try_from(port).ok()?).into()));
    let mut free = addresses.filter(|address: &SocketAddr| TcpListener::bind(address).is_ok());
    free.next().context("no free port from 20000 on")
}

/// The variables that say where rank 0 listens.
pub(crate) fn root_variables(address: SocketAddr) -> Vec<(&'static str, String)> {
    ROOT.into_iter().zip([address.ip().to_string(), address.port().to_string()]).collect()
}

/// Where rank 0 listens, as [`root_variables`] said it.
pub(crate) fn root_address() -> anyhow::Result<SocketAddr> {
    let [ip, port] = ROOT.map(|name| std::env::var(name).context(name));
    Ok(SocketAddr::new(ip?.parse()?, port?.parse()?))
}

/// `mpirun` of whatever MPI is installed, for so many processes of this machine, as many as there may be users and cores.
pub(crate) fn mpirun(processes: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string()]);
    // Open MPI's, which it wants before it runs as root, and more processes than cores: in release 4, and in 5.
    for variable in
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
    {
        command.env(variable, "1");
    }
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
}

/// A process's last words: what it has heard from each rank of its group, over the wire.
pub(crate) fn what_it_hears(comm: &Comm) -> anyhow::Result<String> {
    let heard: Vec<String> = roll_call(comm)?.iter().map(Answer::to_string).collect();
    Ok(format!("rank {} hears {}", comm.rank(), heard.join("; ")))
}

/// Compares what processes said with what every rank of one machine should hear: each uses the GPU of its own number, or
/// shares one where there are fewer.
pub(crate) fn check_heard(
    by: &str,
    world_size: usize,
    said: &[Result<String, String>],
) -> anyhow::Result<()> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let all: Vec<String> =
        (0..world_size).map(|rank| Answer { rank, world_size, gpu: rank % gpus }.to_string()).collect();
    let mut heard = Vec::new();
    for said in said {
        match said {
            Ok(said) => heard.push(said.clone()),
            Err(error) => anyhow::bail!("{by}: one of {world_size} processes returned an error:\n{error}"),
        }
    }
    heard.sort();
    let expected: Vec<String> =
        (0..world_size).map(|rank| format!("rank {rank} hears {}", all.join("; "))).collect();
    ensure!(
        heard == expected,
        "{by}: {world_size} processes of one machine are not one group\n  expected\n  {}\n  got\n  {}",
        expected.join("\n  "),
        heard.join("\n  ")
    );
    Ok(())
}
