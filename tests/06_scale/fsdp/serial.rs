//! The training of one GPU, on the host.

use super::{CURVATURE, LEARNING_RATE, MOMENTUM, slopes, start};

/// The layers of one GPU, as vectors of parameters and velocities.
#[derive(Clone)]
pub(super) struct Serial {
    pub(super) parameters: Vec<Vec<f64>>,
    pub(super) velocities: Vec<Vec<f64>>,
}

impl Serial {
    pub(super) fn new(lens: &[usize]) -> Self {
        let start = |(layer, &len): (usize, &usize)| start(layer, len).into_iter().map(f64::from).collect();
        Self {
            parameters: lens.iter().enumerate().map(start).collect(),
            velocities: lens.iter().map(|&len| vec![0.0; len]).collect(),
        }
    }

    /// Makes a step with `factor` times the sum of these ranks' gradients.
    pub(super) fn step(&mut self, step: usize, ranks: std::ops::Range<usize>, factor: f64) {
        self.descend(|layer, parameters| {
            let slopes: Vec<_> =
                ranks.clone().map(|rank| slopes(step, layer, rank, parameters.len())).collect();
            let gradient = |(index, parameter): (usize, &f64)| {
                let of_rank =
                    |slopes: &Vec<f32>| f64::from(slopes[index]) + f64::from(CURVATURE) * *parameter;
                factor * slopes.iter().map(of_rank).sum::<f64>()
            };
            parameters.iter().enumerate().map(gradient).collect()
        });
    }

    /// Makes a step with the gradient of each layer's parameters.
    pub(super) fn descend(&mut self, gradient: impl Fn(usize, &[f64]) -> Vec<f64>) {
        for (layer, parameters) in self.parameters.iter_mut().enumerate() {
            let gradient = gradient(layer, parameters);
            let velocities = &mut self.velocities[layer];
            for ((parameter, velocity), gradient) in parameters.iter_mut().zip(velocities).zip(gradient) {
                *velocity = MOMENTUM * *velocity + gradient;
                *parameter -= f64::from(LEARNING_RATE) * *velocity;
            }
        }
    }

    /// Returns a layer's parameters, padded with zeros.
    pub(super) fn whole(&self, layer: usize, world_size: usize) -> Vec<f32> {
        let parameters = &self.parameters[layer];
        let mut values: Vec<f32> = parameters.iter().map(|&value| value as f32).collect();
        values.resize(parameters.len().next_multiple_of(world_size), 0.0);
        values
    }
}
