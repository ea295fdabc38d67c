// Classification: each row of `logits` scores one sample, `labels` holds its correct class. One thread handles one row.
// For a label that is not a class, the result is NaN. Without the check, the access would be out of bounds.

constexpr unsigned int SUM_THREADS = 256;

__device__ static float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ static unsigned int row_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// The kernels subtract the largest score before exp, which then can't overflow.
__device__ static float largest(const float* scores, unsigned int classes) {
    float most = scores[0];
    for (unsigned int c = 1; c < classes; c++) most = fmaxf(most, scores[c]);
    return most;
}

__device__ static float sum_of_exponentials(const float* scores, float most, unsigned int classes) {
    float sum = 0.0f;
    for (unsigned int c = 0; c < classes; c++) sum += expf(scores[c] - most);
    return sum;
}

// losses[row] = -log(softmax(logits[row])[label])
extern "C" __global__ void cross_entropy(float* losses, const float* logits, const unsigned int* labels,
                                         unsigned int rows, unsigned int classes) {
    unsigned int row = row_index();
    if (row >= rows) return;
    const float* scores = logits + row * classes;
    unsigned int label = labels[row];
    float most = largest(scores, classes);
    float sum = sum_of_exponentials(scores, most, classes);
    losses[row] = label < classes ? logf(sum) - (scores[label] - most) : not_a_number();
}

// gradient[row][c] = factor * (softmax(logits[row])[c] - (c == label))
extern "C" __global__ void cross_entropy_gradient(float* gradient, const float* logits, const unsigned int* labels,
                                                  float factor, unsigned int rows, unsigned int classes) {
    unsigned int row = row_index();
    if (row >= rows) return;
    const float* scores = logits + row * classes;
    unsigned int label = labels[row];
    float most = largest(scores, classes);
    float sum = sum_of_exponentials(scores, most, classes);
    for (unsigned int c = 0; c < classes; c++) {
        float difference = expf(scores[c] - most) / sum - (c == label ? 1.0f : 0.0f);
        gradient[row * classes + c] = label < classes ? factor * difference : not_a_number();
    }
}

// count[0] += number of rows whose first largest score is the label's. Integer sums do not depend on the order.
extern "C" __global__ void count_correct(unsigned int* count, const float* logits, const unsigned int* labels,
                                         unsigned int rows, unsigned int classes) {
    unsigned int row = row_index();
    if (row >= rows) return;
    const float* scores = logits + row * classes;
    unsigned int best = 0;
    for (unsigned int c = 1; c < classes; c++)
        if (scores[c] > scores[best]) best = c;
    if (best == labels[row]) atomicAdd(count, 1u);
}

// sum[0] = x[0] + ... + x[n - 1], by one block of SUM_THREADS threads: each sums every SUM_THREADS-th element,
// then a tree combines the partial sums. The order is fixed, so every run gives the same bits.
extern "C" __global__ void sum(float* sum, const float* x, unsigned int n) {
    __shared__ float partial[SUM_THREADS];
    unsigned int thread = threadIdx.x;
    float own = 0.0f;
    for (unsigned int i = thread; i < n; i += SUM_THREADS) own += x[i];
    partial[thread] = own;
    for (unsigned int half = SUM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) partial[thread] += partial[thread + half];
    }
    if (thread == 0) sum[0] = partial[0];
}
