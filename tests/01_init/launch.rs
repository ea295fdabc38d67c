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

/// Where a process sits: rank, local rank, world size.
pub(crate) type Seat = [usize; 3];

/// Where rank 0 listens: torchrun's names, which other launchers' users set themselves.
const RENDEZVOUS: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// All that a launcher of this test run itself may have set.
pub(crate) fn all_variables() -> Vec<&'static str> {
    LAUNCHERS.iter().flat_map(|launcher| launcher.variables).chain(RENDEZVOUS).collect()
}

impl Launcher {
    /// What it sets for a process in that seat.
    pub(crate) fn sets(&self, seat: Seat) -> Vec<(&'static str, String)> {
        self.variables.into_iter().zip(seat.map(|number| number.to_string())).collect()
    }
}

/// The seat that this process's launcher says, for programs that don't ask the exercise.
pub(crate) fn own_seat() -> anyhow::Result<Seat> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let seats = LAUNCHERS.iter().map(|launcher| launcher.variables.map(number));
    let mut whole = seats.filter_map(|seat| Some([seat[0]?, seat[1]?, seat[2]?]));
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
pub(crate) fn meeting_at(address: SocketAddr) -> Vec<(&'static str, String)> {
    RENDEZVOUS.into_iter().zip([address.ip().to_string(), address.port().to_string()]).collect()
}

/// Where rank 0 listens, as [`meeting_at`] said it.
pub(crate) fn meeting_point() -> anyhow::Result<SocketAddr> {
    let [ip, port] = RENDEZVOUS.map(|name| std::env::var(name).context(name));
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

/// Compares what processes said with what every rank of one machine should hear: each sits on the GPU of its own number, or
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
            Err(error) => anyhow::bail!("{by}, {world_size} processes, and one of them says:\n{error}"),
        }
    }
    heard.sort();
    let expected: Vec<String> =
        (0..world_size).map(|rank| format!("rank {rank} hears {}", all.join("; "))).collect();
    ensure!(
        heard == expected,
        "{by}, {world_size} processes of one machine: expected\n  {}\ngot\n  {}",
        expected.join("\n  "),
        heard.join("\n  ")
    );
    Ok(())
}
