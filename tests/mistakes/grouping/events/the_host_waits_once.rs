// mistake: the host waits for the producer before it hands over
// fails: events::no_host_waits
// says: and hand_over did not return before that: does it wait on the host?

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

pub fn hand_over(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    produce: impl FnOnce(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
    consume: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    produce(buffer)?;
    producer.synchronize()?;
    consume(buffer)
}

pub fn relay(
    producer: &Arc<CudaStream>,
    consumer: &Arc<CudaStream>,
    rounds: usize,
    buffer: &mut CudaViewMut<f32>,
    mut produce: impl FnMut(usize, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
    mut consume: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
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
}
