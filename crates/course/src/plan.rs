//! `cargo course plan`: computes what each kind of parallelism costs in memory and communication, before you write any
//! code.
//!
//! Sources: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054), sections 3.1, 5,
//! and 7, for the bytes of data parallelism and of sharding; "Megatron-LM" (arXiv:1909.08053), section 3, for tensor
//! parallelism.

use std::fmt::Write as _;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use virtual_gpu::time::choice::Enabled;
use virtual_gpu::time::preset::Preset;
use virtual_gpu::time::tuning::{Function, World, choose, point_to_point};

use crate::session::{BAD, DIM, GOOD, STRONG};

/// The size of a parameter, a gradient, or an activation in half precision, in bytes.
const HALF: f64 = 2.0;

/// A model and the GPUs that train it.
#[derive(Args)]
pub(crate) struct Plan {
    /// The number of parameters, such as 7e9
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    parameters: f64,
    /// The number of GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    gpus: u32,
    /// Memory per GPU, in GB
    #[arg(long, value_name = "GB", default_value_t = 80.0, allow_negative_numbers = true)]
    memory: f64,
    /// Bytes that the optimizer keeps per parameter: 12 for Adam in mixed precision (master copy, momentum, variance)
    #[arg(long, value_name = "BYTES", default_value_t = 12.0, allow_negative_numbers = true)]
    optimizer: f64,
    /// The node to model times for: a preset, or the path to a topology file
    #[arg(long, value_name = "TOPOLOGY", default_value = "dgx-h100")]
    topology: String,
    /// Transformer layers; with --hidden and --tokens, also tensor and pipeline parallelism
    #[arg(long, value_name = "N", requires_all = ["hidden", "tokens"])]
    layers: Option<u32>,
    /// Width of the layers
    #[arg(long, value_name = "N", requires_all = ["layers", "tokens"])]
    hidden: Option<u32>,
    /// Tokens in one step's batch
    #[arg(long, value_name = "N", requires_all = ["layers", "hidden"])]
    tokens: Option<u32>,
}

/// A way to divide the training among GPUs.
struct Way {
    name: &'static str,
    /// The number of bytes on each GPU for parameters, gradients, and the optimizer.
    bytes: [f64; 3],
    /// The calls that each GPU makes in a step.
    calls: Vec<Call>,
}

/// A number of identical calls, one after another.
struct Call {
    count: u32,
    what: What,
    /// The size of the call's larger buffer, in bytes.
    bytes: f64,
}

#[derive(Clone, Copy)]
enum What {
    Collective(Function),
    Message,
}

impl Plan {
    fn check(&self) -> anyhow::Result<()> {
        for (name, value) in [("--parameters", self.parameters), ("--memory", self.memory)] {
            ensure!(value.is_finite() && value > 0.0, "{name} {value}: must be a number above 0");
        }
        let bytes = self.optimizer;
        ensure!(
            bytes.is_finite() && bytes >= 0.0,
            "--optimizer {bytes}: must be a number of bytes, at least 0"
        );
        Ok(())
    }

    fn ways(&self) -> Vec<Way> {
        let gpus = f64::from(self.gpus);
        let model = HALF * self.parameters;
        let optimizer = self.optimizer * self.parameters;
        let collective = |function, count| Call { count, what: What::Collective(function), bytes: model };
        let sum_and_gather =
            || vec![collective(Function::ReduceScatter, 1), collective(Function::AllGather, 1)];
        let mut ways = vec![
            Way {
                name: "data parallel (DDP)",
                bytes: [model, model, optimizer],
                calls: vec![collective(Function::AllReduce, 1)],
            },
            Way {
                name: "ZeRO-1: shards the optimizer",
                bytes: [model, model, optimizer / gpus],
                calls: sum_and_gather(),
            },
            Way {
                name: "ZeRO-2: gradients, too",
                bytes: [model, model / gpus, optimizer / gpus],
                calls: sum_and_gather(),
            },
            Way {
                name: "ZeRO-3, FSDP: parameters, too",
                bytes: [model / gpus, model / gpus, optimizer / gpus],
                calls: vec![collective(Function::AllGather, 2), collective(Function::ReduceScatter, 1)],
            },
        ];
        if let (Some(layers), Some(hidden), Some(tokens)) = (self.layers, self.hidden, self.tokens) {
            let activations = HALF * f64::from(hidden) * f64::from(tokens);
            let divided = [model / gpus, model / gpus, optimizer / gpus];
            let sums =
                Call { count: 4 * layers, what: What::Collective(Function::AllReduce), bytes: activations };
            // A middle stage receives and sends in both the forward and the backward pass.
            let messages = Call { count: 4, what: What::Message, bytes: activations };
            ways.push(Way { name: "tensor parallel", bytes: divided, calls: vec![sums] });
            ways.push(Way { name: "pipeline parallel", bytes: divided, calls: vec![messages] });
        }
        ways
    }
}

impl Call {
    /// Returns the number of bytes that a GPU sends in a ring, which is the same for all bandwidth-optimal algorithms.
    fn sent(&self, gpus: f64) -> f64 {
        let share = (gpus - 1.0) / gpus;
        let each = match self.what {
            What::Collective(Function::AllReduce) => 2.0 * share,
            What::Collective(_) => share,
            // Half of the messages are received rather than sent.
            What::Message if gpus > 1.0 => 0.5,
            What::Message => 0.0,
        };
        f64::from(self.count) * each * self.bytes
    }

