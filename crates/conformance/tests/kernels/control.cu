// Control flow: branch tables, loops, calls, and function pointers.

struct Pair {
    int key;
    float value;
    double weights[3];
};

__device__ __noinline__ int add_one(int x) { return x + 1; }
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }

typedef int (*Function)(int);
__device__ Function functions[3] = {add_one, twice, square};

__device__ __noinline__ Pair scaled(Pair pair, float factor) {
    pair.value *= factor;
    for (int i = 0; i < 3; i++) pair.weights[i] += pair.key * i;
    return pair;
}

__device__ __noinline__ void divide(int a, int b, int *quotient, int *remainder) {
    *quotient = a / b;
    *remainder = a % b;
}

template <int N>
__device__ __noinline__ float polynomial(const float (&coefficients)[N], float x) {
    float sum = 0;
    for (int i = N - 1; i >= 0; i--) sum = sum * x + coefficients[i];
    return sum;
}

extern "C" {

__global__ void dense_switch(const int *a, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y;
    switch (x) {
        case 0: y = x * 17 + 3; break;
        case 1: y = out[i] ^ 0x55; break;
        case 2: y = x - 1000; out[i] = 5; break;
        case 3: y = __popc(x * 77); break;
        case 4: y = x << 9; // falls through
        case 5: y = y * 3 + i; break;
        case 6: y = i * i; break;
        case 7: y = i % 13; break;
        case 8: y = -i; break;
        case 9: y = i / 3; break;
        case 10: y = __brev(i); break;
        case 11: return;
        case 12: y = 12 * i + out[i]; break;
        default: y = -1;
    }
    out[i] = y;
}

__global__ void sparse_switch(const long long *a, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    switch (a[i]) {
        case -5: out[i] = 1; break;
        case 100: out[i] = 2; break;
        case 1ll << 40: out[i] = 3; break;
        case 77777: out[i] = 4; break;
        default: out[i] = 0;
    }
}

__global__ void by_function_pointer(const int *which, const int *a, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = functions[which[i]](a[i]);
}

__global__ void chosen_function(const int *a, int *out, int n, int doubled) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Function f = doubled ? twice : square;
    if (i < n) out[i] = f(a[i]) + 1;
}

__global__ void structs(Pair pair, float factor, Pair *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    pair.key += i;
    out[i] = scaled(pair, factor + i);
}

__global__ void results_through_pointers(const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int quotient = 0, remainder = 0;
    if (b[i]) divide(a[i], b[i], &quotient, &remainder);
    out[2 * i] = quotient;
    out[2 * i + 1] = remainder;
}

__global__ void polynomials(const float *a, float *out, int n) {
    const float first[4] = {1, -2, 0.5f, 3};
    const float second[6] = {0, 1, 0, -1.0f / 6, 0, 1.0f / 120};
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] < 0 ? polynomial(first, a[i]) : polynomial(second, a[i]);
}

// Breaks, continues, and returns inside nested loops, by each lane at a different time.
__global__ void nested_loops(const int *a, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int found = 0;
    for (int p = 2; p < 60; p++) {
        bool prime = true;
        for (int d = 2; d * d <= p; d++) {
            if (p % d == 0) {
                prime = false;
                break;
            }
        }
        if (!prime) continue;
        int x = a[i];
        while (x != 0 && x % p == 0) {
            x /= p;
            found++;
            if (found > 6) {
                out[i] = -p;
                return;
            }
        }
    }
    out[i] = found;
}

__global__ void __launch_bounds__(128, 2) bounded(int *out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x * 2;
}

}
