//! Compares each kernel with the same computation on the host, and checks the errors of its method.

mod arguments;
mod gpt;
mod layers;
mod models;
mod transformers;
mod vectors;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{bail, ensure};
use approx::abs_diff_eq;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use lab::compare::UNIT_ROUNDOFF;
use lab::random::SplitMix64;
use lab::{Check, Kernels, returns_at_once};

fn main() -> ExitCode {
    lab::check::run(vec![
        Check::new("kernels::elementwise_kernels_stay_inside_their_view", vectors::elementwise),
        Check::new("kernels::products_of_any_shape_are_the_hosts", layers::products),
        Check::new("kernels::biases_and_relu_are_the_hosts", layers::layers),
        Check::new("kernels::loss_gradient_and_count_are_the_hosts", layers::losses),
        Check::new("kernels::a_sum_has_the_same_bits_on_every_run", vectors::sums),
        Check::new("kernels::norms_softmax_and_finiteness_are_the_hosts", vectors::vectors),
        Check::new("kernels::momentum_is_the_hosts", vectors::momentum),
        Check::new("kernels::conversions_to_f16_round_like_the_host", transformers::conversions),
        Check::new(
            "kernels::norm_and_dropout_of_a_part_are_those_of_the_whole",
            transformers::norm_and_dropout,
        ),
        Check::new("kernels::rows_go_where_their_indices_say", transformers::rows),
        Check::new("attention::blocks_in_any_order_are_the_hosts", transformers::attention),
        Check::new("kernels::spin_comes_to_an_end", vectors::spin),
        Check::new("at_once::a_call_that_waits_on_the_host_is_named", at_once),
        Check::new("kernels::a_wrong_length_is_named_and_nothing_is_launched", arguments::wrong_lengths),
        Check::new("kernels::a_stream_of_another_gpu_is_refused", arguments::other_gpu).min_ranks(2),
        Check::new("perceptron::its_gradient_is_that_of_the_host", models::perceptron),
        Check::new("perceptron::parts_of_the_hidden_layer_add_up", models::perceptron_in_parts),
        Check::new("linear::a_wrong_shape_is_named", models::wrong_shapes),
        Check::new("network::its_gradients_are_those_of_finite_differences", models::network),
        Check::new("network::a_shape_that_cannot_be_is_named", models::network_shapes),
        Check::new("gpt::its_loss_and_gradient_are_the_hosts", gpt::whole),
        Check::new("gpt::parts_of_heads_and_hidden_units_add_up", gpt::parts),
        Check::new("gpt::a_wrong_layer_or_length_is_named", gpt::refusals),
    ])
}

struct Bench {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    random: SplitMix64,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        Ok(Self { kernels: Kernels::load(&context)?, stream, random: SplitMix64::new(11) })
    }

    /// Returns values between −1 and 1, on the host and on the GPU. An empty buffer can't be allocated, so take a view
    /// of a longer buffer.
    fn values(&mut self, len: usize) -> anyhow::Result<(Vec<f32>, CudaSlice<f32>)> {
        let host: Vec<f32> = (0..len).map(|_| self.random.uniform(-1.0, 1.0)).collect();
        let device = self.stream.clone_htod(&host)?;
        Ok((host, device))
    }

    fn read(&self, device: &CudaSlice<f32>) -> anyhow::Result<Vec<f32>> {
        let host = self.stream.clone_dtoh(device)?;
        self.stream.synchronize()?;
        Ok(host)
    }
}

/// Compares values, with a tolerance of `roundings` roundings of values of size `scale`.
fn expect(what: &str, got: &[f32], expected: &[f64], roundings: usize, scale: f64) -> anyhow::Result<()> {
    ensure!(got.len() == expected.len(), "{what}: {} values, expected {}", got.len(), expected.len());
    let bound = roundings as f64 * UNIT_ROUNDOFF * scale;
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(*got) - expected).abs();
        ensure!(
            abs_diff_eq!(f64::from(*got), *expected, epsilon = bound),
            "{what}: {got} at {index}, but expected {expected}; off by {off:e} > {bound:e}"
        );
    }
    Ok(())
}

/// Checks that a call failed with exactly these words.
fn expect_error<T>(result: anyhow::Result<T>, expected: &str) -> anyhow::Result<()> {
    let Err(error) = result else { bail!("succeeded, expected: {expected}") };
    ensure!(error.to_string() == expected, "{error}\nexpected: {expected}");
    Ok(())
}

fn at_once() -> anyhow::Result<()> {
    let Bench { stream, .. } = Bench::new()?;
    let mut buffer = stream.alloc_zeros::<f32>(37)?;
    let mut clear = || Ok(stream.memset_zeros(&mut buffer)?);
    returns_at_once("clear", &stream, &mut clear)?;
    let returned = returns_at_once("clear_and_wait", &stream, || {
        clear()?;
        Ok(stream.synchronize()?)
    });
    let text = returned.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        text.contains(
            "`clear_and_wait` returned only when its stream, which the check had blocked, was done"
        ),
        "the call waits on the host, but the error is {text:?}"
    );
    let refused = returns_at_once("refuse", &stream, || bail!("no batch is left"));
    ensure!(refused.is_err(), "the call's error is lost");
    Ok(())
}
