// Kernels that are right or wrong depending on their arguments: `wrong` selects the mistake.

extern "C" __global__ void write(float *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = i;
    }
}

extern "C" __global__ void increment(float *data, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        data[i] += 1;
    }
}

extern "C" __global__ void add_to(unsigned *sum) {
    atomicAdd(sum, 1u);
}

extern "C" __global__ void stop(int wrong) {
    if (wrong && threadIdx.x == 3) {
        __trap();
    }
}

extern "C" __global__ void meet(float *out, int wrong) {
    if (!wrong || threadIdx.x < 48) {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void meet_in_a_warp(unsigned *out, int wrong) {
    if (!wrong || threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_xor_sync(0xffffffff, threadIdx.x, 16);
    }
}

extern "C" __global__ void wait_for(volatile unsigned *flag, int wrong) {
    if (!wrong) {
        *flag = 1;
    }
    while (*flag == 0) {
    }
}

extern "C" __global__ void tile(float *out, int wrong) {
    __shared__ float values[64];
    values[threadIdx.x + (wrong ? 1 : 0)] = 1;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void unwritten_tile(float *out, int wrong) {
    __shared__ float values[64];
    if (!wrong || threadIdx.x != 7) {
        values[threadIdx.x] = 1;
    }
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void own_array(float *out, unsigned at) {
    float values[8];
    for (unsigned i = 0; i < 8; i++) {
        values[i] = i * out[i];
    }
    out[0] = values[at];
}
