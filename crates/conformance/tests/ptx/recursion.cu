// Functions that call themselves, directly or through others.

__device__ __noinline__ int factorial(int n) {
    return n < 2 ? 1 : n * factorial(n - 1);
}

__device__ __noinline__ int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__device__ bool is_odd(unsigned n);

__device__ __noinline__ bool is_even(unsigned n) {
    return n == 0 || is_odd(n - 1);
}

__device__ __noinline__ bool is_odd(unsigned n) {
    return n != 0 && is_even(n - 1);
}

// Each call has its own array, which the next call changes.
__device__ __noinline__ long long through_pointers(int n, int *above) {
    int mine[4] = {n, 2 * n, 3 * n, 4 * n};
    above[n % 4] += 100;
    if (n == 0) return above[0];
    long long below = through_pointers(n - 1, mine);
    return below + mine[0] + mine[1] + mine[2] + mine[3];
}

typedef int (*Function)(int, int);

__device__ __noinline__ int down_by_two(int n, int which);

__device__ __noinline__ int down_by_one(int n, int which);

__device__ Function functions[2] = {down_by_one, down_by_two};

__device__ __noinline__ int down_by_one(int n, int which) {
    return n <= 0 ? 0 : 1 + functions[which & 1](n - 1, which >> 1);
}

__device__ __noinline__ int down_by_two(int n, int which) {
    return n <= 0 ? 0 : 10 + functions[which & 1](n - 2, which >> 1);
}

struct Pair {
    double x;
    int y;
};

__device__ __noinline__ Pair pairs(Pair p, int n) {
    if (n == 0) return p;
    Pair half = pairs(Pair{p.x / 2, p.y + 1}, n - 1);
    return Pair{half.x + p.x, half.y * 2 - p.y};
}

extern "C" {

__global__ void recursions(const int *n, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int *o = out + 4 * i;
    o[0] = factorial(n[i] % 13);
    o[1] = fibonacci(n[i] % 12);
    o[2] = is_even(n[i] % 20);
    if (n[i] % 3 == 1) o[3] = factorial(n[i] % 7) + is_odd(n[i] % 9);
}

__global__ void locals(const int *n, long long *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int mine[4] = {1000, 2000, 3000, 4000};
    out[i] = through_pointers(n[i] % 10, mine) + mine[0] + mine[1] + mine[2] + mine[3];
}

__global__ void pointers(const int *n, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = functions[i & 1](n[i] % 16, n[i]);
}

__global__ void structs(const int *n, double *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Pair p = pairs(Pair{double(i), n[i]}, n[i] % 6);
    out[i] = p.x + p.y;
}

__global__ void depth(int n, int *out) {
    out[threadIdx.x] = fibonacci(n + threadIdx.x) + factorial(n);
}

}
