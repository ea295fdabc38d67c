//! Checks for `grouping/events`.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use lab::{Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular};

use crate::grouping::events::{hand_over, relay};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("events::a_late_producer_is_waited_for", a_late_producer_is_waited_for)
            .calls(&["hand_over"]),
        Check::new("events::every_round_arrives", every_round_arrives).calls(&["relay"]),
        Check::new("events::no_rounds_do_nothing", no_rounds_do_nothing).calls(&["relay"]),
        Check::new("events::a_late_consumer_is_waited_for", a_late_consumer_is_waited_for).calls(&["relay"]),
        Check::new("events::no_host_waits", no_host_waits).calls(&["hand_over", "relay"]),
        Check::new("events::only_events_are_used", only_events_are_used).calls(&["hand_over", "relay"]),
        Check::new("events::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["hand_over", "relay"]),
    ]
}

const MILLISECOND: u64 = 1_000_000;
const LEN: usize = 1031;

/// Two streams on a GPU without event tracking, so that only the exercise orders their work.
struct Bench {
    producer: Arc<CudaStream>,
    consumer: Arc<CudaStream>,
    kernels: Kernels,
    inputs: Vec<CudaSlice<f32>>,
    outputs: Vec<CudaSlice<f32>>,
    buffer: Guarded<f32>,
}

/// Returns the initial values of the buffer and the outputs.
fn stale() -> Vec<f32> {
    irregular::integers(1000, LEN)
}

impl Bench {
    fn new(rounds: usize) -> anyhow::Result<Self> {
        let producer = lab::streams(1)?.remove(0);
        let context = producer.context();
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        unsafe { context.disable_event_tracking() };
        let consumer = context.new_stream()?;
        lab::name_stream(&producer, "producer")?;
        lab::name_stream(&consumer, "consumer")?;
        let kernels = Kernels::load(context)?;
        let inputs = (0..rounds).map(|round| Ok(producer.clone_htod(&irregular::integers(round, LEN))?));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        let outputs = (0..rounds).map(|_| Ok(consumer.clone_htod(&stale())?));
        let outputs = outputs.collect::<anyhow::Result<_>>()?;
        let buffer = Guarded::new(&producer, &stale())?;
        // Loads the kernels first, so that loading does not affect later work.
        kernels.spin(&producer, 0)?;
        producer.synchronize()?;
        consumer.synchronize()?;
        Ok(Self { producer, consumer, kernels, inputs, outputs, buffer })
    }

    /// Calls `hand_over` for the first round. The producer spins before it works.
    fn hand_over(&mut self, produce_spin: u64) -> anyhow::Result<()> {
        let Self { producer, consumer, kernels, inputs, outputs, buffer } = self;
        hand_over(
            producer,
            consumer,
            &mut buffer.view_mut(),
            |buffer| {
                kernels.spin(producer, produce_spin)?;
                Ok(producer.memcpy_dtod(&inputs[0], buffer)?)
            },
            |buffer| Ok(consumer.memcpy_dtod(buffer, &mut outputs[0])?),
        )
    }

    /// Calls `relay` for all rounds. Each stream spins before it works.
    fn relay(&mut self, produce_spins: u64, consume_spins: u64) -> anyhow::Result<()> {
        let Self { producer, consumer, kernels, inputs, outputs, buffer } = self;
        relay(
            producer,
            consumer,
            inputs.len(),
            &mut buffer.view_mut(),
            |round, buffer| {
                kernels.spin(producer, produce_spins)?;
                Ok(producer.memcpy_dtod(&inputs[round], buffer)?)
            },
            |round, buffer| {
                kernels.spin(consumer, consume_spins)?;
                Ok(consumer.memcpy_dtod(buffer, &mut outputs[round])?)
            },
        )
    }

    fn compare(&self) -> anyhow::Result<()> {
        // Stream errors are checked first: they are more informative than a failed comparison.
        let failed =
            "the GPU failed while the producer stream wrote the buffer and the consumer stream read it";
        self.producer.synchronize().and_then(|()| self.consumer.synchronize()).context(failed)?;
        for (round, output) in self.outputs.iter().enumerate() {
            let name = format!("the consumer's output in round {round}");
            let expected = irregular::integers(round, LEN);
            let mut comparison = Expected::of(&name, &expected)
                .if_instead(&stale(), "it holds its initial values, not what the producer wrote");
            for later in round + 1..self.outputs.len() {
                comparison = comparison.if_instead(
                    &irregular::integers(later, LEN),
                    format!("it is what round {later} wrote before this round was read"),
                );
            }
            comparison.exactly(&self.consumer.clone_dtoh(output)?)?;
        }
        Ok(())
    }
}

