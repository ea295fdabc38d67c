// mistake: the consumer doesn't wait at all
// fails: events::a_late_producer_is_waited_for
// says: data race
// says: nothing makes stream

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
