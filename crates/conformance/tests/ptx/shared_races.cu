// Threads of a block that meet in shared memory, with and without synchronization. Blocks of 64 threads.

// The second line reads what the neighbor wrote.
extern "C" __global__ void neighbor(const int *x, int *y, int synchronize) {
    __shared__ int tile[64];
    int i = threadIdx.x;
    tile[i] = x[i];
    if (synchronize) __syncthreads();
    y[i] = tile[(i + 1) % 64];
}

// The next round overwrites values that other threads may still read.
extern "C" __global__ void rounds(const int *x, int *y, int synchronize) {
    __shared__ int tile[64];
    int i = threadIdx.x, sum = 0;
    for (int round = 0; round < 3; round++) {
        tile[i] = x[i] + round;
        __syncthreads();
        sum += tile[63 - i];
        if (synchronize) __syncthreads();
    }
    y[i] = sum;
}

// All threads write to the same place: their number, or all the same number.
extern "C" __global__ void one_place(int *y, int same) {
    __shared__ int place;
    place = same ? 7 : threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = place;
}

// A sum within each warp, as before Volta: volatile does not order accesses.
extern "C" __global__ void warp_sum(const int *x, int *y, int synchronize) {
    __shared__ int tile[64];
    volatile int *mine = tile + threadIdx.x;
    *mine = x[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) {
        if (synchronize) __syncwarp();
        if (threadIdx.x % 32 < step) *mine += mine[step];
    }
    if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = *mine;
}

// Warp 0 writes and warp 1 reads: with a barrier for both, one for warp 0 alone, or one where the writer only arrives.
extern "C" __global__ void between_warps(const int *x, int *y, int how) {
    __shared__ int tile[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        tile[lane] = x[lane];
        if (how == 0) asm volatile("bar.sync 1, 64;" ::: "memory");
        if (how == 1) asm volatile("bar.sync 1, 32;" ::: "memory");
        if (how == 2) asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        if (how == 0 || how == 2) asm volatile("bar.sync 1, 64;" ::: "memory");
        y[lane] = tile[31 - lane];
    }
}

// Atomics don't race with each other, but a plain read races with them.
extern "C" __global__ void counts(const int *x, int *y, int plain) {
    __shared__ int bins[4];
    if (threadIdx.x < 4) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[x[threadIdx.x] & 3], 1);
    if (!plain) __syncthreads();
    if (threadIdx.x < 4) y[threadIdx.x] = bins[threadIdx.x];
}

// A lock: its fences order what is done under it.
extern "C" __global__ void locked(int *y, int fences) {
    __shared__ int lock, total;
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    for (bool done = false; !done;) {
        if (atomicCAS(&lock, 0, 1) == 0) {
            if (fences) __threadfence_block();
            *(volatile int *)&total += threadIdx.x;
            if (fences) __threadfence_block();
            atomicExch(&lock, 0);
            done = true;
        }
    }
    __syncthreads();
    y[threadIdx.x] = total;
}

// Neighboring bytes are different places.
extern "C" __global__ void bytes(const unsigned char *x, unsigned char *y, int shift) {
    __shared__ unsigned char tile[65];
    tile[threadIdx.x + shift] = x[threadIdx.x];
    y[threadIdx.x] = tile[threadIdx.x];
}

// Dynamic shared memory, in units of 16 bytes and of 4.
extern "C" __global__ void vectors(const float4 *x, float *y, int synchronize) {
    extern __shared__ float4 tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    if (synchronize) __syncthreads();
    for (int k = 0; k < 4; k++) y[threadIdx.x + 64 * k] = ((float *)tile)[threadIdx.x + 64 * k];
}

// A shuffle passes a lane's value to its neighbors, but a shuffle does not order memory accesses.
extern "C" __global__ void behind_a_shuffle(const int *x, int *y) {
    __shared__ int tile[32];
    tile[threadIdx.x] = x[threadIdx.x];
    int other = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
    y[threadIdx.x] = tile[31 - threadIdx.x] + other;
}
