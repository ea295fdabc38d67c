// For compute_90: threads that wait for each other, and for copies, through `cuda::barrier`.
#include <cuda/barrier>

// One block. In each round, every thread replaces its number by the sum of all numbers modulo 1000, plus its index.
extern "C" __global__ void rounds(const int *x, int *y, int count) {
    __shared__ cuda::barrier<cuda::thread_scope_block> all;
    __shared__ int parts[128];
    if (threadIdx.x == 0) init(&all, blockDim.x);
    __syncthreads();
    int mine = x[threadIdx.x];
    for (int round = 0; round < count; round++) {
        parts[threadIdx.x] = mine;
        all.arrive_and_wait();
        int sum = 0;
        for (int i = 0; i < blockDim.x; i++) sum += parts[i];
        all.wait(all.arrive());
        mine = sum % 1000 + threadIdx.x;
    }
    y[threadIdx.x] = mine;
}

// One block: y = x in reverse order. The copy to shared memory is asynchronous.
extern "C" __global__ void reversed(const int *x, int *y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> copied;
    __shared__ alignas(16) int tile[128];
    if (threadIdx.x == 0) init(&copied, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(tile + threadIdx.x, x + threadIdx.x, sizeof(int), copied);
    copied.arrive_and_wait();
    y[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

// One block: y = x, after all threads but the last one have waited for all threads.
extern "C" __global__ void missing(const int *x, int *y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> all;
    if (threadIdx.x == 0) init(&all, blockDim.x);
    __syncthreads();
    if (threadIdx.x != blockDim.x - 1) all.arrive_and_wait();
    y[threadIdx.x] = x[threadIdx.x];
}
