//! Checks for `init/environment`. A separate process with a launcher's variables reads each assignment.

use anyhow::{Context, anyhow, bail};
use cudarc::driver::CudaContext;
use cudarc::nccl::{Comm, Id};
use lab::{Budget, Check, Readable, caught, each_call_fails, ensure, processes};

use crate::exercise::launch::{
    LAUNCHERS, MPICH, Numbers, OPEN_MPI, SLURM, TORCHRUN, all_variables, check_heard, mpirun, what_it_hears,
};
use crate::init::environment::{Assignment, assignment, own_stream};

pub(crate) fn checks() -> Vec<Check> {
    let asked =
        |name: &str, function: fn() -> anyhow::Result<()>| Check::new(name, function).process(say_assignment);
    vec![
        asked("environment::each_launcher_sets_the_assignment", each_launcher_sets_the_assignment)
            .calls(&["assignment"]),
        asked("environment::the_innermost_launcher_counts", the_innermost_launcher_counts)
            .calls(&["assignment"]),
        asked("environment::a_missing_variable_is_named", a_missing_variable_is_named).calls(&["assignment"]),
        asked("environment::a_bad_number_is_named", a_bad_number_is_named).calls(&["assignment"]),
        asked(
            "environment::without_a_launcher_there_is_no_assignment",
            without_a_launcher_there_is_no_assignment,
        )
        .calls(&["assignment"]),
        Check::new("environment::the_gpu_is_that_of_the_local_rank", the_gpu_is_that_of_the_local_rank)
            .calls(&["own_stream"])
            .process(say_gpu),
        Check::new("environment::a_missing_gpu_is_an_error", a_missing_gpu_is_an_error)
            .calls(&["own_stream"])
            .process(say_gpu),
        Check::new("environment::processes_become_a_group", processes_become_a_group)
            .calls(&["assignment", "own_stream"])
            .process(join)
            .min_ranks(2),
        Check::new("environment::mpirun_makes_a_group", mpirun_makes_a_group)
            .calls(&["assignment", "own_stream"])
            .process(join)
            .min_ranks(2)
            .needs_program("mpirun"),
        Check::new("environment::only_its_own_gpu_is_opened", only_its_own_gpu_is_opened),
        Check::new("environment::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The variable that contains the id for a check's communicator, in hexadecimal digits.
const ID: &str = "LAB_TEST_ID";

type Variables = Vec<(&'static str, String)>;

fn shown(numbers: Numbers) -> String {
    let [rank, local_rank, world_size] = numbers;
    format!("rank {rank}, local rank {local_rank}, world size {world_size}")
}

fn say_assignment() -> anyhow::Result<String> {
    let Assignment { rank, local_rank, world_size } = unless_it_panics(assignment)?;
    Ok(shown([rank, local_rank, world_size]))
}

fn say_gpu() -> anyhow::Result<String> {
    let assignment = own_assignment()?;
    Ok(unless_it_panics(|| own_stream(&assignment))?.context().ordinal().to_string())
}

/// How a process's error starts if the function panicked.
const THE_FUNCTION: &str = "the function ";

fn unless_it_panics<T>(function: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    caught(function).map_err(|panic| anyhow!("{THE_FUNCTION}{panic}"))?
}

/// Checks that a process that must report an error did not panic.
fn check_no_panic(situation: &str, error: &str) -> anyhow::Result<()> {
    ensure!(
        !error.starts_with(THE_FUNCTION),
        "{situation}: the contract requires an error here, but {error}"
    );
    Ok(())
}

/// Returns the assignment that the check itself reads.
fn own_assignment() -> anyhow::Result<Assignment> {
    let [rank, local_rank, world_size] = crate::exercise::launch::own_numbers()?;
    Ok(Assignment { rank, local_rank, world_size })
}

/// Joins the communicator with [`ID`], and returns the answers that it receives.
fn join() -> anyhow::Result<String> {
    let assignment = assignment()?;
    let digits = std::env::var(ID)?;
    let mut id = [0; 128];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2).context("a complete id")?, 16)? as _;
    }
    let stream = own_stream(&assignment)?;
    stream.context().bind_to_thread()?;
    what_it_hears(
        &Comm::from_rank(stream, assignment.rank, assignment.world_size, Id::uninit(id)).readable()?,
    )
}

/// Runs processes with these variables, and without those of any other launcher. Returns their answers.
fn ask(variables: &[Variables]) -> anyhow::Result<Vec<processes::Said>> {
    processes::run(&all_variables(), variables)
}

/// Compares an assignment with the expected one. `others` contains the results that known mistakes lead to, with their
/// causes.
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
            bail!("{situation}: expected {expected}, got {said}{cause}")
        }
        Err(error) => bail!("{situation}: expected {expected}, got an error: {error}"),
    }
}

