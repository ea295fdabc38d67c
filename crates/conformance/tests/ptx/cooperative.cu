// Blocks that wait for each other. Compiled with the headers of nvidia-cuda-runtime-cu12 12.0.146.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// out[i] = the sum of what the other end of the grid wrote in each step.
extern "C" __global__ void reverse_steps(int *data, int *out, int steps) {
    cg::grid_group grid = cg::this_grid();
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    int sum = 0;
    for (int step = 0; step < steps; step++) {
        data[i] = i + step;
        grid.sync();
        sum += data[n - 1 - i];
        grid.sync();
    }
    out[i] = sum;
}

// Like grid.sync(), but by hand: the last block to arrive releases the others.
extern "C" __global__ void barrier_by_hand(int *arrived, volatile int *go, int *out) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(arrived, 1) == gridDim.x - 1)
            *go = 1;
        while (*go == 0) {
        }
        __threadfence();
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = *arrived;
}

// Block 0 waits for the last block.
extern "C" __global__ void first_waits_for_last(volatile int *flag, int *out) {
    if (threadIdx.x == 0) {
        if (blockIdx.x == gridDim.x - 1) {
            *flag = 7;
        } else if (blockIdx.x == 0) {
            while (*flag == 0) {
            }
        }
        out[blockIdx.x] = blockIdx.x == 0 ? *flag : 1;
    }
}

// A plain load, and a fence that makes the compiler load again.
extern "C" __global__ void waits_behind_a_fence(int *flag) {
    if (blockIdx.x == 0) {
        while (flag[0] == 0) __threadfence();
    } else {
        atomicExch(flag, 1);
    }
}

// Waits for something that never comes, but only for a limited time.
extern "C" __global__ void gives_up(volatile int *flag, int *turns) {
    int n = 0;
    while (*flag == 0 && n < 100000) n++;
    *turns = n;
}

extern "C" __global__ void for_ever() {
    while (true) __nanosleep(10);
}

extern "C" __global__ void counts_for_ever(volatile int *at) {
    for (unsigned long long n = 0;; n++)
        if (n == ~0ull) *at = 1;
}

// Each thread waits for its neighbor in the next block, around the grid.
extern "C" __global__ void waits_in_a_circle(volatile int *flags) {
    int next = (blockIdx.x + 1) % gridDim.x;
    while (flags[next] == 0) {
    }
    flags[blockIdx.x] = 1;
}
