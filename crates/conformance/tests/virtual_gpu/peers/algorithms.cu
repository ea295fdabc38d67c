// The algorithms inside a communication library, with peer pointers and flags.

#define MAX_RANKS 8

struct Ranks {
    unsigned *data[MAX_RANKS];
    // For each rank, a flag from each other rank.
    unsigned *flags[MAX_RANKS];
};

__device__ void store_release(unsigned *flag, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ unsigned load_acquire(unsigned *flag) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// All ranks' blocks with this number wait for each other: each thread of the first `ranks` handles one peer.
__device__ void meet(const Ranks &all, int rank, int ranks, unsigned round) {
    __syncthreads();
    if (threadIdx.x < ranks) {
        unsigned at = blockIdx.x * MAX_RANKS;
        store_release(&all.flags[threadIdx.x][at + rank], round);
        while (load_acquire(&all.flags[rank][at + threadIdx.x]) < round) {
        }
    }
    __syncthreads();
}

// Every rank reads all data and adds it up.
extern "C" __global__ void one_shot(Ranks all, unsigned *out, int rank, int ranks, int n) {
    meet(all, rank, ranks, 1);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned sum = 0;
        for (int peer = 0; peer < ranks; peer++) sum += all.data[peer][i];
        out[i] = sum;
    }
    // No rank may change its data before all have read it.
    meet(all, rank, ranks, 2);
}

// Every rank adds up its part, in place, and writes the result to all others.
extern "C" __global__ void two_shot(Ranks all, int rank, int ranks, int n) {
    meet(all, rank, ranks, 1);
    int part = n / ranks;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < part; i += gridDim.x * blockDim.x) {
        unsigned sum = 0;
        for (int peer = 0; peer < ranks; peer++) sum += all.data[peer][rank * part + i];
        for (int peer = 0; peer < ranks; peer++) all.data[peer][rank * part + i] = sum;
    }
    meet(all, rank, ranks, 2);
}

// A ring: each rank adds its own part to what comes from the rank before it, and passes the sum on; then the sums go
// around. `buffer` holds one chunk per step. One block.
extern "C" __global__ void ring(Ranks buffers, unsigned *data, int rank, int ranks, int n) {
    int next = (rank + 1) % ranks, chunk = n / ranks;
    for (int step = 0; step < 2 * (ranks - 1); step++) {
        int sent = (rank - step + 2 * ranks) % ranks, came = (rank - step - 1 + 2 * ranks) % ranks;
        unsigned *there = buffers.data[next] + step * chunk, *here = buffers.data[rank] + step * chunk;
        for (int i = threadIdx.x; i < chunk; i += blockDim.x) there[i] = data[sent * chunk + i];
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence_system();
            *(volatile unsigned *)&buffers.flags[next][0] = step + 1;
            while (*(volatile unsigned *)&buffers.flags[rank][0] < step + 1) {
            }
            __threadfence_system();
        }
        __syncthreads();
        for (int i = threadIdx.x; i < chunk; i += blockDim.x) {
            if (step < ranks - 1) data[came * chunk + i] += here[i];
            else data[came * chunk + i] = here[i];
        }
        __syncthreads();
    }
}

// Every block puts its part into the next rank's memory and adds to that rank's signal.
extern "C" __global__ void put_with_signal(Ranks all, const unsigned *data, int rank, int ranks, int n) {
    int next = (rank + 1) % ranks;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) all.data[next][i] = data[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        atomicAdd_system(all.flags[next], 1);
    }
}

extern "C" __global__ void wait_for_signal(Ranks all, unsigned *out, int rank, unsigned blocks, int n) {
    if (threadIdx.x == 0) {
        while (atomicAdd_system(all.flags[rank], 0) < blocks) {
        }
        __threadfence_system();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = all.data[rank][i] + 1;
}