/// The processes on two machines with two processes each. By default, a launcher fills one machine after the other;
/// `srun --distribution=cyclic` alternates between them. The first assignment has three different numbers and no 0, so
/// each mistake changes it. The last two assignments are those of one process out of three, and of a single process.
const PROCESSES: [Numbers; 8] =
    [[3, 1, 4], [0, 0, 4], [1, 1, 4], [2, 0, 4], [2, 1, 4], [1, 0, 4], [2, 2, 3], [0, 0, 1]];

fn each_launcher_sets_the_assignment() -> anyhow::Result<()> {
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
                        "the local rank is used as the rank, but on a second machine they differ",
                    ),
                    (
                        [rank, rank, world_size],
                        "the rank is used as the local rank, but on a second machine they differ",
                    ),
                    ([local_rank, rank, world_size], "rank and local rank are swapped"),
                    ([0, 0, 1], "this is the assignment for a process that no launcher started"),
                ],
            )?;
        }
    }
    Ok(())
}

fn the_innermost_launcher_counts() -> anyhow::Result<()> {
    let [outer, inner] = [OUTER, INNER];
    let both = |one: Variables, other: Variables| [one, other].concat();
    let cases = [
        (
            ["torchrun inside a Slurm job", "torchrun's", "Slurm's"],
            both(TORCHRUN.sets(inner), SLURM.sets(outer)),
        ),
        (
            ["Open MPI's mpirun inside a Slurm job", "Open MPI's", "Slurm's"],
            both(OPEN_MPI.sets(inner), SLURM.sets(outer)),
        ),
        (
            ["MPICH's mpirun inside a Slurm job", "MPICH's", "Slurm's"],
            both(MPICH.sets(inner), SLURM.sets(outer)),
        ),
        (
            ["torchrun, started on each machine by Open MPI's mpirun", "torchrun's", "Open MPI's"],
            both(TORCHRUN.sets(inner), OPEN_MPI.sets(outer)),
        ),
        (
            // Slurm then uses PMI, as MPICH's mpirun does, but does not pass a local rank.
            ["`srun --mpi=pmi2`", "Slurm's", "PMI's"],
            both(
                SLURM.sets(inner),
                vec![("PMI_RANK", inner[0].to_string()), ("PMI_SIZE", inner[2].to_string())],
            ),
        ),
    ];
    let said = ask(&cases.each_ref().map(|(_, variables)| variables.clone()))?;
    for (([situation, own, others], _), said) in cases.iter().zip(&said) {
        if let Err(error) = said
            && error.contains("MPI_LOCALRANKID")
            && !error.contains("SLURM_LOCALID")
        {
            bail!(
                "{situation}: expected {}, got an error: {error}\n  likely cause: MPICH was recognized by PMI_RANK or \
                 PMI_SIZE, but other programs set these, too: recognize a launcher only by its local rank variable",
                shown(inner)
            );
        }
        let of_others = format!("these are {others} numbers; this process must use {own}");
        let mixed = "the numbers come from two launchers: take all three from the same one";
        check_assignment(
            situation,
            inner,
            said,
            &[
                (outer, of_others.as_str()),
                ([inner[0], outer[1], inner[2]], mixed),
                ([outer[0], inner[1], inner[2]], mixed),
                ([inner[0], inner[1], outer[2]], mixed),
                ([outer[0], outer[1], inner[2]], mixed),
                ([outer[0], inner[1], outer[2]], mixed),
                ([inner[0], outer[1], outer[2]], mixed),
            ],
        )?;
    }
    Ok(())
}

