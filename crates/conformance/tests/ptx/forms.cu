// Every opcode form that plain CUDA C generates: conversions, bits, halves, calls, constants, votes, doubles.

extern "C" {

__constant__ int table[4] = {10, 20, 30, 40};
__constant__ float scales[8];
__device__ int counter = 5;
__device__ float grid_sums[3];

__global__ void integers(const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    unsigned ux = x, uy = y;
    int *o = out + 24 * i;
    o[0] = y ? x / y : 0;
    o[1] = y ? x % y : 0;
    o[2] = uy ? ux / uy : 0;
    o[3] = uy ? ux % uy : 0;
    o[4] = __mulhi(x, y);
    o[5] = __umulhi(ux, uy);
    o[6] = min(x, y);
    o[7] = max(ux, uy);
    o[8] = abs(x);
    o[9] = x >> (y & 31);
    o[10] = ux >> (y & 31);
    o[11] = x << (y & 31);
    o[12] = __popc(x);
    o[13] = __clz(x);
    o[14] = __brev(x);
    o[15] = __ffs(x);
    o[16] = __byte_perm(x, y, 0x5410);
    o[17] = __funnelshift_l(x, y, 7);
    o[18] = __funnelshift_r(x, y, 9);
    o[19] = __sad(x, y, 3);
    o[20] = __mul24(x, y);
    o[21] = (short)x * (short)y;
    o[22] = (unsigned char)x + (signed char)y;
    o[23] = __vadd2(x, y);
}

__global__ void longs(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i], y = b[i];
    unsigned long long ux = x, uy = y;
    long long *o = out + 12 * i;
    o[0] = y ? x / y : 0;
    o[1] = y ? x % y : 0;
    o[2] = uy ? ux / uy : 0;
    o[3] = uy ? ux % uy : 0;
    o[4] = __mul64hi(x, y);
    o[5] = __umul64hi(ux, uy);
    o[6] = x >> (y & 63);
    o[7] = ux >> (y & 63);
    o[8] = x * y;
    o[9] = __popcll(x) + 100 * __clzll(x);
    o[10] = __brevll(x);
    o[11] = __ffsll(x);
}

__global__ void conversions(const float *a, const double *b, const int *c, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    double y = b[i];
    int z = c[i];
    double *o = out + 20 * i;
    o[0] = __float2int_rn(x);
    o[1] = __float2int_rz(x);
    o[2] = __float2int_rd(x);
    o[3] = __float2int_ru(x);
    o[4] = __float2uint_rz(x);
    o[5] = (double)__float2ll_rz(x);
    o[6] = (float)y;
    o[7] = __double2float_rd(y);
    o[8] = __double2float_ru(y);
    o[9] = __double2int_rn(y);
    o[10] = (double)__double2ll_rd(y);
    o[11] = __int2float_rn(z);
    o[12] = __int2float_rd(z);
    o[13] = __uint2float_ru((unsigned)z);
    o[14] = (double)(unsigned)z;
    o[15] = floorf(x);
    o[16] = ceilf(x);
    o[17] = truncf(x);
    o[18] = rintf(x);
    o[19] = rint(y) + __saturatef(x);
}

__global__ void singles(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    float *o = out + 20 * i;
    o[0] = __fadd_rz(x, y);
    o[1] = __fadd_rd(x, y);
    o[2] = __fadd_ru(x, y);
    o[3] = __fmul_rz(x, y);
    o[4] = __fmul_rd(x, y);
    o[5] = __fmul_ru(x, y);
    o[6] = __fmaf_rz(x, y, 0.3f);
    o[7] = __fmaf_rd(x, y, 0.3f);
    o[8] = __fmaf_ru(x, y, 0.3f);
    o[9] = x / y;
    o[10] = __fdiv_rd(x, y);
    o[11] = sqrtf(fabsf(x));
    o[12] = __fsqrt_ru(fabsf(x));
    o[13] = __frcp_rn(x);
    o[14] = rsqrtf(fabsf(x));
    o[15] = fminf(x, y);
    o[16] = fmaxf(x, y);
    o[17] = copysignf(x, y);
    o[18] = -x;
    o[19] = fmodf(x, y);
}

__global__ void functions(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    float *o = out + 12 * i;
    o[0] = expf(x);
    o[1] = logf(fabsf(x));
    o[2] = sinf(x);
    o[3] = cosf(x);
    o[4] = tanhf(x);
    o[5] = powf(fabsf(x), 1.7f);
    o[6] = __expf(x);
    o[7] = __logf(fabsf(x));
    o[8] = __sinf(x);
    o[9] = __cosf(x);
    o[10] = exp2f(x);
    o[11] = erff(x);
}

