//! Checks of `init/environment`. Each assignment is asked of a process of its own, with a launcher's variables.

use anyhow::{Context, bail, ensure};
use cudarc::driver::CudaContext;
use cudarc::nccl::{Comm, Id};
use lab::{Check, Readable, processes};

use crate::exercise::launch::{
    LAUNCHERS, MPICH, Numbers, OPEN_MPI, SLURM, TORCHRUN, all_variables, check_heard, mpirun, what_it_hears,
};
use crate::init::environment::{Assignment, assignment, own_stream};

pub(crate) fn checks() -> Vec<Check> {
    let asked =
        |name, function: fn() -> anyhow::Result<()>| Check::new(name, function).process(say_assignment);
    vec![
        asked("environment::each_launcher_says_the_assignment", each_launcher_says_the_assignment),
        asked("environment::the_innermost_launcher_counts", the_innermost_launcher_counts),
        asked("environment::a_missing_variable_is_named", a_missing_variable_is_named),
        asked("environment::a_bad_number_is_named", a_bad_number_is_named),
        asked(
            "environment::without_a_launcher_there_is_no_assignment",
            without_a_launcher_there_is_no_assignment,
        ),
        Check::new("environment::the_gpu_is_that_of_the_local_rank", the_gpu_is_that_of_the_local_rank)
            .process(say_gpu),
        Check::new("environment::a_gpu_that_is_not_there_is_an_error", a_gpu_that_is_not_there_is_an_error)
            .process(say_gpu),
        Check::new("environment::processes_become_a_group", processes_become_a_group)
            .process(join)
            .min_ranks(2),
        Check::new("environment::mpirun_makes_a_group", mpirun_makes_a_group)
            .process(join)
            .min_ranks(2)
            .needs_program("mpirun"),
    ]
}

/// The variable with the id of a check's group, in hexadecimal digits.
const ID: &str = "LAB_TEST_ID";

type Variables = Vec<(&'static str, String)>;

fn shown(numbers: Numbers) -> String {
    let [rank, local_rank, world_size] = numbers;
    format!("rank {rank}, local rank {local_rank}, world size {world_size}")
}

fn say_assignment() -> anyhow::Result<String> {
    let Assignment { rank, local_rank, world_size } = assignment()?;
    Ok(shown([rank, local_rank, world_size]))
}

fn say_gpu() -> anyhow::Result<String> {
    Ok(own_stream(&own_assignment()?)?.context().ordinal().to_string())
}

/// The assignment as the test's own reader finds it.
fn own_assignment() -> anyhow::Result<Assignment> {
    let [rank, local_rank, world_size] = crate::exercise::launch::own_numbers()?;
    Ok(Assignment { rank, local_rank, world_size })
}

/// Joins the group with [`ID`], and says what it hears there.
fn join() -> anyhow::Result<String> {
    let assignment = assignment()?;
    let digits = std::env::var(ID)?;
    let mut id = [0; 128];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2).context("a whole id")?, 16)? as _;
    }
    let stream = own_stream(&assignment)?;
    stream.context().bind_to_thread()?;
    what_it_hears(
        &Comm::from_rank(stream, assignment.rank, assignment.world_size, Id::uninit(id)).readable()?,
    )
}

/// What processes say that find these variables, and no other launcher's.
fn ask(variables: &[Variables]) -> anyhow::Result<Vec<processes::Said>> {
    processes::run(&all_variables(), variables)
}

/// Compares an assignment with what it should be. `others` are assignments that it may be by mistake, and why.
fn check_assignment(
    situation: &str,
    expected: Numbers,
    said: &processes::Said,
    others: &[(Numbers, &str)],
) -> anyhow::Result<()> {
    let expected = shown(expected);
    match said {
        Ok(said) if *said == expected => Ok(()),
        Ok(said) => {
            let cause = others.iter().find(|(numbers, _)| shown(*numbers) == *said);
            let cause = cause.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
            bail!("{situation}: expected {expected}; got {said}{cause}")
        }
        Err(error) => bail!("{situation}: expected {expected}; got an error: {error}"),
    }
}

/// Ranks on two machines with two processes each: ranks that fill one machine after the other, as by default, and ranks
/// that are dealt out in turn, as with `srun --distribution=cyclic`.
const PROCESSES: [Numbers; 6] = [[0, 0, 4], [1, 1, 4], [3, 1, 4], [2, 0, 4], [2, 1, 4], [1, 0, 4]];

