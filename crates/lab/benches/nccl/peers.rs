//! Compares NCCL's all-reduce with that of MPI libraries. They measure the same sizes, in turn.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::{Plan, bus_bandwidth, run};

/// How often each library measures all sizes, in turn with the others. The fastest result of each counts.
const ROUNDS: usize = 3;

/// An MPI library.
struct Peer {
    name: &'static str,
    /// The compiler, which links its programs to the library.
    compiler: &'static str,
    /// The command that starts a program, and its options.
    launcher: &'static [&'static str],
    /// The Debian packages that contain these programs.
    packages: &'static str,
}

const PEERS: [Peer; 2] = [
    Peer {
        name: "Open MPI",
        compiler: "mpicc.openmpi",
        launcher: &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
        packages: "openmpi-bin libopenmpi-dev",
    },
    Peer {
        name: "MPICH",
        compiler: "mpicc.mpich",
        launcher: &["mpiexec.mpich"],
        packages: "mpich libmpich-dev",
    },
];

/// Measures all sizes with each library, and prints a table. `ratio` is a library's time divided by NCCL's.
pub(super) fn compare(ranks: usize, plan: &Plan) -> anyhow::Result<()> {
    let mut peers = Vec::new();
    for peer in &PEERS {
        if peer.is_installed() {
            peer.compile()?;
            peers.push((peer, vec![f64::INFINITY; plan.sizes.len()]));
        } else {
            let Peer { name, packages, .. } = peer;
            println!("# {name} is not installed: apt-get install --no-install-recommends {packages}");
        }
    }
    let mut nccl = vec![f64::INFINITY; plan.sizes.len()];
    for _ in 0..ROUNDS {
        keep_fastest(&mut nccl, run(ranks, plan)?.into_iter().map(|row| row.wall));
        for (peer, times) in &mut peers {
            keep_fastest(times, peer.run(ranks, plan)?);
        }
    }
    println!("# {ranks} ranks, the fastest of {ROUNDS} rounds");
    print!("# {:>10} {:>10} {:>8}", "size", "time", "busbw");
    peers.iter().for_each(|(peer, _)| print!(" {:>10} {:>8} {:>6}", peer.name, "busbw", "ratio"));
    println!();
    for (at, (&size, own)) in plan.sizes.iter().zip(nccl).enumerate() {
        print!("  {size:>10} {:>10.2} {:>8.3}", own * 1e6, bus_bandwidth(size, own, ranks));
        for time in peers.iter().map(|(_, times)| times[at]) {
            print!(" {:>10.2} {:>8.3} {:>6.2}", time * 1e6, bus_bandwidth(size, time, ranks), time / own);
        }
        println!();
    }
    Ok(())
}

fn keep_fastest(fastest: &mut [f64], times: impl IntoIterator<Item = f64>) {
    for (fastest, time) in fastest.iter_mut().zip(times) {
        *fastest = fastest.min(time);
    }
}

impl Peer {
    fn is_installed(&self) -> bool {
        let starts = |program: &str| Command::new(program).arg("--version").output().is_ok();
        starts(self.compiler) && starts(self.launcher[0])
    }

    fn program(&self) -> String {
        format!("{}/all_reduce.{}", env!("CARGO_TARGET_TMPDIR"), self.compiler)
    }

    fn compile(&self) -> anyhow::Result<()> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/nccl/all_reduce.c");
        let mut compiler = Command::new(self.compiler);
        let status = compiler.arg("-O3").arg(source).args(["-o", &self.program()]).status()?;
        ensure!(status.success(), "{}: {status}", self.compiler);
        Ok(())
    }

    /// Measures all sizes, and returns the seconds per call of the slowest rank.
    fn run(&self, ranks: usize, plan: &Plan) -> anyhow::Result<Vec<f64>> {
        let (launcher, options) = self.launcher.split_first().context("a launcher has a name")?;
        let mut command = Command::new(launcher);
        command.args(options).args(["-n", &ranks.to_string(), &self.program()]);
        for &size in &plan.sizes {
            let calls = plan.calls_of(size);
            command.args([size, Plan::warm_up_of(calls), calls].map(|number| number.to_string()));
        }
        let output = command.output()?;
        if !output.status.success() {
            bail!("{launcher}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        let times: Result<Vec<f64>, _> =
            String::from_utf8_lossy(&output.stdout).lines().map(str::parse).collect();
        times.ok().filter(|times| times.len() == plan.sizes.len()).with_context(|| {
            format!("{launcher}: unexpected output: {}", String::from_utf8_lossy(&output.stdout))
        })
    }
}
