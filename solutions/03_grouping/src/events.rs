//! Events: how one stream waits for another, and the host for neither.
//!
//! An event marks a place in a stream: behind everything that was enqueued there when it was recorded. A stream that waits
//! for it blocks what is enqueued on it from then on. cudarc's tracking does this for you; here it is off.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// Lets `produce` fill the buffer, with work for the stream `producer`, and then `consume` read it, with work for the
/// stream `consumer`. Returns at once.
///
/// # Errors
/// Those of `produce` and `consume`, and what the driver answers.
pub fn hand_over(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    produce: impl FnOnce(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
    consume: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: hand_over
    // Produce, then consume, and let the second stream wait for the first one.
    // `record_event(None)` and `wait(&event)` are methods of a stream. On which of the two, and when?
    produce(buffer)?;
    consumer.wait(&producer.record_event(None)?)?;
    consume(buffer)
    // ANCHOR_END: hand_over
}

/// The same for a number of rounds, all with the one buffer: each round's reading comes behind its filling, and the
/// next round's filling behind that. Returns at once.
///
/// # Errors
/// Those of `produce` and `consume`, and what the driver answers.
pub fn relay(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    rounds: usize,
    buffer: &mut CudaViewMut<f32>,
    mut produce: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    mut consume: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: relay
    // Hand the buffer over once for each round, and back again.
    // Who reads a buffer has to be waited for as well, before somebody writes into it.
    for round in 0..rounds {
        hand_over(
            producer,
            consumer,
            buffer,
            |buffer| produce(round, buffer),
            |buffer| consume(round, buffer),
        )?;
        producer.wait(&consumer.record_event(None)?)?;
    }
    Ok(())
    // ANCHOR_END: relay
}
