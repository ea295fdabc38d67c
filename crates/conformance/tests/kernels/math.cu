// The math library, in single and double precision: `out[i * count + k]` is the k-th function of element i.

extern "C" {

__global__ void single_functions(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    float *o = out + 40 * i;
    o[0] = sinf(x);
    o[1] = cosf(x);
    o[2] = tanf(x);
    o[3] = expf(x);
    o[4] = exp2f(x);
    o[5] = exp10f(x);
    o[6] = expm1f(x);
    o[7] = logf(fabsf(x));
    o[8] = log2f(fabsf(x));
    o[9] = log10f(fabsf(x));
    o[10] = log1pf(fabsf(x));
    o[11] = powf(fabsf(x), y);
    o[12] = erff(x);
    o[13] = erfcf(x);
    o[14] = sinhf(x);
    o[15] = coshf(x);
    o[16] = tanhf(x);
    o[17] = asinf(x / 100);
    o[18] = acosf(x / 100);
    o[19] = atanf(x);
    o[20] = atan2f(x, y);
    o[21] = asinhf(x);
    o[22] = acoshf(fabsf(x) + 1);
    o[23] = atanhf(x / 101);
    o[24] = cbrtf(x);
    o[25] = hypotf(x, y);
    o[26] = fmodf(x, y);
    o[27] = remainderf(x, y);
    o[28] = roundf(x);
    o[29] = rintf(x) + truncf(x);
    o[30] = floorf(x) - ceilf(x);
    o[31] = ldexpf(x, (int)y);
    int exponent;
    o[32] = frexpf(x, &exponent);
    o[33] = exponent;
    o[34] = modff(x, &o[35]);
    o[36] = rsqrtf(fabsf(x));
    o[37] = lgammaf(fabsf(x) / 10);
    o[38] = tgammaf(y / 20);
    o[39] = fdimf(x, y);
}

__global__ void fast_functions(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    float *o = out + 12 * i;
    o[0] = __sinf(x);
    o[1] = __cosf(x);
    o[2] = __expf(x);
    o[3] = __exp10f(x);
    o[4] = __logf(fabsf(x));
    o[5] = __log2f(fabsf(x));
    o[6] = __log10f(fabsf(x));
    o[7] = __powf(fabsf(x), y / 10);
    o[8] = __fdividef(x, y);
    o[9] = __saturatef(x);
    o[10] = __frcp_rn(x) + __fsqrt_rn(fabsf(y));
    o[11] = __frsqrt_rn(fabsf(x));
}

__global__ void double_functions(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    double *o = out + 24 * i;
    o[0] = sin(x);
    o[1] = cos(x);
    o[2] = tan(x);
    o[3] = exp(x);
    o[4] = exp2(x);
    o[5] = expm1(x);
    o[6] = log(fabs(x));
    o[7] = log2(fabs(x));
    o[8] = log10(fabs(x));
    o[9] = log1p(fabs(x));
    o[10] = pow(fabs(x), y);
    o[11] = erf(x);
    o[12] = erfc(x);
    o[13] = sinh(x);
    o[14] = tanh(x);
    o[15] = asin(x / 100);
    o[16] = atan2(x, y);
    o[17] = cbrt(x);
    o[18] = hypot(x, y);
    o[19] = fmod(x, y);
    o[20] = rsqrt(fabs(x));
    o[21] = lgamma(fabs(x) / 10);
    o[22] = sqrt(fabs(x)) / y;
    o[23] = fma(x, y, 1.0) + round(x) + nearbyint(y);
}

// Arguments beyond 105615 take sinf's slow path, with a table in memory.
__global__ void large_arguments(const float *a, const double *b, float *out, double *wide, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[3 * i] = sinf(a[i]);
    out[3 * i + 1] = cosf(a[i]);
    out[3 * i + 2] = tanf(a[i]);
    wide[2 * i] = sin(b[i]);
    wide[2 * i + 1] = cos(b[i]);
}

__global__ void classes(const float *a, const double *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i];
    double y = b[i];
    out[i] = isnan(x) | isinf(x) << 1 | isfinite(x) << 2 | (signbit(x) != 0) << 3 | isnan(y) << 4 | isinf(y) << 5 |
             isfinite(y) << 6 | (signbit(y) != 0) << 7 | (x < y) << 8 | (x <= y) << 9 | (x == y) << 10 | (x != y) << 11 |
             !(x > y) << 12 | !(x >= y) << 13 | (isnan(x) || isnan(y)) << 14 | (fminf(x, (float)y) == x) << 15;
}

__global__ void softmax(const float *a, float *out, int columns) {
    __shared__ float shared[256];
    const float *row = a + blockIdx.x * columns;
    int t = threadIdx.x;
    float largest = -3.402823466e38f;
    for (int c = t; c < columns; c += blockDim.x) largest = fmaxf(largest, row[c]);
    shared[t] = largest;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) shared[t] = fmaxf(shared[t], shared[t + half]);
    }
    __syncthreads();
    largest = shared[0];
    __syncthreads();
    float sum = 0;
    for (int c = t; c < columns; c += blockDim.x) sum += expf(row[c] - largest);
    shared[t] = sum;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) shared[t] += shared[t + half];
    }
    __syncthreads();
    for (int c = t; c < columns; c += blockDim.x) out[blockIdx.x * columns + c] = expf(row[c] - largest) / shared[0];
}

__global__ void gelu(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * a[i] * (1.0f + erff(a[i] * 0.70710678f));
}

}
