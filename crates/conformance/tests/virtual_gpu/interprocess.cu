// Kernels in several processes that access the same memory.

extern "C" __global__ void add(int *counter, int n) {
    for (int i = 0; i < n; i++) {
        atomicAdd_system(counter, 1);
    }
}

extern "C" __global__ void send(int *data, volatile int *flag, int value) {
    *data = value;
    __threadfence_system();
    *flag = value;
}

extern "C" __global__ void receive(const int *data, volatile int *flag, int value, int *out) {
    while (*flag != value) {
    }
    __threadfence_system();
    *out = *data;
}
