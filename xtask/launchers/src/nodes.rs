//! Two machines on this one: each has a host name and a network of its own, and a virtual cable connects them.
//!
//! They are Linux namespaces without names, which the kernel deletes with their last process. Nothing outside them
//! changes, and nothing from outside can be reached from them.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bounded::Running;
use crate::install::find;
use crate::state::State;

/// Each machine's end of the cable.
pub(crate) const INTERFACE: &str = "veth0";

const NAMES: [&str; 2] = ["node1", "node2"];
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const NAMESPACES: [&str; 3] = ["--net", "--uts", "--mount"];
const TIME_TO_START: Duration = Duration::from_secs(10);

/// Two machines. Dropping them ends everything that runs on them.
pub(crate) struct Nodes {
    /// A process on each machine that keeps its namespaces.
    keepers: [Running; 2],
}

impl Nodes {
    /// Returns why this machine can't have such machines in it, if so.
    pub(crate) fn obstacle() -> Option<String> {
        let missing = ["unshare", "nsenter", "ip"].into_iter().find(|program| find(program).is_none());
        if let Some(missing) = missing {
            return Some(format!("{missing} is not installed"));
        }
        let cable = "ip link add veth0 type veth peer name veth1";
        let output = Command::new("unshare").args(NAMESPACES).args(["sh", "-c", cable]).output().ok()?;
        let why = String::from_utf8_lossy(&output.stderr);
        (!output.status.success()).then(|| format!("network namespaces are not permitted ({})", why.trim()))
    }

    /// Creates the machines, and connects them.
    pub(crate) fn create(state: &State) -> anyhow::Result<Self> {
        let hosts: String = NAMES.iter().zip(ADDRESSES).map(|(name, ip)| format!("{ip} {name}\n")).collect();
        let hosts = state.write("hosts", &format!("127.0.0.1 localhost\n{hosts}"))?;
        let keeper = |index: usize| -> anyhow::Result<Running> {
            let ready = state.path(&format!("{}.ready", NAMES[index]));
            let mut command = Command::new("unshare");
            let setup = format!(
                "set -e; hostname {}; mount --bind '{}' /etc/hosts; ip link set lo up; touch '{}'; exec sleep infinity",
                NAMES[index],
                hosts.display(),
                ready.display()
            );
            command.args(NAMESPACES).args(["sh", "-c", &setup]);
            let mut running = Running::start(command, state.path(&format!("{}.log", NAMES[index])))?;
            running.wait_until(Instant::now() + TIME_TO_START, || Ok(ready.exists()))?;
            Ok(running)
        };
        let nodes = Self { keepers: [keeper(0)?, keeper(1)?] };
        nodes.connect()?;
        Ok(nodes)
    }

    fn connect(&self) -> anyhow::Result<()> {
        let other = self.keepers[1].pid().to_string();
        let cable =
            ["link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", other.as_str()];
        self.ip(0, &cable)?;
        for (machine, address) in ADDRESSES.into_iter().enumerate() {
            self.ip(machine, &["addr", "add", &format!("{address}/24"), "dev", INTERFACE])?;
            self.ip(machine, &["link", "set", INTERFACE, "up"])?;
        }
        Ok(())
    }

    fn ip(&self, machine: usize, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.command(machine, "ip").args(arguments).output().context("can't run nsenter")?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("{}: ip {}: {}", NAMES[machine], arguments.join(" "), why.trim());
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> [&'static str; 2] {
        NAMES
    }

    /// Returns the names with an equal number of the ranks for each, as launchers take them: `one:4,two:4`.
    pub(crate) fn with_slots(&self, ranks: usize) -> String {
        let slots = ranks / NAMES.len();
        NAMES.map(|name| format!("{name}:{slots}")).join(",")
    }

    /// Returns a command that runs a program on one of the machines.
    pub(crate) fn command(&self, machine: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.keepers[machine].pid().to_string()]).args(NAMESPACES).arg(program);
        command
    }

    /// Writes a script that runs a command on a machine as `rsh MACHINE COMMAND` does, and so without the variables of
    /// its caller. Returns its path.
    pub(crate) fn remote_shell(&self, state: &State) -> anyhow::Result<std::path::PathBuf> {
        let [first, second] = &self.keepers;
        let text = format!(
            "#!/bin/sh\ncase $1 in\n{}) pid={} ;;\n{}) pid={} ;;\n*) echo \"no machine $1\" >&2; exit 1 ;;\nesac\nshift\n\
             exec env -i PATH=\"$PATH\" HOME=\"$HOME\" nsenter --target $pid {} sh -c \"$*\"\n",
            NAMES[0],
            first.pid(),
            NAMES[1],
            second.pid(),
            NAMESPACES.join(" ")
        );
        state.script("remote-shell", &text)
    }
}
