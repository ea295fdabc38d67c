//! The course's kernels, each as a method that checks every length before it launches.
//!
//! Buffers are cudarc's slices or views. They go through [`DevicePtr`] and [`DevicePtrMut`], as in cudarc's own copies
//! and collectives, so its automatic event tracking sees each use. Matrices are row-major `f32`. Nothing here waits
//! for the GPU.

mod launch;

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig};

use launch::{Call, File, by_one_number, elements, product, reduction};

/// PTX of `fill`, `axpy`, `scale`, `sgd_step` and `momentum_step`.
pub const ELEMENTWISE: &str = include_str!("../kernels/elementwise.ptx");
/// PTX of `matmul`, `matmul_ta` and `matmul_tb`.
pub const MATMUL: &str = include_str!("../kernels/matmul.ptx");
/// PTX of `add_bias`, `column_sums`, `relu` and `relu_gradient`.
pub const LAYER: &str = include_str!("../kernels/layer.ptx");
/// PTX of `cross_entropy`, `cross_entropy_gradient`, `count_correct` and `sum`.
pub const LOSS: &str = include_str!("../kernels/loss.ptx");
/// PTX of `sum_of_squares`, `maximum`, `exp_minus`, `divide` and `count_not_finite`.
pub const VECTOR: &str = include_str!("../kernels/vector.ptx");
/// PTX of `spin`.
pub const SPIN: &str = include_str!("../kernels/spin.ptx");
/// PTX of `trap`, a kernel without arguments that fails: for checks of what comes of that.
pub const TRAP: &str =
    ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry trap() {\n    trap;\n    ret;\n}\n";

/// Shape of a product `c = a · b`: `a` is m×k, `b` is k×n, `c` is m×n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of `a` and of `c`.
    pub m: usize,
    /// Columns of `b` and of `c`.
    pub n: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
}

/// Shape of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Its rows: in the loss kernels, one per sample.
    pub rows: usize,
    /// Its columns: in the loss kernels, one per class.
    pub columns: usize,
}

/// All kernels of `kernels/`, loaded on one GPU.
///
/// Every method fails, before anything is launched, when a buffer's length is not what the shape says, when a buffer
/// has more elements than a kernel can index (2³² − 1), or when the stream belongs to another GPU; the error names the
/// kernel, the argument and both lengths. A launch over no elements does nothing.
#[derive(Debug)]
pub struct Kernels {
    context: Arc<CudaContext>,
    fill: CudaFunction,
    axpy: CudaFunction,
    scale: CudaFunction,
    sgd_step: CudaFunction,
    momentum_step: CudaFunction,
    matmul: CudaFunction,
    matmul_ta: CudaFunction,
    matmul_tb: CudaFunction,
    add_bias: CudaFunction,
    column_sums: CudaFunction,
    relu: CudaFunction,
    relu_gradient: CudaFunction,
    cross_entropy: CudaFunction,
    cross_entropy_gradient: CudaFunction,
    count_correct: CudaFunction,
    sum: CudaFunction,
    sum_of_squares: CudaFunction,
    maximum: CudaFunction,
    exp_minus: CudaFunction,
    divide: CudaFunction,
    count_not_finite: CudaFunction,
    spin: CudaFunction,
}

impl Kernels {
    /// Loads every kernel on the context's GPU.
    ///
    /// # Errors
    /// The driver refuses the PTX, or a file lacks a kernel: the error names the file and the kernel.
    pub fn load(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let elementwise = File::load(context, "elementwise", ELEMENTWISE)?;
        let matmul = File::load(context, "matmul", MATMUL)?;
        let layer = File::load(context, "layer", LAYER)?;
        let loss = File::load(context, "loss", LOSS)?;
        let vector = File::load(context, "vector", VECTOR)?;
        let spin = File::load(context, "spin", SPIN)?;
        Ok(Self {
            context: context.clone(),
            fill: elementwise.kernel("fill")?,
            axpy: elementwise.kernel("axpy")?,
            scale: elementwise.kernel("scale")?,
            sgd_step: elementwise.kernel("sgd_step")?,
            momentum_step: elementwise.kernel("momentum_step")?,
            matmul: matmul.kernel("matmul")?,
            matmul_ta: matmul.kernel("matmul_ta")?,
            matmul_tb: matmul.kernel("matmul_tb")?,
            add_bias: layer.kernel("add_bias")?,
            column_sums: layer.kernel("column_sums")?,
            relu: layer.kernel("relu")?,
            relu_gradient: layer.kernel("relu_gradient")?,
            cross_entropy: loss.kernel("cross_entropy")?,
            cross_entropy_gradient: loss.kernel("cross_entropy_gradient")?,
            count_correct: loss.kernel("count_correct")?,
            sum: loss.kernel("sum")?,
            sum_of_squares: vector.kernel("sum_of_squares")?,
            maximum: vector.kernel("maximum")?,
            exp_minus: vector.kernel("exp_minus")?,
            divide: vector.kernel("divide")?,
            count_not_finite: vector.kernel("count_not_finite")?,
            spin: spin.kernel("spin")?,
        })
    }

