//! The kernels of `loss.cu`: cross-entropy, its gradient, and sums.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::Kernels;
use super::launch::{elements, reduction};
use super::shape::Matrix;

impl Kernels {
    /// Computes `losses[row]` = −log softmax(`logits[row]`)`[labels[row]]`. A loss is NaN if its label is not a class.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no classes.
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
        // are rows, rows × classes, and rows, and there is at least one class.
        unsafe { call.launch(elements(rows), &[&losses, &logits, &labels, &rows, &classes]) }
    }

    /// Computes `gradient[row][c]` = factor · (softmax(`logits[row]`)`[c]` − (1 if c is the label, else 0)). With a
    /// factor of 1 / rows, this is the gradient of the mean cross-entropy.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no classes.
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
        // unsigned); the lengths are rows × classes, rows × classes, and rows, and there is at least one class.
        unsafe { call.launch(elements(rows), &[&gradient, &logits, &labels, &factor, &rows, &classes]) }
    }

    /// Adds to `count[0]` the number of rows whose first largest score belongs to the label.
    ///
    /// # Errors
    /// See [`Kernels`]. Also fails if there are no classes.
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
        // lengths are 1, rows × classes, and rows, and there is at least one class.
        unsafe { call.launch(elements(rows), &[&count, &logits, &labels, &rows, &classes]) }
    }

    /// Computes `sum[0]`, the sum of all `x[i]`, or 0 if there are none. The order depends only on the length.
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
