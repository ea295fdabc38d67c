// The kernels of a training loop: matrix product, ReLU, softmax cross-entropy, reductions, an optimizer step.

#define TILE 16

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float left[TILE][TILE];
    __shared__ float right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int at = 0; at < k; at += TILE) {
        int i = at + threadIdx.x, j = at + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : 0.0f;
        right[threadIdx.y][threadIdx.x] = j < k && column < n ? b[j * n + column] : 0.0f;
        __syncthreads();
        for (int t = 0; t < TILE; t++) sum += left[threadIdx.y][t] * right[t][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void relu(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = fmaxf(x[i], 0.0f);
}

extern "C" __global__ void relu_backward(const float *y, float *dy, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (y[i] <= 0.0f) dy[i] = 0.0f;
}

// One thread per row: loss[0] += mean cross-entropy, d = (softmax - one_hot) / rows.
extern "C" __global__ void cross_entropy(const float *logits, const int *labels, float *loss, float *d, int rows,
                                         int classes) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float *z = logits + (size_t)row * classes;
    float largest = z[0];
    for (int i = 1; i < classes; i++) largest = fmaxf(largest, z[i]);
    float sum = 0.0f;
    for (int i = 0; i < classes; i++) sum += expf(z[i] - largest);
    atomicAdd(loss, (logf(sum) + largest - z[labels[row]]) / rows);
    for (int i = 0; i < classes; i++)
        d[(size_t)row * classes + i] = (expf(z[i] - largest) / sum - (i == labels[row])) / rows;
}

extern "C" __global__ void sum(const float *x, float *total, int n) {
    extern __shared__ float parts[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(total, parts[0]);
}

extern "C" __global__ void sum_by_shuffles(const float *x, double *total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(total, (double)value);
}

extern "C" __global__ void sgd(float *w, const float *gradient, float rate, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) w[i] -= rate * gradient[i];
}

extern "C" __global__ void histogram(const unsigned char *x, int *counts, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&counts[x[i]], 1);
}

extern "C" __global__ void column_sums(const float4 *x, float4 *sums, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float4 s = make_float4(0, 0, 0, 0);
    for (int r = 0; r < rows; r++) {
        float4 v = x[r * columns + c];
        s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
    }
    sums[c] = s;
}
