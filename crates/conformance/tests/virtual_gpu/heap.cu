// Memory that kernels allocate and free.

struct Node {
    float value;
    Node *next;
};

extern "C" __global__ void push(Node **heads, float value) {
    Node *node = new Node;
    node->value = value + threadIdx.x;
    node->next = heads[threadIdx.x];
    heads[threadIdx.x] = node;
}

extern "C" __global__ void sum(Node *const *heads, float *sums) {
    float total = 0;
    for (const Node *node = heads[threadIdx.x]; node; node = node->next) {
        total += node->value;
    }
    sums[threadIdx.x] = total;
}

extern "C" __global__ void pop(Node **heads) {
    Node *node = heads[threadIdx.x];
    heads[threadIdx.x] = node->next;
    delete node;
}

extern "C" __global__ void fill(size_t size, int *count) {
    while (malloc(size)) {
        *count += 1;
    }
}

extern "C" __global__ void aligned(size_t size, size_t alignment, void **result) {
    result[threadIdx.x] = __nv_aligned_device_malloc(size, alignment);
}

extern "C" __global__ void allocates(size_t size, void **result) {
    result[threadIdx.x] = malloc(size);
}

extern "C" __global__ void frees(void **pointers, int offset) {
    free((char *)pointers[threadIdx.x] + offset);
}

extern "C" __global__ void reuses(int n, unsigned *different) {
    char *last = 0;
    for (int i = 0; i < n; i++) {
        char *next = (char *)malloc(4096);
        next[i % 4096] = 1;
        *different += next != last;
        last = next;
        free(next);
    }
}

extern "C" __global__ void beyond(int i) {
    float *values = new float[4];
    values[i] = 1;
    delete[] values;
}

extern "C" __global__ void afterwards(float *out) {
    float *values = new float[4];
    values[1] = 1;
    delete[] values;
    *out = values[1];
}

extern "C" __global__ void unwritten(float *out) {
    float *values = new float[4];
    values[1] = 1;
    *out = values[0] + values[1];
    delete[] values;
}
