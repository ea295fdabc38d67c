//! A private Slurm: a controller, a daemon for each machine, and the service that authenticates them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bounded::{Running, until};
use crate::install::installed;
use crate::place::{Place, free_port};
use crate::state::{State, allow};

const TIME_TO_START: Duration = Duration::from_secs(20);
/// The first version that can do without cgroups. They belong to the machine, and a container may have none to give.
const WITHOUT_CGROUPS: u32 = 23;

/// Dropping it ends the daemons, the last one first. They need the first one while they shut down.
pub(super) struct Cluster {
    daemons: Vec<Running>,
    pub(super) configuration: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        while self.daemons.pop().is_some() {}
    }
}

impl Cluster {
    /// Starts the daemons, and waits until all machines can take jobs.
    pub(super) fn start(version: &str, place: Place<'_>, state: &State) -> anyhow::Result<Self> {
        let folder = state.fresh_folder("slurm")?;
        let hosts = place.hosts()?;
        configure(&folder, version, place, &hosts)?;
        let deadline = Instant::now() + TIME_TO_START;
        let authentication = authentication(&folder, deadline)?;
        let mut cluster = Self { daemons: vec![authentication], configuration: folder.join("slurm.conf") };
        let mut controller = cluster.command(place, 0, "slurmctld")?;
        controller.arg("-D");
        cluster.daemons.push(Running::start(controller, folder.join("slurmctld.log"))?);
        for machine in 0..hosts.len() {
            let mut daemon = cluster.command(place, machine, "slurmd")?;
            daemon.args(["-D", "-N", &node(machine)]);
            cluster.daemons.push(Running::start(daemon, folder.join(format!("slurmd.{machine}.log")))?);
        }
        cluster.wait_until_idle(place, deadline)?;
        Ok(cluster)
    }

    fn command(&self, place: Place<'_>, machine: usize, program: &str) -> anyhow::Result<Command> {
        let mut command = place.command(machine, installed(program)?);
        command.env("SLURM_CONF", &self.configuration);
        Ok(command)
    }

    fn wait_until_idle(&mut self, place: Place<'_>, deadline: Instant) -> anyhow::Result<()> {
        let mut sinfo = self.command(place, 0, "sinfo")?;
        sinfo.args(["--noheader", "--states", "idle", "--format", "%D"]);
        let ready = until(deadline, || {
            self.daemons.iter_mut().try_for_each(Running::check)?;
            let output = sinfo.output().context("can't run sinfo")?;
            Ok(String::from_utf8_lossy(&output.stdout).trim() == place.machines().to_string())
        })?;
        if !ready {
            let logs: Vec<String> = self.daemons.iter().map(Running::output).collect();
            bail!("Slurm's machines were not idle in time:\n{}", logs.join("\n"));
        }
        Ok(())
    }
}

/// Returns Slurm's name for a machine.
fn node(machine: usize) -> String {
    format!("node{}", machine + 1)
}

/// Writes the configuration, the key, and the folders that it names.
fn configure(folder: &Path, version: &str, place: Place<'_>, hosts: &[String]) -> anyhow::Result<()> {
    let at = folder.display();
    // In their own network, machines have fixed ports. On this one, another Slurm may be running.
    let [controller_port, daemon_port] = match place {
        Place::Here => [free_port()?, free_port()?],
        Place::Nodes(_) => [6817, 6818],
    };
    let address = |host: &str| match place {
        Place::Here => "127.0.0.1".to_owned(),
        Place::Nodes(_) => host.to_owned(),
    };
    let mut text = format!(
        "ClusterName=course\nSlurmUser=root\nSlurmdUser=root\nSlurmctldHost={host}({address})\n\
         SlurmctldPort={controller_port}\nSlurmdPort={daemon_port}\n\
         AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nCredType=cred/munge\n\
         StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool.%n\n\
         SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.%n.pid\n\
         ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n\
         MpiDefault=none\nReturnToService=2\nGresTypes=gpu\n",
        host = hosts[0],
        address = address(&hosts[0]),
    );
    for (machine, host) in hosts.iter().enumerate() {
        let (node, address) = (node(machine), address(host));
        text += &format!("NodeName={node} NodeHostname={host} NodeAddr={address} CPUs=8 Gres=gpu:8\n");
        fs::create_dir_all(folder.join(format!("spool.{node}")))?;
    }
    text += "PartitionName=all Nodes=ALL Default=YES State=UP\n";
    fs::create_dir_all(folder.join("state"))?;
    fs::write(folder.join("slurm.conf"), text)?;
    // Slurm hides all GPUs but the assigned ones (CUDA_VISIBLE_DEVICES) if it can find their device files.
    (0..8).try_for_each(|gpu| symlink("/dev/null", folder.join(format!("gpu{gpu}"))))?;
    fs::write(folder.join("gres.conf"), format!("Name=gpu File={at}/gpu[0-7]\n"))?;
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0);
    let plugin = if major >= WITHOUT_CGROUPS { "disabled" } else { "cgroup/v1" };
    fs::write(folder.join("cgroup.conf"), format!("CgroupPlugin={plugin}\n"))?;
    Ok(())
}

/// Starts the service with which Slurm's programs recognize each other's messages. It needs no network.
fn authentication(folder: &Path, deadline: Instant) -> anyhow::Result<Running> {
    let key = folder.join("munge.key");
    let mut random = vec![0; 1024];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
    fs::write(&key, random)?;
    allow(&key, 0o600)?;
    let mut munged = Command::new(installed("munged")?);
    // It would otherwise refuse a folder below one that a group may write to.
    munged.args(["--foreground", "--force"]);
    for (option, file) in [
        ("key-file", "munge.key"),
        ("socket", "munge.socket"),
        ("pid-file", "munge.pid"),
        ("seed-file", "munge.seed"),
        ("log-file", "munged.log"),
    ] {
        munged.arg(format!("--{option}={}", folder.join(file).display()));
    }
    let mut running = Running::start(munged, folder.join("munged.log"))?;
    running.wait_until(deadline, || Ok(folder.join("munge.socket").exists()))?;
    Ok(running)
}
