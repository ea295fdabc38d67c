//! Defines a check: its name, its function, and its requirements.

use std::sync::Arc;

use crate::peer_memory::have_peer_access;
use crate::tier::{NcclVersion, Tier, survey};
use crate::world_sizes;

/// The function of a check.
type Function = Arc<dyn Fn() -> anyhow::Result<()> + Send + Sync>;

/// The function that a check's processes run: see [`Check::process`].
pub(super) type Process = Arc<dyn Fn() -> anyhow::Result<String> + Send + Sync>;

/// A check: its name, the minimum number of ranks that makes its result meaningful, and its function.
#[derive(Clone)]
pub struct Check {
    name: String,
    min_ranks: usize,
    function: Function,
    process: Option<Process>,
    program: Option<&'static str>,
    copies_between_gpus: bool,
    needs_a_gpu_for_each_rank: bool,
    reads_aborts: bool,
    shrinks_communicators: bool,
    reads_peer_memory: bool,
    puts_into_windows: bool,
    measures_time: bool,
    functions: &'static [&'static str],
}

/// Lists the checks for a module's exercises: for each of these files, what its function `checks` returns.
///
/// With the cfg `one_exercise`, the list contains only those files whose names are also cfgs, and only these have to be
/// compiled: `#[cfg(any(not(one_exercise), group))] mod group;`. In this way, `cargo course` builds only the checks for
/// the current exercise. To build all checks in a module takes more than three times as long.
#[macro_export]
macro_rules! checks {
    ($($file:ident),* $(,)?) => {{
        let checks = [$(
            #[cfg(any(not(one_exercise), $file))]
            $file::checks()
        ),*]
        .concat();
        checks
    }};
}

/// Returns an error with a formatted message unless the condition is true. Checks use this instead of anyhow's macro,
/// which takes a tenth of the time that a student waits for the build: it parses the condition to show its operands.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            ::anyhow::bail!($($message)+);
        }
    };
}

