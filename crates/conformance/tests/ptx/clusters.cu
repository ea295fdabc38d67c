// For compute_90: clusters, through cooperative groups. `wrong` selects a mistake.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each block of a cluster keeps `part` of the bins in its dynamic shared memory.
extern "C" __global__ void histogram(int *bins, int part, const int *input, int n) {
    extern __shared__ int own[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < part; i += blockDim.x) {
        own[i] = 0;
    }
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int bin = min(max(input[i], 0), part * (int)cluster.num_blocks() - 1);
        atomicAdd(cluster.map_shared_rank(own, bin / part) + bin % part, 1);
    }
    cluster.sync();
    int *first = bins + cluster.block_rank() * part;
    for (int i = threadIdx.x; i < part; i += blockDim.x) {
        atomicAdd(&first[i], own[i]);
    }
}

// Each thread reads what the next block's thread has written.
extern "C" __global__ void neighbor(int *to, int wrong) {
    __shared__ int tile[64];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    int *there = cluster.map_shared_rank(tile, next);
    if (wrong == 2) {
        cluster.sync();
    }
    if (wrong == 1) {
        there[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
        cluster.sync();
    }
    tile[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    if (wrong == 2) {
        __syncthreads();
    } else {
        cluster.sync();
    }
    to[blockIdx.x * blockDim.x + threadIdx.x] = there[threadIdx.x];
    if (wrong != 3) {
        cluster.sync();
    }
}

// The last thread of block 1 waits for a flag that nothing sets before it reaches the barrier.
extern "C" __global__ void stuck(volatile int *flag) {
    cg::cluster_group cluster = cg::this_cluster();
    if (blockIdx.x == 1 && threadIdx.x == blockDim.x - 1) {
        while (*flag == 0) {
        }
    }
    cluster.sync();
}

// A kernel that is compiled for clusters of 2 x 2 blocks: each block returns its place in its cluster.
extern "C" __global__ void __cluster_dims__(2, 2, 1) place(int *to) {
    cg::cluster_group cluster = cg::this_cluster();
    dim3 at = cluster.block_index();
    if (threadIdx.x == 0) {
        to[blockIdx.y * gridDim.x + blockIdx.x] = at.y * 10 + at.x + 100 * cluster.block_rank();
    }
    cluster.sync();
}
