// For compute_90: bulk copies, atomics on vectors, and 8-bit floating-point numbers, through CUDA's headers.
#include <cuda/barrier>
#include <cuda_fp8.h>
namespace cde = cuda::device::experimental;

// One block of 64 threads: y = 2 x, and total += the sum of y. Both x and y are copied in bulk.
extern "C" __global__ void twice(const float4 *x, float4 *y, float4 *total) {
    __shared__ alignas(16) float4 tile[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> copied;
    if (threadIdx.x == 0) {
        init(&copied, blockDim.x);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_global_to_shared(tile, x, sizeof(tile), copied);
        token = cuda::device::barrier_arrive_tx(copied, 1, sizeof(tile));
    } else {
        token = copied.arrive();
    }
    copied.wait(cuda::std::move(token));
    float4 v = tile[threadIdx.x];
    v = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    tile[threadIdx.x] = v;
    atomicAdd(total, v);
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_shared_to_global(y, tile, sizeof(tile));
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}

// y = x, rounded to 8 bits: `.e4m3` in even threads, `.e5m2` in odd threads.
extern "C" __global__ void rounded(const float *x, float *y) {
    int i = threadIdx.x;
    y[i] = i % 2 == 0 ? float(__nv_fp8_e4m3(x[i])) : float(__nv_fp8_e5m2(x[i]));
}