impl Check {
    /// Creates a check that needs only one rank. Its name starts with the exercise, so that `cargo test` can filter by
    /// it: `devices::each_gpu_has_its_own_context`.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn() -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name.into(), Arc::new(function))
    }

    fn of(name: String, function: Function) -> Self {
        Self {
            name,
            min_ranks: 1,
            function,
            process: None,
            program: None,
            copies_between_gpus: false,
            needs_a_gpu_for_each_rank: false,
            reads_aborts: false,
            shrinks_communicators: false,
            reads_peer_memory: false,
            puts_into_windows: false,
            measures_time: false,
            functions: &[],
        }
    }

    /// Sets the exercise's functions that the check calls. Their names are added to a failure message that contains
    /// none of them.
    #[must_use]
    pub fn calls(mut self, functions: &'static [&'static str]) -> Self {
        self.functions = functions;
        self
    }

    /// Sets the minimum number of ranks. If no tier can run that many, the check is reported as ignored.
    #[must_use]
    pub fn min_ranks(mut self, ranks: usize) -> Self {
        self.min_ranks = ranks;
        self
    }

    /// Sets the function that runs in each process started with [`super::processes`]. The check receives its results.
    #[must_use]
    pub fn process(mut self, function: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Self {
        self.process = Some(Arc::new(function));
        self
    }

    /// Requires a program on the `PATH`. If it is missing, the check is reported as ignored.
    #[must_use]
    pub fn needs_program(mut self, program: &'static str) -> Self {
        self.program = Some(program);
        self
    }

    /// Requires that copies between GPUs don't wait for the host. Real GPUs that can't access each other's memory copy
    /// through the host, and CUDA allows the call to wait; there, the check is reported as ignored.
    #[must_use]
    pub fn copies_between_gpus(mut self) -> Self {
        self.copies_between_gpus = true;
        self
    }

    /// Requires that NCCL refuses two ranks on one GPU. On the shared tier, it is told not to, so the check is reported as
    /// ignored.
    #[must_use]
    pub fn needs_a_gpu_for_each_rank(mut self) -> Self {
        self.needs_a_gpu_for_each_rank = true;
        self
    }

    /// Requires that NCCL logs each rank's abort. From 2.22 to 2.28.2, it logs only that of a process's last rank, so the
    /// check is reported as ignored.
    #[must_use]
    pub fn reads_aborts(mut self) -> Self {
        self.reads_aborts = true;
        self
    }

    /// Requires `ncclCommShrink`, which NCCL has since 2.27. With an older one, the check is reported as ignored.
    #[must_use]
    pub fn shrinks_communicators(mut self) -> Self {
        self.shrinks_communicators = true;
        self
    }

    /// Requires that the ranks' kernels run at the same time, and access each other's memory. If real GPUs can't access
    /// each other's memory, or if ranks share a GPU, where kernels may run one after another, the check is reported as
    /// ignored.
    #[must_use]
    pub fn reads_peer_memory(mut self) -> Self {
        self.reads_peer_memory = true;
        self
    }

    /// Requires NCCL's one-sided calls, which it has since 2.29. With an older one, or if ranks share a GPU, which has
    /// not been tried, the check is reported as ignored.
    #[must_use]
    pub fn puts_into_windows(mut self) -> Self {
        self.puts_into_windows = true;
        self
    }

    /// Lets no other check run at the same time on real GPUs, because this one depends on how long its work takes there:
    /// processes that share a GPU take turns.
    #[must_use]
    pub fn measures_time(mut self) -> Self {
        self.measures_time = true;
        self
    }

    /// Returns whether no other check may run at the same time on real GPUs.
    pub(super) fn needs_real_gpus_alone(&self) -> bool {
        self.measures_time
    }

    /// Returns the reason why the check can't run here on this tier, apart from the number of ranks.
    pub(super) fn lacks(&self, tier: Option<Tier>) -> Option<String> {
        let is_real = tier.is_some_and(|tier| tier != Tier::Virtual);
        let lacks_peer_access =
            is_real && survey().driver.as_ref().is_ok_and(|driver| !driver.has_peer_access);
        if self.copies_between_gpus && lacks_peer_access {
            return Some(
                "these GPUs can't access each other's memory, so copies between them may wait".to_owned(),
            );
        }
        if self.reads_peer_memory && tier == Some(Tier::Shared) {
            return Some("kernels that wait for each other need a GPU for each rank".to_owned());
        }
        if self.needs_a_gpu_for_each_rank && tier == Some(Tier::Shared) {
            return Some("on the shared tier, NCCL accepts two ranks on one GPU".to_owned());
        }
        if self.reads_aborts
            && is_real
            && let Ok(nccl) = survey().nccl
            && (NcclVersion::new(2, 22, 0)..NcclVersion::new(2, 28, 3)).contains(&nccl)
        {
            return Some(format!("NCCL {nccl} logs only the last rank's abort"));
        }
        if self.shrinks_communicators
            && is_real
            && let Ok(nccl) = survey().nccl
            && nccl < NcclVersion::new(2, 27, 0)
        {
            return Some(format!("NCCL {nccl} can't shrink a communicator; 2.27 can"));
        }
        if self.puts_into_windows
            && is_real
            && let Ok(nccl) = survey().nccl
            && nccl < NcclVersion::new(2, 29, 0)
        {
            return Some(format!("NCCL {nccl} has no one-sided calls; 2.29 has"));
        }
        if self.puts_into_windows && tier == Some(Tier::Shared) {
            return Some("one-sided calls have not been tried with two ranks on one GPU".to_owned());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = self.program?;
        let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        (!found).then(|| format!("{program} is not installed"))
    }

    /// Returns the reason why the check can't run on the GPUs of this process, which has attached to them.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub(super) fn lacks_on_these_gpus(&self) -> anyhow::Result<Option<String>> {
        if self.reads_peer_memory && !have_peer_access(world_sizes().into_iter().max().unwrap_or(1))? {
            return Ok(Some("these GPUs can't access each other's memory".to_owned()));
        }
        Ok(None)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn functions(&self) -> &'static [&'static str] {
        self.functions
    }

    pub(super) fn ranks(&self) -> usize {
        self.min_ranks
    }

    pub(super) fn process_function(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Runs the check in this process.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        (self.function)()
    }
}
