// Cooperation between the lanes of a warp, and between the threads of a block.

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

extern "C" {

__global__ void shuffles(const int *a, const double *b, int *out, double *wide) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    int x = a[i];
    int *o = out + 8 * i;
    o[0] = __shfl_sync(~0u, x, lane / 2);
    o[1] = __shfl_up_sync(~0u, x, 3);
    o[2] = __shfl_down_sync(~0u, x, 5);
    o[3] = __shfl_xor_sync(~0u, x, 9);
    o[4] = __shfl_sync(~0u, x, 2, 8);
    o[5] = __shfl_up_sync(~0u, x, 1, 16);
    o[6] = __shfl_down_sync(~0u, x, 2, 4);
    o[7] = __float_as_int(__shfl_xor_sync(~0u, (float)x, 1, 2));
    wide[2 * i] = __shfl_down_sync(~0u, b[i], 1);
    wide[2 * i + 1] = (double)__shfl_xor_sync(~0u, (long long)x << 33, 16);
}

__global__ void votes(const int *a, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int x = a[i];
    unsigned *o = out + 8 * i;
    o[0] = __all_sync(~0u, x > 0);
    o[1] = __any_sync(~0u, x > 90);
    o[2] = __ballot_sync(~0u, x & 1);
    o[3] = __match_any_sync(~0u, x % 5);
    int same;
    o[4] = __match_all_sync(~0u, x / 1000, &same);
    o[5] = same;
    o[6] = (unsigned)__match_any_sync(~0u, (unsigned long long)(x % 3) << 40);
    o[7] = 0;
    if (x % 4 == 1) {
        unsigned here = __activemask();
        o[7] = __ballot_sync(here, x % 8 == 1) | (__popc(here) == 33);
    }
}

__global__ void warp_sums(const float *a, float *sums, float *scans) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    float x = a[i], sum = x, scan = x;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
    if (lane == 0) sums[i / 32] = sum;
    for (int offset = 1; offset < 32; offset *= 2) {
        float below = __shfl_up_sync(~0u, scan, offset);
        if (lane >= offset) scan += below;
    }
    scans[i] = scan;
}

__global__ void block_sum(const int *a, int *total, int n) {
    __shared__ int warps[32];
    int t = threadIdx.x, sum = 0;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += a[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        sum = t < blockDim.x / 32 ? warps[t] : 0;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (t == 0) atomicAdd(total, sum);
    }
}

__global__ void bitonic_sort(int *a) {
    __shared__ int values[256];
    int t = threadIdx.x;
    values[t] = a[blockIdx.x * 256 + t];
    for (int size = 2; size <= 256; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            int other = t ^ stride;
            if (other > t) {
                bool ascending = (t & size) == 0;
                int x = values[t], y = values[other];
                if ((x > y) == ascending) {
                    values[t] = y;
                    values[other] = x;
                }
            }
        }
    }
    __syncthreads();
    a[blockIdx.x * 256 + t] = values[t];
}

__global__ void barriers(const int *a, int *out) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    int *o = out + 4 * i;
    o[0] = __syncthreads_count(a[i] > 50);
    o[1] = __syncthreads_and(a[i] > 0) != 0;
    o[2] = __syncthreads_or(a[i] > 98) != 0;
    // Half of the block produces what the other half uses.
    __shared__ int room[64];
    if (t < 64) {
        room[t] = a[i] * 2;
        asm volatile("barrier.cta.arrive 1, 128;" ::: "memory");
        o[3] = -1;
    } else {
        asm volatile("barrier.cta.sync 1, 128;" ::: "memory");
        o[3] = room[127 - t];
    }
}

__global__ void cooperative(const int *a, int *out) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
    int i = block.group_index().x * block.size() + block.thread_rank();
    int sum = a[i];
    for (int offset = tile.size() / 2; offset > 0; offset /= 2) sum += tile.shfl_xor(sum, offset);
    int *o = out + 5 * i;
    o[0] = sum;
    o[1] = tile.meta_group_rank() * 100 + tile.thread_rank();
    o[2] = tile.any(a[i] > 90) + 2 * tile.all(a[i] > 10) + 4 * tile.ballot(a[i] & 1);
    o[3] = 0;
    if (a[i] % 3 == 0) {
        cg::coalesced_group together = cg::coalesced_threads();
        o[3] = together.size() * 100 + together.thread_rank() + 10000 * together.shfl(a[i], 0);
    }
    block.sync();
    o[4] = block.dim_threads().x + tile.shfl_up(a[i], 1);
}

// One atomic for all lanes that execute it together.
__global__ void aggregated(const int *a, int *count, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || a[i] < 50) return;
    unsigned here = __activemask();
    int lane = threadIdx.x & 31, leader = __ffs(here) - 1, base;
    if (lane == leader) base = atomicAdd(count, __popc(here));
    base = __shfl_sync(here, base, leader);
    out[base + __popc(here & ((1u << lane) - 1))] = a[i];
}

__global__ void special_registers(unsigned *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned lane, warp, warps, lt, le, ge, gt, eq, dynamic;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
    asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(le));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
    asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(eq));
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic));
    unsigned *o = out + 8 * i;
    o[0] = lane;
    o[1] = warp < warps;
    o[2] = lt;
    o[3] = le;
    o[4] = ge;
    o[5] = gt;
    o[6] = eq;
    o[7] = dynamic;
}

}
