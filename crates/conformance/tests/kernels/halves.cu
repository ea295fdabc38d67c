// The half-precision functions of cuda_fp16.h.

#include <cuda_fp16.h>

extern "C" {

__global__ void half_arithmetic(const __half *a, const __half *b, const __half *c, __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half x = a[i], y = b[i], z = c[i];
    __half *o = out + 12 * i;
    o[0] = x + y;
    o[1] = x - y;
    o[2] = x * y;
    o[3] = __hfma(x, y, z);
    o[4] = -x;
    o[5] = __habs(x);
    o[6] = __hmax(x, y);
    o[7] = __hmin(x, y);
    o[8] = __hadd_sat(x, y);
    o[9] = __hmul_sat(x, y);
    o[10] = __hfma_sat(x, y, z);
    o[11] = x < y ? z : __float2half(0.5f);
}

__global__ void half_functions(const __half *a, const __half *b, __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half x = a[i], y = b[i];
    __half *o = out + 14 * i;
    o[0] = __hdiv(x, y);
    o[1] = hsqrt(__habs(x));
    o[2] = hrsqrt(__habs(x));
    o[3] = hrcp(x);
    o[4] = hexp(x);
    o[5] = hexp2(x);
    o[6] = hexp10(x);
    o[7] = hlog(__habs(x));
    o[8] = hlog2(__habs(x));
    o[9] = hlog10(__habs(x));
    o[10] = hsin(x);
    o[11] = hcos(x);
    o[12] = hrint(x);
    o[13] = htrunc(x) + hfloor(x) + hceil(x);
}

__global__ void half_conversions(const float *a, const double *b, const int *c, const long long *d, unsigned short *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    unsigned short *o = out + 12 * i;
    o[0] = __half_as_ushort(__float2half_rn(x));
    o[1] = __half_as_ushort(__float2half_rz(x));
    o[2] = __half_as_ushort(__float2half_rd(x));
    o[3] = __half_as_ushort(__float2half_ru(x));
    o[4] = __half_as_ushort(__double2half(b[i]));
    o[5] = __half_as_ushort(__int2half_rn(c[i]));
    o[6] = __half_as_ushort(__int2half_rz(c[i]));
    o[7] = __half_as_ushort(__uint2half_ru(c[i]));
    o[8] = __half_as_ushort(__ll2half_rn(d[i]));
    o[9] = __half_as_ushort(__ull2half_rd(d[i]));
    o[10] = __half_as_ushort(__short2half_rn((short)c[i]));
    o[11] = __half_as_ushort(__ushort2half_rz((unsigned short)c[i]));
}

__global__ void from_half(const __half *a, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half x = a[i];
    double *o = out + 13 * i;
    o[0] = __half2float(x);
    o[1] = __half2int_rn(x);
    o[2] = __half2int_rz(x);
    o[3] = __half2int_rd(x);
    o[4] = __half2int_ru(x);
    o[5] = __half2uint_rz(x);
    o[6] = __half2short_rn(x);
    o[7] = __half2ushort_rz(x);
    o[8] = (double)__half2ll_rn(x);
    o[9] = (double)__half2ull_rz(x);
    o[10] = __hisnan(x);
    o[11] = __hisinf(x);
    o[12] = __hlt(x, __float2half(1.0f)) + 2 * __hge(x, __float2half(0.25f)) + 4 * __hneu(x, x) + 8 * __heq(x, x);
}

__global__ void half_pairs(const __half2 *a, const __half2 *b, __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 x = a[i], y = b[i];
    __half2 *o = out + 12 * i;
    o[0] = __hadd2(x, y);
    o[1] = __hsub2(x, y);
    o[2] = __hmul2(x, y);
    o[3] = __hfma2(x, y, x);
    o[4] = __hneg2(x);
    o[5] = __habs2(x);
    o[6] = __lowhigh2highlow(x);
    o[7] = __halves2half2(__high2half(x), __low2half(y));
    o[8] = __hgt2(x, y);
    o[9] = __hmax2(x, y);
    o[10] = __float22half2_rn(make_float2(__low2float(x), __high2float(y)));
    o[11] = __hbgt2(x, y) ? __hadd2_sat(x, y) : __heq2(x, x);
}

// A matrix product in half precision, with sums in single precision.
__global__ void half_product(const __half *a, const __half *b, float *out, int m, int n, int k) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int t = 0; t < k; t++) sum += __half2float(a[row * k + t]) * __half2float(b[t * n + column]);
    out[row * n + column] = sum;
}

__global__ void half_atomics(__half *one, __half2 *two, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(one, __float2half(1.0f));
    atomicAdd(two, __floats2half2_rn(1.0f, 0.5f));
}

}
