// Atomics of every operation, type, space, and scope.

extern "C" {

__global__ void on_words(int *s, unsigned *u, const int *a, int *before, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    before[i] = atomicAdd(&s[0], a[i]);
    atomicSub(&s[1], a[i]);
    atomicMin(&s[2], a[i]);
    atomicMax(&s[3], a[i]);
    atomicAnd(&u[0], a[i] | 0xff);
    atomicOr(&u[1], a[i] & 0xf0f0);
    atomicXor(&u[2], a[i]);
    atomicMin(&u[3], (unsigned)a[i]);
    atomicMax(&u[4], (unsigned)a[i]);
    atomicInc(&u[5], 6);
    atomicDec(&u[6], 9);
    atomicAdd_block(&u[7], 1u);
    atomicAdd_system(&u[8], 2u);
}

__global__ void on_longs(unsigned long long *u, long long *s, const long long *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long x = a[i];
    atomicAdd(&u[0], x);
    atomicAnd(&u[1], x | 0xffffffffull);
    atomicOr(&u[2], x & 0xf0f0f0f0f0ull);
    atomicXor(&u[3], x);
    atomicMin(&u[4], x);
    atomicMax(&u[5], x);
    atomicMin(&s[0], a[i]);
    atomicMax(&s[1], a[i]);
}

__global__ void on_floats(float *f, double *d, const float *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&f[0], a[i]);
    atomicAdd(&d[0], (double)a[i]);
    // The maximum, by comparing the bits of numbers that are not negative.
    atomicMax((int *)&f[1], __float_as_int(fabsf(a[i])));
    // A product, by compare-and-swap.
    int *at = (int *)&f[2], seen = *at, assumed;
    do {
        assumed = seen;
        seen = atomicCAS(at, assumed, __float_as_int(__int_as_float(assumed) * 2));
    } while (seen != assumed);
}

__global__ void swaps(int *chain, unsigned long long *slots, unsigned short *shorts, int *last) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    chain[i] = atomicExch(last, i);
    unsigned long long mine = i + 1;
    atomicCAS(&slots[i % 4], 0ull, mine);
    atomicExch(&slots[4], mine << 32);
    atomicCAS(&shorts[i % 3], (unsigned short)0, (unsigned short)(i + 1));
}

__global__ void shared_histogram(const unsigned char *a, int *counts, int n) {
    __shared__ int bins[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[a[i]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) {
        if (bins[b]) atomicAdd(&counts[b], bins[b]);
    }
}

__global__ void shared_floats(const float *a, float *out, double *wide) {
    __shared__ float sum;
    __shared__ double sum_wide;
    __shared__ unsigned long long bits;
    if (threadIdx.x == 0) sum = 0, sum_wide = 0, bits = 0;
    __syncthreads();
    atomicAdd(&sum, a[threadIdx.x]);
    atomicAdd(&sum_wide, (double)a[threadIdx.x]);
    atomicOr(&bits, 1ull << (threadIdx.x & 63));
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sum, wide[0] = sum_wide, wide[1] = (double)__popcll(bits);
}

// The last block to arrive sums what all blocks have written.
__global__ void last_block(const float *a, float *partial, unsigned *arrived, float *total) {
    __shared__ bool is_last;
    __shared__ float room[64];
    int t = threadIdx.x;
    room[t] = a[blockIdx.x * 64 + t];
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) room[t] += room[t + half];
    }
    if (t == 0) {
        partial[blockIdx.x] = room[0];
        __threadfence();
        is_last = atomicInc(arrived, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && t == 0) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += ((volatile float *)partial)[b];
        *total = sum;
    }
}

// Every thread takes a turn, including those of one warp.
__global__ void locked(int *lock, int *value) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            *(volatile int *)value = *(volatile int *)value * 3 + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

}