    /// `x[i] = value`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn fill(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        value: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("fill", &self.fill, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is fill(float*, float, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &value, &n]) }
    }

    /// `y[i] += a · x[i]`. `x` and `y` have one length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn axpy(
        &self,
        stream: &CudaStream,
        y: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
        a: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("axpy", &self.axpy, stream)?;
        let n = call.index("y", y.len())?;
        call.expect_length("x", x.len(), y.len())?;
        let (x, _read) = x.device_ptr(stream);
        let (y, _written) = y.device_ptr_mut(stream);
        // SAFETY: the kernel is axpy(float*, const float*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&y, &x, &a, &n]) }
    }

    /// `x[i] *= factor`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn scale(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        factor: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("scale", &self.scale, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is scale(float*, float, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &factor, &n]) }
    }

    /// Gradient descent, `parameters[i] -= learning_rate · gradient[i]`. Both have one length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn sgd_step(
        &self,
        stream: &CudaStream,
        parameters: &mut impl DevicePtrMut<f32>,
        gradient: &impl DevicePtr<f32>,
        learning_rate: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("sgd_step", &self.sgd_step, stream)?;
        let n = call.index("parameters", parameters.len())?;
        call.expect_length("gradient", gradient.len(), parameters.len())?;
        let (gradient, _read) = gradient.device_ptr(stream);
        let (parameters, _written) = parameters.device_ptr_mut(stream);
        // SAFETY: the kernel is sgd_step(float*, const float*, float, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&parameters, &gradient, &learning_rate, &n]) }
    }

    /// Gradient descent with momentum: `velocity[i] = momentum · velocity[i] + gradient[i]`, then
    /// `parameters[i] -= learning_rate · velocity[i]`. All three have one length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn momentum_step(
        &self,
        stream: &CudaStream,
        parameters: &mut impl DevicePtrMut<f32>,
        velocity: &mut impl DevicePtrMut<f32>,
        gradient: &impl DevicePtr<f32>,
        learning_rate: f32,
        momentum: f32,
    ) -> anyhow::Result<()> {
        let call = self.call("momentum_step", &self.momentum_step, stream)?;
        let n = call.index("parameters", parameters.len())?;
        call.expect_length("velocity", velocity.len(), parameters.len())?;
        call.expect_length("gradient", gradient.len(), parameters.len())?;
        let (gradient, _read) = gradient.device_ptr(stream);
        let (velocity, _velocity_written) = velocity.device_ptr_mut(stream);
        let (parameters, _written) = parameters.device_ptr_mut(stream);
        // SAFETY: the kernel is momentum_step(float*, float*, const float*, float, float, unsigned); all three buffers
        // hold n elements.
        unsafe {
            call.launch(elements(n), &[&parameters, &velocity, &gradient, &learning_rate, &momentum, &n])
        }
    }

    /// `c = a · b`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul", &self.matmul, stream)?, c, a, b, shape)
    }

    /// `c = aᵀ · b`: the buffer `a` has k rows and m columns.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul_ta(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul_ta", &self.matmul_ta, stream)?, c, a, b, shape)
    }

    /// `c = a · bᵀ`: the buffer `b` has n rows and k columns.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn matmul_tb(
        &self,
        stream: &CudaStream,
        c: &mut impl DevicePtrMut<f32>,
        a: &impl DevicePtr<f32>,
        b: &impl DevicePtr<f32>,
        shape: Product,
    ) -> anyhow::Result<()> {
        product(&self.call("matmul_tb", &self.matmul_tb, stream)?, c, a, b, shape)
    }

    /// `matrix[row][column] += bias[column]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn add_bias(
        &self,
        stream: &CudaStream,
        matrix: &mut impl DevicePtrMut<f32>,
        bias: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("add_bias", &self.add_bias, stream)?;
        let (rows, columns) = call.expect_matrix("matrix", matrix.len(), shape)?;
        call.expect_length("bias", bias.len(), shape.columns)?;
        let (bias, _read) = bias.device_ptr(stream);
        let (matrix, _written) = matrix.device_ptr_mut(stream);
        // SAFETY: the kernel is add_bias(float*, const float*, unsigned, unsigned); rows × columns and columns elements.
        unsafe { call.launch(elements(rows * columns), &[&matrix, &bias, &rows, &columns]) }
    }

    /// `sums[column]` = sum over the rows of `matrix[row][column]`: the gradient of a bias. 0 where there are no rows.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn column_sums(
        &self,
        stream: &CudaStream,
        sums: &mut impl DevicePtrMut<f32>,
        matrix: &impl DevicePtr<f32>,
        shape: Matrix,
    ) -> anyhow::Result<()> {
        let call = self.call("column_sums", &self.column_sums, stream)?;
        let (rows, columns) = call.expect_matrix("matrix", matrix.len(), shape)?;
        call.expect_length("sums", sums.len(), shape.columns)?;
        let (matrix, _read) = matrix.device_ptr(stream);
        let (sums, _written) = sums.device_ptr_mut(stream);
        // SAFETY: the kernel is column_sums(float*, const float*, unsigned, unsigned); columns and rows × columns elements.
        unsafe { call.launch(elements(columns), &[&sums, &matrix, &rows, &columns]) }
    }

    /// `x[i] = max(x[i], 0)`; a NaN stays one.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn relu(&self, stream: &CudaStream, x: &mut impl DevicePtrMut<f32>) -> anyhow::Result<()> {
        let call = self.call("relu", &self.relu, stream)?;
        let n = call.index("x", x.len())?;
        let (x, _written) = x.device_ptr_mut(stream);
        // SAFETY: the kernel is relu(float*, unsigned), and `x` holds n elements.
        unsafe { call.launch(elements(n), &[&x, &n]) }
    }

    /// `gradient[i] = 0` where `activation[i]`, ReLU's result, is 0. Both have one length.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn relu_gradient(
        &self,
        stream: &CudaStream,
        gradient: &mut impl DevicePtrMut<f32>,
        activation: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("relu_gradient", &self.relu_gradient, stream)?;
        let n = call.index("gradient", gradient.len())?;
        call.expect_length("activation", activation.len(), gradient.len())?;
        let (activation, _read) = activation.device_ptr(stream);
        let (gradient, _written) = gradient.device_ptr_mut(stream);
        // SAFETY: the kernel is relu_gradient(float*, const float*, unsigned); both buffers hold n elements.
        unsafe { call.launch(elements(n), &[&gradient, &activation, &n]) }
    }

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

    /// `sum[0]` = the sum of all `x[i]²`, in an order that depends on the length alone; 0 if there are none.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn sum_of_squares(
        &self,
        stream: &CudaStream,
        sum: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        reduction(&self.call("sum_of_squares", &self.sum_of_squares, stream)?, "sum", sum, x)
    }

    /// `most[0]` = the largest `x[i]`, −∞ if there are none. A NaN is passed over.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn maximum(
        &self,
        stream: &CudaStream,
        most: &mut impl DevicePtrMut<f32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        reduction(&self.call("maximum", &self.maximum, stream)?, "most", most, x)
    }

    /// `x[i] = exp(x[i] − shift[0])`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn exp_minus(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        shift: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        by_one_number(&self.call("exp_minus", &self.exp_minus, stream)?, x, "shift", shift)
    }

    /// `x[i] /= divisor[0]`.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn divide(
        &self,
        stream: &CudaStream,
        x: &mut impl DevicePtrMut<f32>,
        divisor: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        by_one_number(&self.call("divide", &self.divide, stream)?, x, "divisor", divisor)
    }

    /// Adds to `count[0]` the number of elements that are infinite or not a number.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn count_not_finite(
        &self,
        stream: &CudaStream,
        count: &mut impl DevicePtrMut<u32>,
        x: &impl DevicePtr<f32>,
    ) -> anyhow::Result<()> {
        let call = self.call("count_not_finite", &self.count_not_finite, stream)?;
        let n = call.index("x", x.len())?;
        call.expect_length("count", count.len(), 1)?;
        let (x, _read) = x.device_ptr(stream);
        let (count, _written) = count.device_ptr_mut(stream);
        // SAFETY: the kernel is count_not_finite(unsigned*, const float*, unsigned); 1 and n elements.
        unsafe { call.launch(elements(n), &[&count, &x, &n]) }
    }

    /// Keeps the stream busy for at least so many nanoseconds of the GPU's global timer, and touches no memory. Makes a
    /// late producer: what forgets to wait for it then reads too early on any GPU.
    ///
    /// # Errors
    /// See [`Kernels`].
    pub fn spin(&self, stream: &CudaStream, nanoseconds: u64) -> anyhow::Result<()> {
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel is spin(unsigned long long) and uses no memory.
        unsafe { self.call("spin", &self.spin, stream)?.launch(one, &[&nanoseconds]) }
    }

    fn call<'a>(
        &self,
        kernel: &'static str,
        function: &'a CudaFunction,
        stream: &'a CudaStream,
    ) -> anyhow::Result<Call<'a>> {
        let (own, other) = (self.context.ordinal(), stream.context().ordinal());
        ensure!(own == other, "kernel `{kernel}` is loaded on GPU {own}, but its stream is on GPU {other}");
        Ok(Call { kernel, function, stream })
    }
}