/// The numbers from an outer launcher, and from an inner launcher that it started. Any mixture of these numbers is also
/// a valid assignment, and each mistake produces a different mixture.
const OUTER: Numbers = [4, 2, 6];
const INNER: Numbers = [5, 1, 8];

/// Variables that do not form a valid assignment.
struct Refused {
    situation: String,
    variables: Variables,
    /// The words that the error must contain.
    words: Vec<String>,
    /// The assignments that known mistakes lead to, with their causes.
    mistakes: Vec<(Numbers, String)>,
}

/// Checks that each process rejects its variables, with an error that contains the words of its case.
fn check_refused(cases: &[Refused]) -> anyhow::Result<()> {
    let said = ask(&cases.iter().map(|case| case.variables.clone()).collect::<Vec<_>>())?;
    for (Refused { situation, words, mistakes, .. }, said) in cases.iter().zip(said) {
        match said {
            Ok(said) => {
                let cause = mistakes.iter().find(|(numbers, _)| shown(*numbers) == said);
                let cause = cause.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
                bail!(
                    "{situation}: expected an error that contains {}, got {said}{cause}",
                    words.join(" and ")
                )
            }
            Err(error) => {
                check_no_panic(situation, &error)?;
                ensure!(
                    words.iter().all(|words| error.contains(words)),
                    "{situation}: the error must contain {}; got: {error}",
                    words.join(" and ")
                );
            }
        }
    }
    Ok(())
}

/// Returns the assignment with one number replaced by 0.
fn taken_for_zero(mut numbers: Numbers, index: usize, variable: &str) -> (Numbers, String) {
    numbers[index] = 0;
    (numbers, format!("{variable} was read as 0: a number that can't be read has no default"))
}

fn a_missing_variable_is_named() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for launcher in LAUNCHERS {
        for (index, missing) in launcher.variables.into_iter().enumerate() {
            cases.push(Refused {
                situation: format!("started by {} without {missing}", launcher.name),
                variables: launcher.sets(INNER).into_iter().filter(|(name, _)| *name != missing).collect(),
                words: vec![missing.to_owned()],
                mistakes: vec![taken_for_zero(INNER, index, missing)],
            });
        }
    }
    // If torchrun does not set a variable, the surrounding job's value must not be used instead.
    let variables = [TORCHRUN.sets(INNER), SLURM.sets(OUTER)].concat();
    cases.push(Refused {
        situation: "torchrun inside a Slurm job without RANK".to_owned(),
        variables: variables.into_iter().filter(|(name, _)| *name != "RANK").collect(),
        words: vec!["RANK".to_owned()],
        mistakes: vec![
            taken_for_zero(INNER, 0, "RANK"),
            (
                [OUTER[0], INNER[1], INNER[2]],
                "the rank is Slurm's, but the other numbers are torchrun's: all three must come from one launcher"
                    .to_owned(),
            ),
            (OUTER, "these are the job's numbers, but torchrun is the inner launcher".to_owned()),
        ],
    });
    check_refused(&cases)
}

fn a_bad_number_is_named() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for (launcher, value) in LAUNCHERS.iter().zip(["two", "-1", "", "1.5"]) {
        for (index, bad) in launcher.variables.into_iter().enumerate() {
            let set = |(name, good)| (name, if name == bad { value.to_owned() } else { good });
            cases.push(Refused {
                situation: format!("with {bad}={value}"),
                variables: launcher.sets(INNER).into_iter().map(set).collect(),
                words: vec![bad.to_owned(), value.to_owned()],
                mistakes: vec![taken_for_zero(INNER, index, bad)],
            });
        }
    }
    check_refused(&cases)?;

    let not_compared = |situation: String, numbers: Numbers, words: Vec<String>| Refused {
        situation,
        variables: TORCHRUN.sets(numbers),
        words,
        mistakes: vec![(numbers, "the numbers are read, but not compared with the world size".to_owned())],
    };
    let mut cases = Vec::new();
    let [rank, local_rank, _] = TORCHRUN.variables;
    for (numbers, bad) in [([4, 1, 4], rank), ([1, 4, 4], local_rank)] {
        let number = if bad == rank { numbers[0] } else { numbers[1] };
        let words = vec![bad.to_owned(), number.to_string()];
        cases.push(not_compared(
            format!("with {bad}={number} and WORLD_SIZE={}", numbers[2]),
            numbers,
            words,
        ));
    }
    // Either number can be considered wrong.
    cases.push(not_compared("with RANK=0 and WORLD_SIZE=0".to_owned(), [0, 0, 0], vec!["0".to_owned()]));
    check_refused(&cases)
}