fn a_late_producer_is_waited_for() -> anyhow::Result<()> {
    let mut bench = Bench::new(1)?;
    bench.hand_over(2 * MILLISECOND)?;
    bench.compare()
}

fn every_round_arrives() -> anyhow::Result<()> {
    for rounds in [1, 2, 5] {
        let mut bench = Bench::new(rounds)?;
        bench.relay(0, 0)?;
        bench.compare()?;
    }
    Ok(())
}

fn no_rounds_do_nothing() -> anyhow::Result<()> {
    let mut bench = Bench::new(0)?;
    bench.relay(0, 0)?;
    bench.compare()
}

fn a_late_consumer_is_waited_for() -> anyhow::Result<()> {
    let mut bench = Bench::new(3)?;
    bench.relay(0, 2 * MILLISECOND)?;
    bench.compare()
}

fn no_host_waits() -> anyhow::Result<()> {
    for name in ["hand_over", "relay"] {
        let run = |bench: &mut Bench| match name {
            "relay" => bench.relay(0, 0),
            _ => bench.hand_over(0),
        };
        let new = || Bench::new(if name == "relay" { 3 } else { 1 });
        let mut first = new()?;
        run(&mut first)?;
        first.compare()?;
        let mut bench = new()?;
        let producer = bench.producer.clone();
        lab::while_blocked(name, "the producer stream", &producer, || run(&mut bench))?;
        bench.compare()?;
    }
    Ok(())
}

/// The closures count their calls. They make no CUDA calls themselves, so that only the exercise's are counted.
fn only_events_are_used() -> anyhow::Result<()> {
    const ROUNDS: usize = 5;
    let Bench { producer, consumer, mut buffer, .. } = Bench::new(0)?;
    // Both streams may record an event in each round, and each wait may have its own event.
    let budget = |function: &str, rounds: usize| {
        let budget = Budget::of(function).events(4 * rounds as u64 + 2).copies(0).fills(0).kernels(0);
        budget.allocations(0).new_streams(0).host_waits(0).polls(0)
    };
    budget("hand_over", 1)
        .spend(|| hand_over(&producer, &consumer, &mut buffer.view_mut(), |_| Ok(()), |_| Ok(())))?;
    let (mut produced, mut consumed) = (Vec::new(), Vec::new());
    budget("relay", ROUNDS).spend(|| {
        let produce = |round, _: &mut CudaViewMut<f32>| {
            produced.push(round);
            Ok(())
        };
        let consume = |round, _: &CudaViewMut<f32>| {
            consumed.push(round);
            Ok(())
        };
        relay(&producer, &consumer, ROUNDS, &mut buffer.view_mut(), produce, consume)
    })?;
    let expected: Vec<usize> = (0..ROUNDS).collect();
    ensure!(
        produced == expected && consumed == expected,
        "`relay` called `produce` for rounds {produced:?} and `consume` for rounds {consumed:?}; with {ROUNDS} rounds, \
         it must call each for {expected:?}"
    );
    Ok(())
}

/// The closures enqueue kernels that access no memory. So dropping a wait's error causes no race that would be reported
/// first.
fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("hand_over", || {
        let Bench { producer, consumer, kernels, mut buffer, .. } = Bench::new(0)?;
        Ok(move || {
            let produce = |_: &mut CudaViewMut<f32>| kernels.spin(&producer, 0);
            let consume = |_: &CudaViewMut<f32>| kernels.spin(&consumer, 0);
            hand_over(&producer, &consumer, &mut buffer.view_mut(), produce, consume)
        })
    })?;
    each_call_fails("relay", || {
        let Bench { producer, consumer, kernels, mut buffer, .. } = Bench::new(0)?;
        Ok(move || {
            let produce = |_, _: &mut CudaViewMut<f32>| kernels.spin(&producer, 0);
            let consume = |_, _: &CudaViewMut<f32>| kernels.spin(&consumer, 0);
            relay(&producer, &consumer, 3, &mut buffer.view_mut(), produce, consume)
        })
    })
}