fn each_launcher_says_the_assignment() -> anyhow::Result<()> {
    for launcher in LAUNCHERS {
        let said = ask(&PROCESSES.map(|numbers| launcher.sets(numbers)))?;
        for ([rank, local_rank, world_size], said) in PROCESSES.into_iter().zip(said) {
            check_assignment(
                &format!("started by {}", launcher.name),
                [rank, local_rank, world_size],
                &said,
                &[
                    (
                        [local_rank, local_rank, world_size],
                        "the local rank is taken for the rank: on a second machine it is not",
                    ),
                    (
                        [rank, rank, world_size],
                        "the rank is taken for the local rank: on a second machine it is not",
                    ),
                    ([local_rank, rank, world_size], "rank and local rank are swapped"),
                    ([0, 0, 1], "this launcher's variables are not read, and the assignment was guessed"),
                ],
            )?;
        }
    }
    Ok(())
}

fn the_innermost_launcher_counts() -> anyhow::Result<()> {
    let outer = [1, 0, 2];
    let inner = [3, 1, 4];
    let both = |one: Variables, other: Variables| [one, other].concat();
    let cases = [
        ("torchrun in a job of Slurm's", both(TORCHRUN.sets(inner), SLURM.sets(outer))),
        ("mpirun of Open MPI in a job of Slurm's", both(OPEN_MPI.sets(inner), SLURM.sets(outer))),
        ("mpirun of MPICH in a job of Slurm's", both(MPICH.sets(inner), SLURM.sets(outer))),
        (
            "torchrun, started on each machine by mpirun of Open MPI",
            both(TORCHRUN.sets(inner), OPEN_MPI.sets(outer)),
        ),
        (
            // Slurm then speaks PMI as MPICH's mpirun does, and says no local rank by it.
            "`srun --mpi=pmi2`",
            both(SLURM.sets(inner), vec![("PMI_RANK", "3".to_owned()), ("PMI_SIZE", "4".to_owned())]),
        ),
    ];
    let said = ask(&cases.each_ref().map(|(_, variables)| variables.clone()))?;
    for ((situation, _), said) in cases.iter().zip(&said) {
        if let Err(error) = said {
            bail!(
                "{situation}: expected {}; got an error: {error}\n  likely cause: a launcher is known by the variable \
                 of its local rank alone: a rank and a world size are set by other programs too",
                shown(inner)
            );
        }
        let outer = (outer, "these are the outer launcher's numbers, which count what it started itself");
        let mixed = "numbers of two launchers are mixed: all three come from one";
        check_assignment(
            situation,
            inner,
            said,
            &[
                outer,
                ([3, 0, 4], mixed),
                ([1, 1, 4], mixed),
                ([3, 1, 2], mixed),
                ([1, 0, 4], mixed),
                ([1, 1, 2], mixed),
                ([3, 0, 2], mixed),
            ],
        )?;
    }
    Ok(())
}

/// Why a process may have an assignment where there is none.
const GUESSED: &str = "what can't be read was guessed, or taken from another launcher";

/// All processes must refuse their variables, each with the words that belong to it. `cause` is why one may not.
fn check_refused(cases: &[(String, Variables, Vec<String>)], cause: &str) -> anyhow::Result<()> {
    let said = ask(&cases.iter().map(|(_, variables, _)| variables.clone()).collect::<Vec<_>>())?;
    for ((situation, _, words), said) in cases.iter().zip(said) {
        match said {
            Ok(said) => bail!(
                "{situation}: expected an error that says {}; got {said}\n  likely cause: {cause}",
                words.join(" and ")
            ),
            Err(error) => ensure!(
                words.iter().all(|words| error.contains(words)),
                "{situation}: the error must say {}; it says: {error}",
                words.join(" and ")
            ),
        }
    }
    Ok(())
}

fn a_missing_variable_is_named() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for launcher in LAUNCHERS {
        for missing in launcher.variables {
            let variables =
                launcher.sets([1, 1, 4]).into_iter().filter(|(name, _)| *name != missing).collect();
            cases.push((
                format!("started by {} without {missing}", launcher.name),
                variables,
                vec![missing.to_owned()],
            ));
        }
    }
    // What torchrun doesn't say, the job around it doesn't know.
    let variables = [TORCHRUN.sets([3, 1, 4]), SLURM.sets([1, 0, 2])].concat();
    let variables = variables.into_iter().filter(|(name, _)| *name != "RANK").collect();
    cases.push(("torchrun in a job of Slurm's, without RANK".to_owned(), variables, vec!["RANK".to_owned()]));
    check_refused(&cases, GUESSED)
}

