//! Reads from the launcher's variables how many ranks share this machine, and so how many GPUs it needs.

use std::env;
use std::ffi::OsString;

use anyhow::{Context, ensure};

/// The variables of a launcher that matter on one machine.
struct Launcher {
    /// Contains the local rank. A process has it only if this launcher started it, or a launcher around it.
    local_rank: &'static str,
    /// Contain the number of ranks on this machine. The first one that is set counts.
    local_sizes: &'static [&'static str],
}

/// The launchers, innermost first, in the same order as in `init/environment`.
///
/// Sources: "Environment Variables" in PyTorch's page on torchrun; "Environment variables set for MPI applications" in
/// Open MPI's manual; MPICH's `mpiexec -n 1 env`; "OUTPUT ENVIRONMENT VARIABLES" in `man srun`.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { local_rank: "LOCAL_RANK", local_sizes: &["LOCAL_WORLD_SIZE"] },
    Launcher { local_rank: "OMPI_COMM_WORLD_LOCAL_RANK", local_sizes: &["OMPI_COMM_WORLD_LOCAL_SIZE"] },
    Launcher { local_rank: "MPI_LOCALRANKID", local_sizes: &["MPI_LOCALNRANKS"] },
    // The job may be larger than the step that this process belongs to.
    Launcher {
        local_rank: "SLURM_LOCALID",
        local_sizes: &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"],
    },
];

/// The position of this machine in Slurm's lists of machines.
const SLURM_NODE: &str = "SLURM_NODEID";

/// Returns how many of the world's ranks run on this machine, according to the innermost launcher. If it sets no such
/// variable, as in a shell that sets only rank, local rank, and world size, all ranks count as running on this machine.
///
/// # Errors
/// Fails if the launcher's variable contains no number from 1 to `world_size`.
pub fn ranks_on_this_machine(world_size: usize) -> anyhow::Result<usize> {
    ranks_according_to(|name| env::var_os(name), world_size)
}

fn ranks_according_to(
    variable: impl Fn(&str) -> Option<OsString>,
    world_size: usize,
) -> anyhow::Result<usize> {
    let launcher = LAUNCHERS.iter().find(|launcher| variable(launcher.local_rank).is_some());
    let set = launcher.and_then(|launcher| {
        launcher.local_sizes.iter().find_map(|&name| Some((name, variable(name)?.display().to_string())))
    });
    let Some((name, value)) = set else { return Ok(world_size) };
    let ranks = if name.starts_with("SLURM_") {
        let node = variable(SLURM_NODE).with_context(|| {
            format!("{name}={value} has a number for each node, but {SLURM_NODE} is not set")
        })?;
        let node = node.display().to_string();
        let index =
            node.parse().with_context(|| format!("{SLURM_NODE}={node}: expected the number of a node"))?;
        tasks_of_node(&value, index).with_context(|| {
            format!("{name}={value}: expected a number for node {index} ({SLURM_NODE}), as in 2(x3),1")
        })?
    } else {
        value.parse().with_context(|| format!("{name}={value}: expected a whole number above 0"))?
    };
    ensure!(
        (1..=world_size).contains(&ranks),
        "{name}={value}: {ranks} ranks on this machine, but the world has {world_size}"
    );
    Ok(ranks)
}

/// Returns the number of tasks on a node, from a list such as `2(x3),1`: two on each of the first three nodes, and one
/// on the fourth.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut before = 0_usize;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        before = before.checked_add(nodes)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(variables: &[(&str, &str)], world_size: usize) -> Result<usize, String> {
        let value =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        ranks_according_to(value, world_size).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_launcher_says_how_many_ranks_a_machine_has() {
        let launchers = [
            ["LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        ];
        for [local_rank, local_size] in launchers {
            assert_eq!(ranks(&[(local_rank, "1"), (local_size, "4")], 8), Ok(4), "{local_size}");
        }
    }

    #[test]
    fn slurm_lists_its_nodes() {
        let on_node = |list, node| {
            ranks(&[("SLURM_LOCALID", "0"), ("SLURM_STEP_TASKS_PER_NODE", list), (SLURM_NODE, node)], 8)
        };
        assert_eq!(on_node("4", "0"), Ok(4));
        assert_eq!(on_node("2(x3)", "2"), Ok(2));
        assert_eq!(on_node("2(x2),1", "1"), Ok(2));
        assert_eq!(on_node("2(x2),1", "2"), Ok(1));
        assert_eq!(on_node("1,3(x2)", "2"), Ok(3));
    }

    #[test]
    fn a_step_counts_more_than_its_job() {
        let job = [("SLURM_LOCALID", "0"), (SLURM_NODE, "0"), ("SLURM_TASKS_PER_NODE", "8")];
        assert_eq!(ranks(&job, 8), Ok(8));
        assert_eq!(ranks(&[&job[..], &[("SLURM_STEP_TASKS_PER_NODE", "2")]].concat(), 2), Ok(2));
    }

    #[test]
    fn the_innermost_launcher_counts() {
        let slurm = [("SLURM_LOCALID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"), (SLURM_NODE, "1")];
        let torchrun = [("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4")];
        assert_eq!(ranks(&[&slurm[..], &torchrun].concat(), 8), Ok(4));
        // Without LOCAL_WORLD_SIZE, Slurm's number is still not the one of this process.
        assert_eq!(ranks(&[&slurm[..], &torchrun[..1]].concat(), 8), Ok(8));
        // A shell in a Slurm job has variables with sizes, but no launcher started this process.
        assert_eq!(ranks(&slurm[1..], 3), Ok(3));
    }

    #[test]
    fn without_a_number_all_ranks_are_on_this_machine() {
        assert_eq!(ranks(&[], 4), Ok(4));
        assert_eq!(ranks(&[("LOCAL_RANK", "0")], 4), Ok(4));
        assert_eq!(ranks(&[("SLURM_LOCALID", "0")], 4), Ok(4));
    }

    #[test]
    fn a_bad_number_is_named_with_its_variable() {
        for bad in ["", "four", "-1", "0", "9", "1.5"] {
            let error = ranks(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", bad)], 8).unwrap_err();
            assert!(error.starts_with(&format!("LOCAL_WORLD_SIZE={bad}: ")), "{error}");
        }
    }

    #[test]
    fn a_bad_list_of_slurm_is_named_with_its_variable() {
        let slurm = [("SLURM_LOCALID", "0"), (SLURM_NODE, "1")];
        for bad in ["", "4", "4(x", "4(x1", "4,", "2(x1),x", "1,0", "9(x2)", "2(x-1),1"] {
            let error = ranks(&[&slurm[..], &[("SLURM_TASKS_PER_NODE", bad)]].concat(), 8).unwrap_err();
            assert!(error.starts_with(&format!("SLURM_TASKS_PER_NODE={bad}: ")), "{error}");
        }
        let error = ranks(&[slurm[0], ("SLURM_TASKS_PER_NODE", "4")], 8).unwrap_err();
        assert_eq!(error, "SLURM_TASKS_PER_NODE=4 has a number for each node, but SLURM_NODEID is not set");
        let error = ranks(&[slurm[0], (SLURM_NODE, "b"), ("SLURM_TASKS_PER_NODE", "4")], 8).unwrap_err();
        assert!(error.starts_with("SLURM_NODEID=b: expected the number of a node"), "{error}");
    }
}