    /// Returns the time in milliseconds, as modeled for the node.
    fn milliseconds(&self, preset: &Preset, gpus: u32) -> anyhow::Result<f64> {
        if gpus == 1 {
            return Ok(0.0);
        }
        let bytes = self.bytes as u64;
        let nanoseconds = match self.what {
            What::Collective(function) => {
                let enabled = Enabled::from_env().map_err(|error| anyhow!(error))?;
                let world = World::of(preset, 0..gpus as usize);
                let choice = choose(preset, enabled, function, world, bytes, true);
                choice.context("NCCL_ALGO and NCCL_PROTO rule out every algorithm")?.nanoseconds
            }
            What::Message => point_to_point(preset, bytes),
        };
        Ok(f64::from(self.count) * nanoseconds as f64 / 1e6)
    }
}

/// Returns a table of the ways to divide the training, showing what each GPU stores and communicates.
///
/// # Errors
/// Fails if a number is out of range, if there is no such topology, or if the topology scales data, so that its bytes
/// aren't real bytes.
pub(crate) fn show(plan: &Plan) -> anyhow::Result<String> {
    plan.check()?;
    let preset =
        Preset::find(&plan.topology).map_err(|error| anyhow!("--topology {}: {error}", plan.topology))?;
    ensure!(
        preset.stands_for == 1.0,
        "--topology {}: its data represents {} times as much data, so it can't be used to plan real sizes; use dgx-h100, dgx-a100, pcie, or 2x8-h100",
        preset.name,
        preset.stands_for
    );
    let mut text = format!(
        "{STRONG}{:.3e} parameters on {} GPUs with {} GB{STRONG:#}, in half precision; GB per GPU:\n",
        plan.parameters, plan.gpus, plan.memory
    );
    let _ = writeln!(
        text,
        "{DIM}{:34}{:>10} {:>9} {:>9} {:>8}  {:>9} {:>10}{DIM:#}",
        "", "parameters", "gradients", "optimizer", "total", "sent/step", "time/step"
    );
    for way in plan.ways() {
        let together: f64 = way.bytes.iter().sum::<f64>() / 1e9;
        let sent: f64 = way.calls.iter().map(|call| call.sent(plan.gpus.into())).sum::<f64>() / 1e9;
        let mut time = 0.0;
        for call in &way.calls {
            time += call.milliseconds(&preset, plan.gpus)?;
        }
        let [parameters, gradients, optimizer] = way.bytes.map(|bytes| bytes / 1e9);
        let (mark, style) = if together <= plan.memory { ("✓", GOOD) } else { ("✗", BAD) };
        let _ = writeln!(
            text,
            "{style}{mark}{style:#} {:32}{parameters:10.1} {gradients:9.1} {optimizer:9.1} {together:8.1}  {sent:9.2} {time:7.1} ms",
            way.name
        );
    }
    let _ = writeln!(
        text,
        "{DIM}✓ fits, not counting activations, buffers, and fragmentation, which also need room.\n\
         Times are modeled for {}, for communication that nothing hides. Formulas: see the book's page \"Which parallelism when\".{DIM:#}",
        preset.name
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            parameters: 7.5e9,
            gpus: 64,
            memory: 80.0,
            optimizer: 12.0,
            topology: "dgx-h100".into(),
            layers: None,
            hidden: None,
            tokens: None,
        }
    }

    #[test]
    fn memory_is_that_of_figure_1_of_the_zero_paper() {
        let published = [120.0, 31.4, 16.6, 1.9];
        for (way, published) in plan().ways().iter().zip(published) {
            let got = way.bytes.iter().sum::<f64>() / 1e9;
            assert!((got - published).abs() < 0.05, "{}: {got}, published {published}", way.name);
        }
    }

    #[test]
    fn zero_3_sends_one_and_a_half_times_as_much_as_data_parallelism() {
        let ways = plan().ways();
        let sent = |way: &Way| way.calls.iter().map(|call| call.sent(64.0)).sum::<f64>();
        assert_eq!(sent(&ways[1]), sent(&ways[0]));
        assert_eq!(sent(&ways[2]), sent(&ways[0]));
        assert!((sent(&ways[3]) / sent(&ways[0]) - 1.5).abs() < 1e-12);
    }

    #[test]
    fn a_layer_costs_four_all_reduces_of_its_activations() {
        let plan = Plan { layers: Some(32), hidden: Some(4096), tokens: Some(8192), gpus: 8, ..plan() };
        let tensor = &plan.ways()[4].calls[0];
        assert_eq!((tensor.count, tensor.bytes), (128, 2.0 * 4096.0 * 8192.0));
    }

    #[test]
    fn invalid_numbers_are_named() {
        let said = |plan: Plan| show(&plan).unwrap_err().to_string();
        assert!(said(Plan { parameters: 0.0, ..plan() }).contains("--parameters 0"));
        assert!(said(Plan { memory: f64::NAN, ..plan() }).contains("--memory"));
        assert!(said(Plan { topology: "moon".into(), ..plan() }).contains("moon"));
        assert!(said(Plan { topology: "classroom".into(), ..plan() }).contains("dgx-h100"));
    }

    #[test]
    fn one_gpu_communicates_nothing() {
        let text = show(&Plan { gpus: 1, ..plan() }).unwrap();
        assert_eq!(text.matches("0.00     0.0 ms").count(), 4, "{text}");
    }
}
