// Faults that reports should locate by line: __syncthreads that not every thread reaches, an index too large inside an
// inlined function, shared memory that was never written.

__device__ float element(const float *x, int i) {
    return x[i];
}

extern "C" __global__ void reads_through(const float *x, float *y, int n) {
    int i = threadIdx.x;
    y[i] = element(x, i + n);
}

extern "C" __global__ void half_a_barrier(int *x) {
    if (threadIdx.x < 40)
        __syncthreads();
    x[threadIdx.x] = 1;
}

extern "C" __global__ void early_return(int *x, int n) {
    __shared__ int all[64];
    if (threadIdx.x >= n) return;
    all[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = all[n - 1 - threadIdx.x];
}

extern "C" __global__ void unwritten_shared(int *x) {
    __shared__ int all[64];
    if (threadIdx.x < 32) all[threadIdx.x] = 3;
    __syncthreads();
    x[threadIdx.x] = all[threadIdx.x];
}

extern "C" __global__ void beyond_shared(int *x, int i) {
    __shared__ int all[64];
    all[threadIdx.x] = 3;
    __syncthreads();
    x[threadIdx.x] = all[threadIdx.x + i];
}

extern "C" __global__ void half_a_shuffle(int *x) {
    int mine = x[threadIdx.x];
    if (threadIdx.x >= 20) return;
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, mine, 1);
}
