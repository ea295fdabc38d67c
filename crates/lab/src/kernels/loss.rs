//! Kernels of `loss.cu`: cross-entropy, its gradient, and sums.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{elements, reduction};
use super::shape::Matrix;

impl Kernels {
    /// `losses[row]` = −log softmax(`logits[row]`)`[labels[row]]`. NaN where a label is not a class.
    ///
    /// # Errors
    /// See [`Kernels`]; there must be at least one class.
    pub fn cross_entropy(
        &self,
        stream: &CudaStream,
        losses: &mut impl DevicePtrMut<f32>,
        logits: &impl DevicePtr<f32>,
        labels: &impl DevicePtr<u32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("cross_entropy", &self.cross_entropy, stream)?;
        let (rows, classes) = call.expect_scores(logits.len(), labels.len(), shape)?;
        call.expect_length("losses", losses.len(), shape.rows)?;
        let (logits, _logits_read) = logits.device_ptr(stream);
        let (labels, _labels_read) = labels.device_ptr(stream);
        let (losses, _written) = losses.device_ptr_mut(stream);
        // SAFETY: the kernel is cross_entropy(float*, const float*, const unsigned*, unsigned, unsigned); the lengths
        // are rows, rows × classes and rows, and there is a class.
        unsafe { call.launch(elements(rows), &[&losses, &logits, &labels, &rows, &classes]) }
    }

    /// `gradient[row][c]` = factor · (softmax(`logits[row]`)`[c]` − (1 if c is the label, else 0)). With factor 1 / rows
    /// this is the gradient of the mean cross-entropy.
    ///
    /// # Errors
    /// See [`Kernels`]; there must be at least one class.
    pub fn cross_entropy_gradient(
        &self,
        stream: &CudaStream,
        gradient: &mut impl DevicePtrMut<f32>,
        logits: &impl DevicePtr<f32>,
        labels: &impl DevicePtr<u32>,
        factor: f32,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("cross_entropy_gradient", &self.cross_entropy_gradient, stream)?;
        let (rows, classes) = call.expect_scores(logits.len(), labels.len(), shape)?;
        call.expect_length("gradient", gradient.len(), logits.len())?;
        let (logits, _logits_read) = logits.device_ptr(stream);
        let (labels, _labels_read) = labels.device_ptr(stream);
        let (gradient, _written) = gradient.device_ptr_mut(stream);
        // SAFETY: the kernel is cross_entropy_gradient(float*, const float*, const unsigned*, float, unsigned,
        // unsigned); the lengths are rows × classes, twice, and rows, and there is a class.
        unsafe { call.launch(elements(rows), &[&gradient, &logits, &labels, &factor, &rows, &classes]) }
    }

    /// Adds to `count[0]` the number of rows whose first largest score is the label's.
    ///
    /// # Errors
    /// See [`Kernels`]; there must be at least one class.
    pub fn count_correct(
        &self,
        stream: &CudaStream,
        count: &mut impl DevicePtrMut<u32>,
        logits: &impl DevicePtr<f32>,
        labels: &impl DevicePtr<u32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("count_correct", &self.count_correct, stream)?;
        let (rows, classes) = call.expect_scores(logits.len(), labels.len(), shape)?;
        call.expect_length("count", count.len(), 1)?;
        let (logits, _logits_read) = logits.device_ptr(stream);
        let (labels, _labels_read) = labels.device_ptr(stream);
        let (count, _written) = count.device_ptr_mut(stream);
        // SAFETY: the kernel is count_correct(unsigned*, const float*, const unsigned*, unsigned, unsigned); the
        // lengths are 1, rows × classes and rows, and there is a class.
        unsafe { call.launch(elements(rows), &[&count, &logits, &labels, &rows, &classes]) }
    }

    /// `sum[0]` = the sum of all `x[i]`, in an order that depends on the length alone; 0 if there are none.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn sum(
        &self,
        stream: &CudaStream,
        sum: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        reduction(&self.call("sum", &self.sum, stream)?, "sum", sum, x)
    }
}
