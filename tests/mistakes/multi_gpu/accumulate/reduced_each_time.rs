// mistake: the gradients are reduced after each micro-batch
// fails: accumulate::a_step_has_one_all_reduce
// says: took 12 calls of AllReduce, expected 3, one for each rank and step
// says: gradients are reduced after each micro-batch: sum them first, and reduce the sum

use std::ops::Range;

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaSlice;
use cudarc::nccl::Comm;
use lab::digits::DeviceSamples;
use lab::{Kernels, Perceptron};

pub struct Accumulator {
    kernels: Kernels,
    total: CudaSlice<f32>,
}

impl Accumulator {
    pub fn new(model: &Perceptron) -> anyhow::Result<Self> {
        let stream = model.stream();
        let total = stream.alloc_zeros(model.gradient_and_loss().len())?;
        Ok(Self { kernels: Kernels::load(stream.context())?, total })
    }

    pub fn step(
        &mut self,
        comm: &Comm,
        model: &mut Perceptron,
        samples: &DeviceSamples,
        micro_batches: &[Range<usize>],
        batch_len: usize,
        learning_rate: f32,
    ) -> anyhow::Result<f32> {
        let stream = comm.stream();
        stream.memset_zeros(&mut self.total)?;
        for micro_batch in micro_batches {
            let weight = (micro_batch.len() * comm.world_size()) as f32 / batch_len as f32;
            let own = samples.batch(micro_batch.clone())?;
            model.forward(&own)?;
            model.backward(&own, weight)?;
            average_in_place(comm, &mut model.gradient_and_loss_mut())?;
            self.kernels.axpy(&stream, &mut self.total, &model.gradient_and_loss(), 1.0)?;
        }
        self.descend(model, learning_rate)
    }

    fn descend(&self, model: &mut Perceptron, learning_rate: f32) -> anyhow::Result<f32> {
        let (stream, parameters) = (model.stream().clone(), model.parameters().len());
        let gradient = self.total.slice(..parameters);
        self.kernels.sgd_step(&stream, &mut model.parameters_mut(), &gradient, learning_rate)?;
        let loss = stream.clone_dtoh(&self.total.slice(parameters..))?;
        Ok(loss[0])
    }
}
