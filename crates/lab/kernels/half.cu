// Conversions between f32 and f16. A buffer of f16 holds each number's 16 bits. The header with the type is not part of
// NVRTC, so the conversions are PTX instructions.

__device__ static unsigned int element() { return blockIdx.x * blockDim.x + threadIdx.x; }

// y[i] = factor * x[i], rounded to the nearest f16. From 65520 on, that is infinity.
extern "C" __global__ void to_f16(unsigned short* y, const float* x, float factor, unsigned int n) {
    unsigned int i = element();
    if (i < n) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y[i]) : "f"(factor * x[i]));
}

// y[i] = factor * x[i], in f32
extern "C" __global__ void from_f16(float* y, const unsigned short* x, float factor, unsigned int n) {
    unsigned int i = element();
    if (i >= n) return;
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x[i]));
    y[i] = factor * wide;
}
