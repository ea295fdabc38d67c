//! The kernels of `transformer.cu`: norm and dropout.

use anyhow::ensure;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::elements;
use super::shape::Matrix;
use crate::random::SplitMix64;

/// A small number that keeps the norm of a row of zeros finite.
const EPSILON: f32 = 1e-5;

/// Which elements of a buffer are dropped. Each element has a random number, which depends only on the seed and on the
/// element's index in the whole buffer. So a rank with a part of the buffer drops the same elements as one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The seed of the random numbers. Use another one in each layer and in each step.
    pub seed: u64,
    /// The probability that an element is dropped, from 0 to below 1.
    pub probability: f32,
}

impl Dropout {
    /// Returns for each of the first `len` elements whether it is dropped.
    pub fn mask(self, len: usize) -> Vec<bool> {
        let mut random = SplitMix64::new(self.seed);
        (0..len).map(|_| random.next_u64() >> 32 < u64::from(self.threshold())).collect()
    }

    /// Returns the factor of the elements that are not dropped, which keeps the mean.
    pub fn factor(self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    fn threshold(self) -> u32 {
        (f64::from(self.probability) * f64::powi(2.0, 32)) as u32
    }
}

impl Kernels {
    /// Divides each row of `x` by the square root of the mean of its squares, and writes the result to `y` (RMSNorm,
    /// without weights). A row's result does not depend on the other rows.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn rms_norm(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("rms_norm", &self.rms_norm, stream)?;
        let (rows, columns) = call.expect_matrix("y", y.len(), shape)?;
        call.expect_matrix("x", x.len(), shape)?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is rms_norm(float*, const float*, float, unsigned, unsigned); both buffers hold
        // rows × columns elements.
        unsafe { call.launch(elements(rows), &[&y, &x, &EPSILON, &rows, &columns]) }
    }

    /// Drops elements of `x`, in place: `x[i]` is element `first + i` of the whole buffer. A dropped element becomes 0,
    /// and each other element is multiplied by [`Dropout::factor`].
    ///
    /// # Errors
    /// Fails if the probability is not from 0 to below 1. Also see [`Kernels`].
    pub fn dropout(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        dropout: Dropout,
        first: usize,
    ) -> anyhow::Result<()> {
        let call = self.call("dropout", &self.dropout, stream)?;
        let n = call.index("x", x.len())?;
        let Dropout { seed, probability } = dropout;
        ensure!(
            (0.0..1.0).contains(&probability),
            "kernel `dropout`: the probability is {probability}, expected 0 to below 1"
        );
        let (first, threshold, factor) = (first as u64, dropout.threshold(), dropout.factor());
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is dropout(float*, unsigned long long, unsigned long long, unsigned, float, unsigned), and
        // `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &seed, &first, &threshold, &factor, &n]) }
    }
}
