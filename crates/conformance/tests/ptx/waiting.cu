// Kernels that take a long time on purpose.

extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

extern "C" __global__ void spin_ns(unsigned long long ns, unsigned long long *stamps) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        __nanosleep(100);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < ns);
    if (stamps) stamps[0] = start, stamps[1] = now;
}

// A spinlock that every lane of a warp takes in turn.
extern "C" __global__ void locked_add(int *lock, int *total) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    *(volatile int *)total += 1;
    __threadfence();
    atomicExch(lock, 0);
}

// One lane waits for a value that another lane of its warp writes.
extern "C" __global__ void wait_for_lane(volatile int *flag, int *seen) {
    if (threadIdx.x == 0) {
        while (*flag == 0) {
        }
        *seen = *flag;
    } else if (threadIdx.x == 1) {
        *flag = 7;
    }
}

extern "C" __global__ void endless(int *flag) {
    while (atomicAdd(flag, 0) == 0) {
    }
}
