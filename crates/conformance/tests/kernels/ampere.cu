// Features of compute_80 and later. For older architectures, this module is empty.

#if __CUDA_ARCH__ >= 800

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

extern "C" {

__global__ void reductions(const int *a, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned *o = out + 8 * i;
    o[0] = __reduce_add_sync(~0u, a[i]);
    o[1] = __reduce_min_sync(~0u, a[i]);
    o[2] = __reduce_max_sync(~0u, a[i]);
    o[3] = __reduce_max_sync(~0u, (unsigned)a[i]);
    o[4] = __reduce_and_sync(~0u, (unsigned)a[i]);
    o[5] = __reduce_or_sync(~0u, (unsigned)a[i]);
    o[6] = __reduce_xor_sync(~0u, (unsigned)a[i]);
    o[7] = cg::reduce(cg::tiled_partition<16>(cg::this_thread_block()), a[i], cg::plus<int>());
}

// Two tiles: one is copied while the other is in use.
__global__ void pipeline(const float4 *a, float4 *out, int tiles) {
    __shared__ float4 room[2][64];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&room[0][t], &a[t], sizeof(float4));
    __pipeline_commit();
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            __pipeline_memcpy_async(&room[(tile + 1) % 2][t], &a[(tile + 1) * 64 + t], sizeof(float4));
        }
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        float4 x = room[tile % 2][63 - t];
        out[tile * 64 + t] = make_float4(x.x + 1, x.y + 2, x.z + 3, x.w + 4);
        __syncthreads();
    }
}

// Copies of 4, 8, and 16 bytes. The last one copies only some of its bytes, and the others become zero.
__global__ void small_copies(const int *a, int *out) {
    __shared__ __align__(16) int room[32 * 8];
    int t = threadIdx.x;
    int *mine = room + 8 * t;
    __pipeline_memcpy_async(mine, a + 8 * t, 4);
    mine[1] = 17;
    __pipeline_memcpy_async(mine + 2, a + 8 * t + 2, 8);
    __pipeline_memcpy_async(mine + 4, a + 8 * t + 4, 16, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    for (int k = 0; k < 8; k++) out[8 * t + k] = room[8 * (31 - t) + k];
}

__global__ void bfloats(const __nv_bfloat16 *a, const __nv_bfloat16 *b, const __nv_bfloat16 *c, __nv_bfloat16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 x = a[i], y = b[i], z = c[i];
    __nv_bfloat16 *o = out + 10 * i;
    o[0] = __hadd(x, y);
    o[1] = __hsub(x, y);
    o[2] = __hmul(x, y);
    o[3] = __hfma(x, y, z);
    o[4] = __hneg(x);
    o[5] = __habs(x);
    o[6] = __hmax(x, y);
    o[7] = __hmin(x, y);
    o[8] = __hlt(x, y) ? x : z;
    o[9] = __hdiv(x, y);
}

__global__ void bfloat_conversions(const float *a, const __nv_bfloat16 *b, __nv_bfloat16 *out, float *back, __nv_bfloat16 *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 *o = out + 5 * i;
    o[0] = __float2bfloat16_rn(a[i]);
    o[1] = __float2bfloat16_rz(a[i]);
    o[2] = __float2bfloat16_rd(a[i]);
    o[3] = __float2bfloat16_ru(a[i]);
    o[4] = __int2bfloat16_rn((int)a[i]);
    back[2 * i] = __bfloat162float(b[i]);
    back[2 * i + 1] = __bfloat162int_rz(b[i]);
    atomicAdd(sum, __float2bfloat16(1.0f));
}

__global__ void bfloat_pairs(const __nv_bfloat162 *a, const __nv_bfloat162 *b, __nv_bfloat162 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 x = a[i], y = b[i];
    __nv_bfloat162 *o = out + 8 * i;
    o[0] = __hadd2(x, y);
    o[1] = __hmul2(x, y);
    o[2] = __hfma2(x, y, x);
    o[3] = __hmax2(x, y);
    o[4] = __hmin2_nan(x, y);
    o[5] = __hfma2_relu(x, y, x);
    o[6] = __float22bfloat162_rn(make_float2(__low2float(x) * 1.01f, __high2float(y)));
    o[7] = __hneg2(__habs2(x));
}

__global__ void half_relu(const __half2 *a, const __half2 *b, __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 *o = out + 4 * i;
    o[0] = __hfma2_relu(a[i], b[i], a[i]);
    o[1] = __hmax2(a[i], b[i]);
    o[2] = __hmin2_nan(a[i], b[i]);
    o[3] = __hmax2_nan(a[i], b[i]);
}

}

#endif
