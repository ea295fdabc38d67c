// printf and assert.

extern "C" __global__ void hello(int n, const char *name, int *parsed) {
    int i = threadIdx.x;
    int count = printf("thread %d of %d: %5.2f|%-8s|%lld|%c%%\n", i, n, 1.5f * i, name, 1ll << 40, 'a' + i);
    if (i < n) parsed[i] = count;
}

extern "C" __global__ void plain(int *parsed) {
    parsed[0] = printf("no arguments\n");
    parsed[1] = printf("%*d|%-*d|\n", 6, 42, 4, 7);
    parsed[2] = printf(nullptr);
}

extern "C" __global__ void many() {
    printf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d\n", 1, 2, 3,
           4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
           33);
}

extern "C" __global__ void numbered(int count) {
    for (int i = 0; i < count; i++) printf("line %4d\n", i);
}

extern "C" __global__ void positive(const float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) printf("before\n");
    if (i < n) assert(x[i] > 0);
}