fn without_a_launcher_there_is_no_assignment() -> anyhow::Result<()> {
    let refused = |situation: &str, variables: &[(&'static str, &str)]| Refused {
        situation: situation.to_owned(),
        variables: variables.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
        words: LAUNCHERS.map(|launcher| launcher.variables[1].to_owned()).to_vec(),
        mistakes: Vec::new(),
    };
    check_refused(&[
        refused("not started by a launcher", &[]),
        refused(
            "with `rank`, `local_rank`, and `world_size` in lowercase, which no launcher sets",
            &[("rank", "1"), ("local_rank", "1"), ("world_size", "2")],
        ),
    ])
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
                    "\n  likely cause: that is the rank, which is counted across all machines, but each machine counts \
                     its GPUs from 0"
                } else {
                    ""
                }
            ),
            Err(error) => bail!("{assignment}: expected GPU {local_rank}, got an error: {error}"),
        }
    }
    Ok(())
}

fn a_missing_gpu_is_an_error() -> anyhow::Result<()> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let local_ranks = [gpus, gpus + 1];
    let world_size = gpus + 2;
    let said = ask(&local_ranks.map(|local_rank| TORCHRUN.sets([local_rank, local_rank, world_size])))?;
    for (local_rank, said) in local_ranks.into_iter().zip(said) {
        let situation = format!("local rank {local_rank} on a machine with {gpus} GPUs");
        match said {
            Ok(gpu) => bail!("{situation}: expected an error, got GPU {gpu}, which belongs to another rank"),
            Err(error) => {
                check_no_panic(&situation, &error)?;
                let numbers: Vec<&str> = error.split(|digit: char| !digit.is_ascii_digit()).collect();
                ensure!(
                    [local_rank, gpus].iter().all(|number| numbers.contains(&number.to_string().as_str())),
                    "{situation}: the error must contain both numbers, {local_rank} and {gpus}; got: {error}"
                );
            }
        }
    }
    Ok(())
}

/// Creates an id in this process, and returns it in the variable that [`join`] reads.
fn id() -> anyhow::Result<(&'static str, String)> {
    let id = Id::new().readable()?;
    Ok((ID, id.internal().iter().map(|&byte| format!("{:02x}", byte as u8)).collect()))
}

/// Returns the number of processes that can each have their own GPU, up to `most`.
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

fn only_its_own_gpu_is_opened() -> anyhow::Result<()> {
    let gpus = usize::try_from(CudaContext::device_count()?)?;
    let budget = |opened: u64| {
        let budget = Budget::of("own_stream").contexts(opened).new_streams(opened);
        budget.allocations(0).copies(0).modules(0).communicators(0)
    };
    for local_rank in 0..gpus {
        // The rank of a process on the second machine.
        let (rank, world_size) = (gpus + local_rank, 2 * gpus);
        let assignment = Assignment { rank, local_rank, world_size };
        budget(1).spend(|| own_stream(&assignment)).with_context(|| {
            format!(
                "own_stream failed for rank {rank} of {world_size}, local rank {local_rank}, with {gpus} GPUs; only the \
                 local rank matters"
            )
        })?;
    }
    let missing = Assignment { rank: gpus, local_rank: gpus, world_size: gpus + 1 };
    budget(0).spend(|| Ok(own_stream(&missing).is_ok()))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let assignment = Assignment { rank: 3, local_rank: 0, world_size: 4 };
    each_call_fails("own_stream", || Ok(|| own_stream(&assignment).map(drop)))
}
