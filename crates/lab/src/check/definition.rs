//! What a check is: a name, what to run, and what it needs.

use std::sync::Arc;

/// What a check's process function is: see [`Check::process`].
pub(super) type Process = Arc<dyn Fn() -> anyhow::Result<String> + Send + Sync>;

/// One check: a name, the number of ranks without which it decides nothing, and what to run.
#[derive(Clone)]
pub struct Check {
    name: String,
    min_ranks: usize,
    function: Arc<dyn Fn() -> anyhow::Result<()> + Send + Sync>,
    process: Option<Process>,
    program: Option<&'static str>,
    functions: &'static [&'static str],
}

impl Check {
    /// A check that one rank is enough for. Its name starts with the exercise, so that `cargo test` can filter by it:
    /// `devices::each_gpu_has_its_own_context`.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn() -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            min_ranks: 1,
            function: Arc::new(function),
            process: None,
            program: None,
            functions: &[],
        }
    }

    /// Says which functions of the exercise the check calls. A failure that names none of them gets their names.
    #[must_use]
    pub fn calls(mut self, functions: &'static [&'static str]) -> Self {
        self.functions = functions;
        self
    }

    /// Asks for a tier on which at least `ranks` ranks can run. Where there is none, the check is reported as ignored.
    #[must_use]
    pub fn min_ranks(mut self, ranks: usize) -> Self {
        self.min_ranks = ranks;
        self
    }

    /// What each process does that the check starts with [`super::processes`]: the check gets what it returns.
    #[must_use]
    pub fn process(mut self, function: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Self {
        self.process = Some(Arc::new(function));
        self
    }

    /// Asks for a program that has to be on the `PATH`. Where it isn't, the check is reported as ignored.
    #[must_use]
    pub fn needs_program(mut self, program: &'static str) -> Self {
        self.program = Some(program);
        self
    }

    /// Why it can't run here, apart from the tier.
    pub(super) fn lacks(&self) -> Option<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = self.program?;
        let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        (!found).then(|| format!("{program} is not installed"))
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