fn a_bad_number_is_named() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for (launcher, value) in LAUNCHERS.iter().zip(["two", "-1", "", "1.5"]) {
        for bad in launcher.variables {
            let set = |(name, good)| (name, if name == bad { value.to_owned() } else { good });
            let variables = launcher.sets([1, 1, 4]).into_iter().map(set).collect();
            cases.push((format!("with {bad}={value}"), variables, vec![bad.to_owned(), value.to_owned()]));
        }
    }
    check_refused(&cases, GUESSED)?;

    let mut cases = Vec::new();
    let [rank, local_rank, _] = TORCHRUN.variables;
    for (numbers, bad) in [([4, 1, 4], rank), ([1, 4, 4], local_rank)] {
        let number = if bad == rank { numbers[0] } else { numbers[1] };
        let words = vec![bad.to_owned(), number.to_string()];
        cases.push((
            format!("with {bad}={number} and WORLD_SIZE={}", numbers[2]),
            TORCHRUN.sets(numbers),
            words,
        ));
    }
    // Which of the two is at fault is a matter of opinion.
    cases.push(("with RANK=0 and WORLD_SIZE=0".to_owned(), TORCHRUN.sets([0, 0, 0]), vec!["0".to_owned()]));
    check_refused(&cases, "the numbers are read, and not compared with the world size")
}

fn without_a_launcher_there_is_no_assignment() -> anyhow::Result<()> {
    let names = LAUNCHERS.map(|launcher| launcher.variables[1].to_owned());
    check_refused(&[("started by no launcher".to_owned(), Vec::new(), names.to_vec())], GUESSED)
}

fn the_gpu_is_that_of_the_local_rank() -> anyhow::Result<()> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let numbers: Vec<Numbers> =
        PROCESSES.into_iter().filter(|[_, local_rank, _]| *local_rank < gpus).collect();
    let said = ask(&numbers.iter().map(|numbers| TORCHRUN.sets(*numbers)).collect::<Vec<_>>())?;
    for ([rank, local_rank, world_size], said) in numbers.into_iter().zip(said) {
        let assignment = shown([rank, local_rank, world_size]);
        match said {
            Ok(gpu) if gpu == local_rank.to_string() => {}
            Ok(gpu) => bail!(
                "{assignment}: expected GPU {local_rank}, got GPU {gpu}{}",
                if gpu == rank.to_string() {
                    "\n  likely cause: the rank counts through all machines, and each counts its GPUs from 0"
                } else {
                    ""
                }
            ),
            Err(error) => bail!("{assignment}: expected GPU {local_rank}, got an error: {error}"),
        }
    }
    Ok(())
}

fn a_gpu_that_is_not_there_is_an_error() -> anyhow::Result<()> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let local_ranks = [gpus, gpus + 1];
    let world_size = gpus + 2;
    let said = ask(&local_ranks.map(|local_rank| TORCHRUN.sets([local_rank, local_rank, world_size])))?;
    for (local_rank, said) in local_ranks.into_iter().zip(said) {
        let situation = format!("local rank {local_rank}, on a machine with {gpus} GPUs");
        match said {
            Ok(gpu) => bail!("{situation}: expected an error, got GPU {gpu}, which is another rank's"),
            Err(error) => {
                let numbers: Vec<&str> = error.split(|digit: char| !digit.is_ascii_digit()).collect();
                ensure!(
                    [local_rank, gpus].iter().all(|number| numbers.contains(&number.to_string().as_str()))
                        && !error.contains("panicked"),
                    "{situation}: the error must say that GPU {local_rank} is not there, and how many are; it \
                     says: {error}"
                );
            }
        }
    }
    Ok(())
}

/// An id of this process, as the variable that [`join`] reads.
fn id() -> anyhow::Result<(&'static str, String)> {
    let id = Id::new().readable()?;
    Ok((ID, id.internal().iter().map(|&byte| format!("{:02x}", byte as u8)).collect()))
}

/// As many processes as there are GPUs for, a GPU each, up to `most`.
fn processes_with_gpus(most: usize) -> anyhow::Result<usize> {
    Ok(usize::try_from(CudaContext::device_count()?)?.min(most))
}

fn processes_become_a_group() -> anyhow::Result<()> {
    let world_size = processes_with_gpus(3)?;
    for launcher in LAUNCHERS {
        let id = id()?;
        let variables: Vec<Variables> = (0..world_size)
            .map(|rank| launcher.sets([rank, rank, world_size]).into_iter().chain([id.clone()]).collect())
            .collect();
        check_heard(&format!("started by {}", launcher.name), world_size, &ask(&variables)?)?;
    }
    Ok(())
}

fn mpirun_makes_a_group() -> anyhow::Result<()> {
    let world_size = processes_with_gpus(2)?;
    let mut command = mpirun(world_size);
    command.envs([id()?]);
    check_heard("started by mpirun", world_size, &processes::run_by(command, &all_variables())?)
}
