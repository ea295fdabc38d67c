// The parts of a layer other than its matrix product. Matrices are row-major, with one row per sample.

// matrix[row][column] += bias[column]
extern "C" __global__ void add_bias(float* matrix, const float* bias, unsigned int rows, unsigned int columns) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * columns) matrix[i] += bias[i % columns];
}

// sums[column] = sum over the rows of matrix[row][column], which is the gradient of a bias.
// One thread per column sums in ascending order of rows, for the same bits on every run. Atomics wouldn't give that.
extern "C" __global__ void column_sums(float* sums, const float* matrix, unsigned int rows, unsigned int columns) {
    unsigned int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float sum = 0.0f;
    for (unsigned int row = 0; row < rows; row++) sum += matrix[row * columns + column];
    sums[column] = sum;
}

// x[i] = max(x[i], 0). A NaN stays a NaN, so that it does not go unnoticed.
extern "C" __global__ void relu(float* x, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] < 0.0f) x[i] = 0.0f;
}

// gradient[i] = 0 where the result of ReLU is 0, because the slope there is 0. Elsewhere the slope is 1.
extern "C" __global__ void relu_gradient(float* gradient, const float* activation, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && activation[i] <= 0.0f) gradient[i] = 0.0f;
}
