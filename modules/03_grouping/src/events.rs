//! Events: one stream waits for another, and the host waits for neither.
//!
//! cudarc's event tracking is off here, so that only your own events order the streams.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// Lets `produce` fill the buffer on the stream `producer`, and then `consume` read it on the stream `consumer`. Both
/// enqueue their work and return, and so does this function.
///
/// # Errors
/// Returns any error from `produce`, `consume`, or the driver.
pub fn hand_over(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    produce: impl FnOnce(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
    consume: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: hand_over
    // Make the consumer wait for the producer:
    // 1. on the GPU, the work from `consume` starts only after the work from `produce` is done;
    // 2. both closures get `buffer` itself, not a copy;
    // 3. the host does not wait for either stream.
    todo!("Make the consumer wait for the producer")
    // ANCHOR_END: hand_over
}

/// Hands over the same buffer `rounds` times; the rounds are numbered from 0. Returns once everything has been enqueued.
///
/// # Errors
/// Returns any error from `produce`, `consume`, or the driver.
pub fn relay(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    rounds: usize,
    buffer: &mut CudaViewMut<f32>,
    mut produce: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    mut consume: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: relay
    // Hand the buffer over in every round:
    // 1. in each round, `consume` reads only what `produce` wrote in the same round;
    // 2. `produce` never overwrites anything that is still being read;
    // 3. both closures get `buffer` itself, not a copy;
    // 4. the host does not wait for either stream.
    todo!("Hand the buffer over in every round")
    // ANCHOR_END: relay
}
