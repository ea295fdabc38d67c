// For compute_90: copies of parts of tensors, through CUDA's headers. `CUtensorMap` is declared here because its header is
// the driver's.
#include <cuda/barrier>
namespace cde = cuda::device::experimental;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
};

// The transpose of a matrix of floats in tiles of 32 x 32, one block of 256 threads per tile. `from` and `to` are maps of
// the matrix and its transpose.
extern "C" __global__ void transpose(
    const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
    __shared__ alignas(128) float tile[32][32];
    __shared__ alignas(128) float turned[32][32];
    __shared__ Barrier copied;
    if (threadIdx.x == 0) {
        init(&copied, blockDim.x);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(tile, &from, blockIdx.x * 32, blockIdx.y * 32, copied);
        token = cuda::device::barrier_arrive_tx(copied, 1, sizeof(tile));
    } else {
        token = copied.arrive();
    }
    copied.wait(cuda::std::move(token));
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) {
        turned[i / 32][i % 32] = tile[i % 32][i / 32];
    }
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_shared_to_global(&to, blockIdx.y * 32, blockIdx.x * 32, turned);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}

// What one copy with the map writes to 4 KiB of shared memory, at the coordinates (x, y, 0, 0).
extern "C" __global__ void load(const __grid_constant__ CUtensorMap map, unsigned *to, int rank, int x, int y, unsigned bytes) {
    __shared__ alignas(1024) unsigned part[1024];
    __shared__ Barrier copied;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        part[i] = 0xdddddddd;
    }
    if (threadIdx.x == 0) {
        init(&copied, blockDim.x);
    }
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        switch (rank) {
        case 1: cde::cp_async_bulk_tensor_1d_global_to_shared(part, &map, x, copied); break;
        case 2: cde::cp_async_bulk_tensor_2d_global_to_shared(part, &map, x, y, copied); break;
        case 3: cde::cp_async_bulk_tensor_3d_global_to_shared(part, &map, x, y, 0, copied); break;
        default: cde::cp_async_bulk_tensor_4d_global_to_shared(part, &map, x, y, 0, 0, copied); break;
        }
        token = cuda::device::barrier_arrive_tx(copied, 1, bytes);
    } else {
        token = copied.arrive();
    }
    copied.wait(cuda::std::move(token));
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        to[i] = part[i];
    }
}

// What im2col writes to shared memory, at the coordinates (0, w, h, 0) with the offsets (dw, dh).
extern "C" __global__ void im2col(
    const __grid_constant__ CUtensorMap map, unsigned *to, int w, int h, unsigned short dw, unsigned short dh,
    unsigned bytes) {
    __shared__ alignas(1024) unsigned part[1024];
    __shared__ alignas(8) unsigned long long copied;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        part[i] = 0xdddddddd;
    }
    unsigned at = __cvta_generic_to_shared(part), barrier = __cvta_generic_to_shared(&copied);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(at), "l"(&map), "r"(0), "r"(w), "r"(h), "r"(0),
            "r"(barrier), "h"(dw), "h"(dh)
            : "memory");
    }
    asm volatile(
        "{ .reg .pred done; WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra WAIT; }" ::"r"(
            barrier)
        : "memory");
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        to[i] = part[i];
    }
}
