// Loads and stores of every width and space.

struct __align__(16) Particle {
    float4 position;
    double mass;
    short kind;
    char flags[6];
};

struct Options {
    int length;
    double scale;
    unsigned char bytes[5];
    float2 offset;
};

__constant__ float weights[64];
__constant__ Options defaults = {3, 2.5, {1, 2, 3, 4, 5}, {0.5f, -0.5f}};
__device__ Options current = {7, -1.5, {9, 8, 7, 6, 5}, {4.0f, 8.0f}};
__device__ int table[2][3] = {{1, 2, 3}, {4, 5, 6}};
__device__ const char text[] = "virtual";
__device__ int numbers[4] = {10, 20, 30, 40};
__device__ int *cursor = &numbers[2];

__device__ __noinline__ void increment(float *anywhere, float by) { *anywhere += by; }

extern "C" {

__global__ void vectors(const float4 *a, const double2 *b, const uchar4 *c, const short2 *d, const longlong2 *e, float4 *o, double2 *p, uchar4 *q, short2 *r, longlong2 *s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 x = a[i];
    o[i] = make_float4(x.w, x.z, x.y + x.x, x.x);
    double2 y = b[i];
    p[i] = make_double2(y.y, -y.x);
    uchar4 z = c[i];
    q[i] = make_uchar4(z.x + z.y, z.y ^ z.z, z.w, z.x);
    short2 v = d[i];
    r[i] = make_short2(v.y, v.x * 2);
    longlong2 w = e[i];
    s[i] = make_longlong2(w.x + w.y, w.x - w.y);
}

__global__ void narrow_loads(const signed char *a, const unsigned char *b, const short *c, const unsigned short *d, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = (long long)a[i] * 1000003 + b[i] * 10007 + (long long)c[i] * 31 - d[i];
}

__global__ void structures(const Particle *in, Particle *out, Options options, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Particle one = in[i];
    one.position.x += options.offset.x;
    one.position.y += options.offset.y;
    one.mass *= options.scale;
    one.kind += options.length;
    for (int k = 0; k < 5; k++) one.flags[k] += options.bytes[k];
    out[i] = one;
}

__global__ void constants(float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = weights[i & 63] * defaults.scale + defaults.offset.x + defaults.bytes[i % 5] + defaults.length;
}

__global__ void globals(int *out) {
    int i = threadIdx.x;
    current.bytes[i % 5] = 1;
    out[i] = table[i & 1][i % 3] + current.length + text[i % 7];
    if (i == 0) {
        current.length = 100;
        *cursor += 7;
        cursor++;
    }
    __syncthreads();
    out[i] += 1000 * *cursor + 100000 * numbers[2];
}

__global__ void local_arrays(const int *a, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int values[16];
    double halves[4] = {0.5, 1.5, 2.5, 3.5};
    for (int k = 0; k < 16; k++) values[k] = a[i] * k ^ k;
    // Insertion sort: the index of the element depends only on the data.
    for (int k = 1; k < 16; k++) {
        int value = values[k], at = k;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
    out[i] = values[a[i] & 15] + (int)(2 * halves[a[i] & 3]);
}

// Dynamic shared memory holds doubles, then floats, then bytes.
__global__ void dynamic_shared(const float *a, float *out, int n) {
    extern __shared__ double room[];
    double *doubles = room;
    float *floats = (float *)(doubles + blockDim.x);
    unsigned char *bytes = (unsigned char *)(floats + blockDim.x);
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    doubles[t] = i < n ? a[i] : 0;
    floats[t] = i < n ? -a[i] : 0;
    bytes[t] = t * 3;
    __syncthreads();
    int other = blockDim.x - 1 - t;
    if (i < n) out[i] = (float)doubles[other] + 2 * floats[t] + bytes[other];
}

__global__ void transpose(const float *a, float *out, int rows, int columns) {
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = a[y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

// One function, with pointers into global, shared, and local memory.
__global__ void generic_pointers(float *a, float *out) {
    __shared__ float shared[64];
    float local[2] = {1, 2};
    int t = threadIdx.x;
    shared[t] = t;
    float *where = t % 3 == 0 ? &a[t] : t % 3 == 1 ? &shared[t] : &local[t & 1];
    increment(where, 10);
    __syncthreads();
    out[t] = a[t] + shared[t] + local[0] + local[1];
}

__global__ void cache_hints(const float *__restrict__ a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 four = __ldg((const float4 *)a + i);
    float sum = four.x + four.y + four.z + four.w + __ldcg(a + i) + __ldca(a + i) + __ldcs(a + i) + __ldlu(a + i) + __ldcv(a + i);
    __stcg(out + 4 * i, sum);
    __stcs(out + 4 * i + 1, sum + 1);
    __stwb(out + 4 * i + 2, sum + 2);
    __stwt(out + 4 * i + 3, sum + 3);
}

__global__ void copies(const unsigned char *a, unsigned char *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned char local[32];
    memset(local, 0xab, sizeof local);
    memcpy(local + 3, a + 16 * i, 16);
    memcpy(out + 32 * i, local, sizeof local);
}

}
