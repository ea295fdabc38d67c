//! Starts processes as launchers do, for the checks for `init/environment` and `init/id_exchange`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use anyhow::Context;
use cudarc::driver::CudaContext;
use cudarc::nccl::Comm;
use lab::ensure;
use lab::roll_call::{Answer, roll_call};

/// A launcher's variables for rank, local rank, and world size, in that order.
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
/// The variables set by MPICH's mpiexec (Hydra).
pub(crate) const MPICH: Launcher =
    Launcher { name: "MPICH", variables: ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"] };
pub(crate) const SLURM: Launcher =
    Launcher { name: "Slurm", variables: ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"] };

/// All launchers, from the innermost to the outermost.
pub(crate) const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// A launcher's assignment to a process: rank, local rank, and world size.
pub(crate) type Numbers = [usize; 3];

/// The variables that contain rank 0's address. The names are torchrun's; users of other launchers must set these
/// variables themselves.
const ROOT: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// The variables that contain the number of ranks on a machine. A child process must not take over those of a launcher
/// of this test run, because they don't count its siblings.
const LOCAL_SIZES: [&str; 5] = [
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
];

/// Returns all variables that a launcher of this test run may have set.
pub(crate) fn all_variables() -> Vec<&'static str> {
    LAUNCHERS.iter().flat_map(|launcher| launcher.variables).chain(LOCAL_SIZES).chain(ROOT).collect()
}

impl Launcher {
    /// Returns the variables that the launcher sets for a process with these numbers.
    pub(crate) fn sets(&self, numbers: Numbers) -> Vec<(&'static str, String)> {
        self.variables.into_iter().zip(numbers.map(|number| number.to_string())).collect()
    }
}

/// Returns the numbers that this process's launcher assigned, without calling the exercise.
pub(crate) fn own_numbers() -> anyhow::Result<Numbers> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let numbers = LAUNCHERS.iter().map(|launcher| launcher.variables.map(number));
    let mut whole = numbers.filter_map(|numbers| Some([numbers[0]?, numbers[1]?, numbers[2]?]));
    whole.next().context("no launcher started this process")
}

/// Returns an address on this machine at which no process is listening.
///
/// The system never assigns this port to an outgoing connection, so no attempt can connect to itself.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let first = 20_000 + std::process::id() % 5_000 * 2;
    let addresses = (first..first + 2_000)
        .filter_map(|port| Some((Ipv4Addr::LOCALHOST, u16::try_from(port).ok()?).into()));
    let mut free = addresses.filter(|address: &SocketAddr| TcpListener::bind(address).is_ok());
    free.next().context("no free port from 20000 on")
}

/// Returns the variables that contain rank 0's address.
pub(crate) fn root_variables(address: SocketAddr) -> Vec<(&'static str, String)> {
    ROOT.into_iter().zip([address.ip().to_string(), address.port().to_string()]).collect()
}

/// Returns rank 0's address, as [`root_variables`] set it.
pub(crate) fn root_address() -> anyhow::Result<SocketAddr> {
    let [ip, port] = ROOT.map(|name| std::env::var(name).context(name));
    Ok(SocketAddr::new(ip?.parse()?, port?.parse()?))
}

/// Returns a command that runs this many processes on this machine with the installed MPI's `mpirun`. Any user can run
/// it, on any number of cores.
pub(crate) fn mpirun(processes: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string()]);
    // Open MPI 4 and 5 require these variables to run as root, or with more processes than cores.
    for variable in
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
    {
        command.env(variable, "1");
    }
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
}

/// Returns the process's final message, with the answer that it received from each rank.
pub(crate) fn what_it_hears(comm: &Comm) -> anyhow::Result<String> {
    let heard: Vec<String> = roll_call(comm)?.iter().map(Answer::to_string).collect();
    Ok(format!("rank {} hears {}", comm.rank(), heard.join("; ")))
}

/// Compares the processes' messages with those expected from all ranks on one machine. Rank r uses GPU r, or shares a
/// GPU if there are fewer GPUs than ranks.
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
        "{by}: {world_size} processes on one machine did not form one group\n  expected\n  {}\n  got\n  {}",
        expected.join("\n  "),
        heard.join("\n  ")
    );
    Ok(())
}
