// For compute_90: threads that hand over data in another GPU's memory through barriers of their block or cluster. `wrong`
// selects the mistake.
#include <cooperative_groups.h>
#include <cuda/barrier>
namespace cg = cooperative_groups;

// Thread 0 writes, and the last thread reads.
extern "C" __global__ void through_mbarrier(unsigned *data, unsigned *to, int wrong) {
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    if (threadIdx.x == 0) {
        init(&ready, blockDim.x);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *data = 42;
    }
    auto arrived = ready.arrive();
    if (!wrong) {
        ready.wait(std::move(arrived));
    }
    if (threadIdx.x == blockDim.x - 1) {
        *to = *data;
    }
}

// Block 0 writes, and block 1 reads.
extern "C" __global__ void __cluster_dims__(2, 1, 1) through_cluster(unsigned *data, unsigned *to, int wrong) {
    cg::cluster_group cluster = cg::this_cluster();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *data = 42;
    }
    if (wrong) {
        __syncthreads();
    } else {
        cluster.sync();
    }
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        *to = *data;
    }
}
