// Kernels on whole vectors: norm, softmax, and the number of elements that are not finite. One block of THREADS threads
// reduces in a fixed order, so the same vector gives the same bits on every run.

constexpr unsigned int THREADS = 256;

__device__ static unsigned int element() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ static float minus_infinity() { return __int_as_float(0xff800000); }

// sum[0] = x[0]² + ... + x[n - 1]²
extern "C" __global__ void sum_of_squares(float* sum, const float* x, unsigned int n) {
    __shared__ float partial[THREADS];
    unsigned int thread = threadIdx.x;
    float own = 0.0f;
    for (unsigned int i = thread; i < n; i += THREADS) own += x[i] * x[i];
    partial[thread] = own;
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) partial[thread] += partial[thread + half];
    }
    if (thread == 0) sum[0] = partial[0];
}

// most[0] = the largest x[i], or minus infinity if the vector is empty
extern "C" __global__ void maximum(float* most, const float* x, unsigned int n) {
    __shared__ float partial[THREADS];
    unsigned int thread = threadIdx.x;
    float own = minus_infinity();
    for (unsigned int i = thread; i < n; i += THREADS) own = fmaxf(own, x[i]);
    partial[thread] = own;
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) partial[thread] = fmaxf(partial[thread], partial[thread + half]);
    }
    if (thread == 0) most[0] = partial[0];
}

// x[i] = exp(x[i] - shift[0])
extern "C" __global__ void exp_minus(float* x, const float* shift, unsigned int n) {
    unsigned int i = element();
    if (i < n) x[i] = expf(x[i] - shift[0]);
}

// x[i] /= divisor[0]
extern "C" __global__ void divide(float* x, const float* divisor, unsigned int n) {
    unsigned int i = element();
    if (i < n) x[i] /= divisor[0];
}

// count[0] += number of elements that are infinite or NaN. Integer sums do not depend on the order.
extern "C" __global__ void count_not_finite(unsigned int* count, const float* x, unsigned int n) {
    unsigned int i = element();
    if (i < n && !isfinite(x[i])) atomicAdd(count, 1u);
}
