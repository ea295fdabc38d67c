//! The calls of a stage, and whether they are in a legal order.

use std::collections::BTreeSet;

use anyhow::bail;
use lab::ensure;

use crate::scale::one_f_one_b::Stage;

/// One of the six calls of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    ReceiveInput,
    Forward,
    SendOutput,
    ReceiveGradient,
    Backward,
    SendGradient,
}

impl Call {
    const ALL: [Self; 6] = [
        Self::ReceiveInput,
        Self::Forward,
        Self::SendOutput,
        Self::ReceiveGradient,
        Self::Backward,
        Self::SendGradient,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ReceiveInput => "receive_input",
            Self::Forward => "forward",
            Self::SendOutput => "send_output",
            Self::ReceiveGradient => "receive_gradient",
            Self::Backward => "backward",
            Self::SendGradient => "send_gradient",
        }
    }
}

/// A stage whose calls are all handled by one function.
pub(super) trait Calls {
    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()>;
}

impl<T: Calls> Stage for T {
    fn receive_input(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::ReceiveInput, micro_batch)
    }

    fn forward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::Forward, micro_batch)
    }

    fn send_output(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::SendOutput, micro_batch)
    }

    fn receive_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::ReceiveGradient, micro_batch)
    }

    fn backward(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::Backward, micro_batch)
    }

    fn send_gradient(&mut self, micro_batch: usize) -> anyhow::Result<()> {
        self.call(Call::SendGradient, micro_batch)
    }
}

/// A stage that only records its calls. It rejects a call that would overwrite something, or has nothing to work on.
pub(super) struct Record {
    pub(super) rank: usize,
    pub(super) stages: usize,
    pub(super) micro_batches: usize,
    done: Vec<(Call, usize)>,
    /// The micro-batches whose inputs are in a buffer.
    inputs: BTreeSet<usize>,
    /// The micro-batch whose output is in the buffer for it, if any.
    output: Option<usize>,
    /// The same for the gradient of the output.
    gradient: Option<usize>,
    /// The same for the gradient of the input.
    input_gradient: Option<usize>,
}

impl Calls for Record {
    fn call(&mut self, call: Call, micro_batch: usize) -> anyhow::Result<()> {
        if let Some(problem) = self.problem(call, micro_batch) {
            bail!("{}: `{}({micro_batch})` {problem}", self.situation(), call.name());
        }
        match call {
            Call::ReceiveInput => drop(self.inputs.insert(micro_batch)),
            Call::Forward => self.output = Some(micro_batch),
            Call::SendOutput => self.output = None,
            Call::ReceiveGradient => self.gradient = Some(micro_batch),
            Call::Backward => {
                self.inputs.remove(&micro_batch);
                (self.gradient, self.input_gradient) = (None, Some(micro_batch));
            }
            Call::SendGradient => self.input_gradient = None,
        }
        self.done.push((call, micro_batch));
        Ok(())
    }
}

impl Record {
    pub(super) fn new(rank: usize, stages: usize, micro_batches: usize) -> Self {
        Self {
            rank,
            stages,
            micro_batches,
            done: Vec::new(),
            inputs: BTreeSet::new(),
            output: None,
            gradient: None,
            input_gradient: None,
        }
    }

    fn has(&self, call: Call, micro_batch: usize) -> bool {
        self.done.contains(&(call, micro_batch))
    }

    /// Returns which stage this is, for a message.
    pub(super) fn situation(&self) -> String {
        let Self { rank, stages, micro_batches, .. } = self;
        let plural = if *micro_batches == 1 { "" } else { "es" };
        format!("stage {rank} of {stages} with {micro_batches} micro-batch{plural}")
    }

    /// Returns what is wrong with a call.
    fn problem(&self, call: Call, micro_batch: usize) -> Option<String> {
        if micro_batch >= self.micro_batches {
            return Some("is for a micro-batch that does not exist: they are counted from 0".to_owned());
        }
        if self.has(call, micro_batch) {
            return Some("is called a second time".to_owned());
        }
        let before = self.done.iter().filter(|(other, _)| *other == call).count();
        if before != micro_batch {
            return Some(format!(
                "is called instead of `{}({before})`: messages have no tags, so every stage goes through the micro-batches in order",
                call.name()
            ));
        }
        let needs = |needed: Call| {
            (!self.has(needed, micro_batch))
                .then(|| format!("is called before `{}({micro_batch})`", needed.name()))
        };
        let overwrites = |held: Option<usize>, what: &str, use_: Call| {
            held.map(|held| {
                format!("overwrites the {what} of micro-batch {held} before `{}({held})`", use_.name())
            })
        };
        match call {
            Call::ReceiveInput => {
                let buffers = self.stages - self.rank;
                (self.inputs.len() >= buffers).then(|| {
                    format!(
                        "has no free buffer: this stage has {buffers}, and the inputs of micro-batches {:?} are needed until their \
                         backward passes",
                        self.inputs.iter().collect::<Vec<_>>()
                    )
                })
            }
            Call::Forward => {
                needs(Call::ReceiveInput).or_else(|| overwrites(self.output, "output", Call::SendOutput))
            }
            Call::SendOutput => needs(Call::Forward),
            Call::ReceiveGradient => {
                needs(Call::Forward).or_else(|| overwrites(self.gradient, "gradient", Call::Backward))
            }
            Call::Backward => needs(Call::ReceiveGradient)
                .or_else(|| overwrites(self.input_gradient, "input gradient", Call::SendGradient)),
            Call::SendGradient => needs(Call::Backward),
        }
    }

    /// Compares the calls with those of the contract, after `run_stage` has returned.
    pub(super) fn compare(&self) -> anyhow::Result<()> {
        let situation = self.situation();
        let mut calls = (0..self.micro_batches).flat_map(|at| Call::ALL.map(|call| (call, at)));
        if let Some((call, at)) = calls.find(|(call, at)| !self.has(*call, *at)) {
            bail!("{situation}: `run_stage` returned without a call of `{}({at})`", call.name());
        }
        let passes: Vec<String> = self.done.iter().filter_map(|(call, at)| pass(*call, *at)).collect();
        let expected = self.one_forward_one_backward();
        let ahead = |passes: &[String]| passes.iter().take_while(|pass| pass.starts_with('F')).count();
        let (expected_ahead, got_ahead) = (ahead(&expected), ahead(&passes));
        let difference = if got_ahead == expected_ahead {
            String::new()
        } else {
            let plural = if got_ahead == 1 { "" } else { "es" };
            format!(
                "\n  the first backward pass comes after {got_ahead} forward pass{plural}; expected {expected_ahead}"
            )
        };
        ensure!(
            passes == expected,
            "{situation}: the passes are in another order, with F for forward and B for backward\n  expected {}\n  got      {}{difference}",
            expected.join(" "),
            passes.join(" ")
        );
        Ok(())
    }

    /// Returns the right order of the passes.
    fn one_forward_one_backward(&self) -> Vec<String> {
        let ahead = (self.stages - self.rank).min(self.micro_batches);
        let mut passes: Vec<String> = (0..ahead).map(|at| format!("F{at}")).collect();
        for at in 0..self.micro_batches {
            passes.push(format!("B{at}"));
            if ahead + at < self.micro_batches {
                passes.push(format!("F{}", ahead + at));
            }
        }
        passes
    }
}

/// Returns the name of a pass, as in `F0`.
pub(super) fn pass(call: Call, micro_batch: usize) -> Option<String> {
    match call {
        Call::Forward => Some(format!("F{micro_batch}")),
        Call::Backward => Some(format!("B{micro_batch}")),
        _ => None,
    }
}
