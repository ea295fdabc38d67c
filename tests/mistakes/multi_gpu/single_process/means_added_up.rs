// mistake: the means of the parts are summed
// fails: single_process::each_step_is_that_of_one_gpu
// says: the parts' means were summed: each part has to count by its share of the batch

use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};
use lab::digits::{Batch, DeviceSamples, PIXELS};
use lab::{Kernels, Perceptron};

pub struct Replica {
    pub model: Perceptron,
    pixels: CudaSlice<f32>,
    labels: CudaSlice<u32>,
}

pub struct SingleProcess {
    pub replicas: Vec<Replica>,
    arrived: CudaSlice<f32>,
    kernels: Kernels,
    pub bytes: usize,
}

pub fn part(batch: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let cut = |index: usize| batch.start + batch.len() * index / count;
    cut(index)..cut(index + 1)
}

fn send<T>(bytes: &mut usize, from: &CudaView<T>, to: &mut CudaViewMut<T>) -> anyhow::Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    let stream = to.stream().clone();
    stream.memcpy_dtod(from, to)?;
    from.stream().join(&stream)?;
    *bytes += from.num_bytes();
    Ok(())
}

impl Replica {
    pub fn compute(&mut self, own: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        self.model.forward(own)?;
        self.model.backward(own, weight)
    }

    pub fn compute_sent(&mut self, bytes: &mut usize, own: &Batch<'_>, weight: f32) -> anyhow::Result<()> {
        let Self { model, pixels, labels } = self;
        send(bytes, &own.pixels, &mut pixels.slice_mut(..own.pixels.len()))?;
        send(bytes, &own.labels, &mut labels.slice_mut(..own.labels.len()))?;
        let own =
            Batch { pixels: pixels.slice(..own.pixels.len()), labels: labels.slice(..own.labels.len()) };
        model.forward(&own)?;
        model.backward(&own, weight)
    }
}

impl SingleProcess {
    pub fn new(streams: &[Arc<CudaStream>], hidden: usize, room: usize, seed: u64) -> anyhow::Result<Self> {
        let stream = streams.first().context("no stream, so no GPU")?;
        let replica = |(stream, seed): (&Arc<CudaStream>, u64)| {
            let model = Perceptron::new(stream, hidden, room, seed)?;
            Ok(Replica {
                model,
                pixels: stream.alloc_zeros(room * PIXELS)?,
                labels: stream.alloc_zeros(room)?,
            })
        };
        let replicas: Vec<Replica> =
            streams.iter().zip(seed..).map(replica).collect::<anyhow::Result<_>>()?;
        let arrived = stream.alloc_zeros(replicas[0].model.gradient_and_loss().len())?;
        Ok(Self { arrived, kernels: Kernels::load(stream.context())?, replicas, bytes: 0 })
    }

    pub fn refresh(&mut self) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        for other in others {
            send(bytes, &first.model.parameters(), &mut other.model.parameters_mut())?;
        }
        Ok(())
    }

    pub fn scatter(&mut self, samples: &DeviceSamples, batch: &Range<usize>) -> anyhow::Result<()> {
        let Self { replicas, bytes, .. } = self;
        let count = replicas.len();
        for (index, replica) in replicas.iter_mut().enumerate() {
            let own = samples.batch(part(batch, index, count))?;
            match index {
                0 => replica.compute(&own, 1.0)?,
                _ => replica.compute_sent(bytes, &own, 1.0)?,
            }
        }
        Ok(())
    }

    pub fn gather(&mut self) -> anyhow::Result<()> {
        let Self { replicas, arrived, kernels, bytes } = self;
        let (first, others) = replicas.split_first_mut().context("no replica")?;
        let stream = first.model.stream().clone();
        for other in others {
            send(bytes, &other.model.gradient_and_loss(), &mut arrived.as_view_mut())?;
            kernels.axpy(&stream, &mut first.model.gradient_and_loss_mut(), arrived, 1.0)?;
        }
        Ok(())
    }

    pub fn step(
        &mut self,
        samples: &DeviceSamples,
        batch: &Range<usize>,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        self.refresh()?;
        self.scatter(samples, batch)?;
        self.gather()?;
        let first = &mut self.replicas[0].model;
        first.descend(learning_rate)?;
        first.loss()
    }
}