__global__ void doubles(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    double *o = out + 12 * i;
    o[0] = x + y;
    o[1] = x * y;
    o[2] = x / y;
    o[3] = sqrt(fabs(x));
    o[4] = fma(x, y, 0.3);
    o[5] = __dadd_rd(x, y);
    o[6] = __dmul_ru(x, y);
    o[7] = __ddiv_rz(x, y);
    o[8] = exp(x);
    o[9] = log(fabs(x));
    o[10] = fmin(x, y) + fmax(x, y);
    o[11] = sin(x);
}

struct Pair { int first; float second; double third; };

__noinline__ __device__ float scaled(Pair p, const float *extra, int depth) {
    float sum = p.first * p.second + (float)p.third;
    for (int i = 0; i < depth; i++) sum += extra[i];
    return sum;
}

__global__ void calls(Pair p, float *out, int n) {
    int i = threadIdx.x;
    float extra[8];
    for (int j = 0; j < 8; j++) extra[j] = j * i;
    if (i < n) out[i] = scaled(p, extra, i % 8);
}

__global__ void variables(int *out) {
    int i = threadIdx.x;
    out[i] = table[i % 4] + (int)scales[i % 8];
    if (i == 0) {
        counter += 2;
        out[0] = counter;
    }
    grid_sums[i % 3] = i;
}

__global__ void warps(const int *in, unsigned *out) {
    int i = threadIdx.x;
    int x = in[i];
    unsigned *o = out + 12 * i;
    o[0] = __shfl_sync(0xffffffffu, x, (i + 5) % 32);
    o[1] = __shfl_up_sync(0xffffffffu, x, 3);
    o[2] = __shfl_down_sync(0xffffffffu, x, 3);
    o[3] = __shfl_xor_sync(0xffffffffu, x, 5);
    o[4] = __shfl_up_sync(0xffffffffu, x, 2, 8);
    o[5] = __ballot_sync(0xffffffffu, x > 0);
    o[6] = __any_sync(0xffffffffu, x > 100);
    o[7] = __all_sync(0xffffffffu, x > -1000);
    o[8] = __activemask();
    o[9] = __match_any_sync(0xffffffffu, x & 3);
    o[10] = i % 2 ? __activemask() : 0;
    o[11] = __shfl_sync(0xffffffffu, (unsigned long long)x << 20, 31 - i % 32) >> 20;
}

__global__ void atomics(int *ints, unsigned *words, unsigned long long *longs, float *floats, double *doubles) {
    __shared__ int inside[4];
    int i = threadIdx.x;
    if (i < 4) inside[i] = 0;
    __syncthreads();
    atomicAdd(&inside[i % 4], i);
    atomicMax(&inside[3], 1000 + i);
    atomicAdd(&ints[0], i);
    atomicSub(&ints[1], i);
    atomicMin(&ints[2], -i);
    atomicMax(&ints[3], i);
    atomicAnd(&words[0], ~(1u << (i % 32)));
    atomicOr(&words[1], 1u << (i % 32));
    atomicXor(&words[2], i);
    atomicInc(&words[3], 9);
    atomicDec(&words[4], 9);
    atomicExch(&words[5], i);
    atomicCAS(&words[6], i, i + 1);
    atomicAdd(&longs[0], 1ull << 33);
    atomicMax(&longs[1], (unsigned long long)i << 40);
    atomicAdd(floats, 0.5f);
    atomicAdd(doubles, 0.25);
    __syncthreads();
    if (i < 4) words[8 + i] = inside[i];
}

__global__ void shapes(int *out) {
    int i = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[i * blockDim.x * blockDim.y * blockDim.z + t] =
        threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
}

__global__ void counting_barriers(const int *in, int *out) {
    int i = threadIdx.x;
    out[3 * i] = __syncthreads_count(in[i] > 0);
    out[3 * i + 1] = __syncthreads_and(in[i] > -5);
    out[3 * i + 2] = __syncthreads_or(in[i] > 5);
}

__global__ void __launch_bounds__(128) red(int *out) {
    if (out[0] > 3) __trap();
    out[0] = 1;
}
}

template <typename T> __device__ T twice(T x) { return x + x; }
__global__ void doubled(float *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
