// Kernels that share memory with other GPUs. Their last arguments select what is right or wrong.

enum Fence { NO_FENCE, BLOCK, DEVICE, SYSTEM, ACQUIRE_RELEASE };

__device__ void fence(int kind) {
    if (kind == BLOCK) __threadfence_block();
    if (kind == DEVICE) __threadfence();
    if (kind == SYSTEM) __threadfence_system();
    if (kind == ACQUIRE_RELEASE) asm volatile("fence.acq_rel.sys;" ::: "memory");
}

enum How { PLAIN, VOLATILE, ATOMIC, ATOMIC_SYSTEM, STRONG_GPU, STRONG_SYSTEM, RELAXED_SYSTEM, ADD_GPU, ADD_SYSTEM };

__device__ void set(unsigned *flag, unsigned value, int how) {
    switch (how) {
    case PLAIN: *flag = value; break;
    case VOLATILE: *(volatile unsigned *)flag = value; break;
    case ATOMIC: atomicExch(flag, value); break;
    case ATOMIC_SYSTEM: atomicExch_system(flag, value); break;
    case STRONG_GPU: asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); break;
    case STRONG_SYSTEM: asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); break;
    case RELAXED_SYSTEM: asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); break;
    case ADD_GPU: asm volatile("red.release.gpu.add.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); break;
    case ADD_SYSTEM: asm volatile("red.release.sys.add.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); break;
    }
}

__device__ unsigned get(unsigned *flag, int how) {
    unsigned value = 0;
    switch (how) {
    case PLAIN: value = *flag; break;
    case VOLATILE: value = *(volatile unsigned *)flag; break;
    case ATOMIC: value = atomicAdd(flag, 0); break;
    case ATOMIC_SYSTEM: value = atomicAdd_system(flag, 0); break;
    case STRONG_GPU: asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory"); break;
    case STRONG_SYSTEM: asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory"); break;
    case RELAXED_SYSTEM: asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory"); break;
    }
    return value;
}

__device__ void wait(unsigned *flag, unsigned value, int how) {
    while (get(flag, how) < value) {
    }
}

// One thread writes data and then a flag.
extern "C" __global__ void send(unsigned *data, unsigned *flag, int kind, int how, int flag_first) {
    if (flag_first) set(flag, 1, how);
    *data = 42;
    fence(kind);
    if (!flag_first) set(flag, 1, how);
}

// One thread waits for the flag and then reads the data.
extern "C" __global__ void receive(unsigned *data, unsigned *flag, unsigned *out, int kind, int how, int data_first) {
    unsigned value = 0;
    if (data_first) value = *(volatile unsigned *)data;
    wait(flag, 1, how);
    fence(kind);
    if (!data_first) value = *data;
    *out = value;
}

// The compiler reads a flag that is not volatile only once.
extern "C" __global__ void receive_once(unsigned *data, unsigned *flag, unsigned *out, int is_plain) {
    if (is_plain) {
        while (*flag < 1) {
        }
    } else {
        wait(flag, 1, VOLATILE);
    }
    __threadfence_system();
    *out = *data;
}

// A release of another variable says nothing about the flag.
extern "C" __global__ void send_beside(unsigned *data, unsigned *flag, unsigned *other, int wrong) {
    *data = 42;
    set(wrong ? other : flag, 1, STRONG_SYSTEM);
    set(wrong ? flag : other, 1, RELAXED_SYSTEM);
}

// Data and flag are both volatile. Without a fence, the data may be old although the flag is new.
extern "C" __global__ void send_volatile(unsigned *data, unsigned *flag, int kind) {
    *(volatile unsigned *)data = 42;
    fence(kind);
    *(volatile unsigned *)flag = 1;
}

extern "C" __global__ void receive_volatile(unsigned *data, unsigned *flag, unsigned *out, int kind) {
    wait(flag, 1, VOLATILE);
    fence(kind);
    *out = *(volatile unsigned *)data;
}

enum Step { SYNCED, NO_BARRIER, FENCE_OF_ONE, FENCE_FIRST, FENCE_OF_EACH };

// All threads of a block write, and one of them writes the flag.
extern "C" __global__ void send_block(unsigned *data, unsigned *flag, int step) {
    if (step == FENCE_FIRST) __threadfence_system();
    data[threadIdx.x] = threadIdx.x;
    if (step == FENCE_OF_EACH || step == FENCE_OF_ONE && threadIdx.x == 0) __threadfence_system();
    if (step != NO_BARRIER) __syncthreads();
    if (threadIdx.x == 0) {
        if (step == SYNCED || step == NO_BARRIER) __threadfence_system();
        set(flag, 1, VOLATILE);
    }
}

// One thread waits for the flag, and all threads read.
extern "C" __global__ void receive_block(unsigned *data, unsigned *flag, unsigned *out, int step) {
    if (threadIdx.x == 0) {
        wait(flag, 1, VOLATILE);
        __threadfence_system();
    }
    if (step != NO_BARRIER) __syncthreads();
    out[threadIdx.x] = data[blockDim.x - 1 - threadIdx.x];
}

enum Together { ALONE, SYNC_WARP, EXCHANGE };

// The lanes of a warp wait for each other, exchange values, or do neither.
__device__ void join(int together) {
    if (together == SYNC_WARP) __syncwarp();
    if (together == EXCHANGE) __shfl_sync(0xffffffff, threadIdx.x, 0);
}

// The same within a warp.
extern "C" __global__ void send_warp(unsigned *data, unsigned *flag, int together) {
    data[threadIdx.x] = threadIdx.x;
    join(together);
    if (threadIdx.x == 0) {
        __threadfence_system();
        set(flag, 1, VOLATILE);
    }
}

extern "C" __global__ void receive_warp(unsigned *data, unsigned *flag, unsigned *out, int together) {
    if (threadIdx.x == 0) {
        wait(flag, 1, VOLATILE);
        __threadfence_system();
    }
    join(together);
    out[threadIdx.x] = data[31 - threadIdx.x];
}

// Every block adds to a counter. The receiver waits for all of them.
extern "C" __global__ void send_blocks(unsigned *data, unsigned *count, int kind, int how) {
    data[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        fence(kind);
        if (how == ATOMIC) atomicAdd(count, 1);
        if (how == ATOMIC_SYSTEM) atomicAdd_system(count, 1);
        if (how == ADD_GPU || how == ADD_SYSTEM) set(count, 1, how);
    }
}

extern "C" __global__ void receive_blocks(unsigned *data, unsigned *count, unsigned *out, unsigned blocks, int n) {
    if (threadIdx.x == 0) {
        wait(count, blocks, VOLATILE);
        __threadfence_system();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = data[i];
}

// Sends several rounds through one buffer.
extern "C" __global__ void send_rounds(unsigned *data, unsigned *flag, unsigned *ack, int rounds, int acked, int same) {
    for (int round = 1; round <= rounds; round++) {
        if (acked) {
            wait(ack, round - 1, VOLATILE);
            __threadfence_system();
        }
        *data = 100 + round;
        __threadfence_system();
        set(flag, same ? 1 : round, VOLATILE);
    }
}

extern "C" __global__ void receive_rounds(unsigned *data, unsigned *flag, unsigned *ack, unsigned *out, int rounds, int same) {
    for (int round = 1; round <= rounds; round++) {
        wait(flag, same ? 1 : round, VOLATILE);
        __threadfence_system();
        out[round - 1] = *data;
        __threadfence_system();
        set(ack, round, VOLATILE);
    }
}

// Sends through `slots` buffers, each of which is used again after `behind` more rounds.
extern "C" __global__ void send_slots(unsigned *data, unsigned *flag, unsigned *ack, int rounds, int slots, int behind) {
    for (int round = 1; round <= rounds; round++) {
        if (round > behind) {
            wait(ack, round - behind, VOLATILE);
            __threadfence_system();
        }
        data[round % slots] = 100 + round;
        __threadfence_system();
        set(flag, round, VOLATILE);
    }
}

extern "C" __global__ void receive_slots(unsigned *data, unsigned *flag, unsigned *ack, unsigned *out, int rounds, int slots) {
    for (int round = 1; round <= rounds; round++) {
        wait(flag, round, VOLATILE);
        __threadfence_system();
        out[round - 1] = data[round % slots];
        __threadfence_system();
        set(ack, round, VOLATILE);
    }
}

// Two kernels wait for each other. Each writes its own flag first or, if it is wrong, last.
extern "C" __global__ void meet(unsigned *mine, unsigned *theirs, unsigned *mine_data, unsigned *their_data, unsigned *out, int wrong, unsigned target) {
    *mine_data = 7;
    __threadfence_system();
    if (!wrong) set(mine, 1, VOLATILE);
    wait(theirs, target, VOLATILE);
    __threadfence_system();
    if (wrong) set(mine, 1, VOLATILE);
    *out = *their_data;
}

// Passes a message on.
extern "C" __global__ void relay(unsigned *from, unsigned *to, int kind) {
    wait(from, 1, VOLATILE);
    fence(kind);
    set(to, 1, VOLATILE);
}

// Enters a critical section unless the other kernel has announced itself.
extern "C" __global__ void announce(unsigned *mine, unsigned *theirs, unsigned *data, int kind) {
    set(mine, 1, VOLATILE);
    fence(kind);
    if (get(theirs, VOLATILE) == 0) *data += 1;
}

enum Lock { RIGHT, DEVICE_SCOPE, NO_FENCE_AFTER, NO_FENCE_BEFORE, PLAIN_RELEASE, NO_LOCK };

// Counts under a lock.
extern "C" __global__ void count_locked(unsigned *lock, unsigned *count, int rounds, int how) {
    for (int round = 0; round < rounds; round++) {
        if (how == DEVICE_SCOPE) while (atomicCAS(lock, 0, 1) != 0) {}
        else if (how != NO_LOCK) while (atomicCAS_system(lock, 0, 1) != 0) {}
        if (how != NO_FENCE_AFTER) __threadfence_system();
        *count += 1;
        if (how != NO_FENCE_BEFORE) __threadfence_system();
        if (how == DEVICE_SCOPE) atomicExch(lock, 0);
        else if (how == PLAIN_RELEASE) *lock = 0;
        else if (how != NO_LOCK) atomicExch_system(lock, 0);
    }
}

// Counts with atomics.
extern "C" __global__ void count(unsigned *count, int how) {
    if (how == PLAIN) *count += 1;
    if (how == ATOMIC) atomicAdd(count, 1);
    if (how == ATOMIC_SYSTEM) atomicAdd_system(count, 1);
}

// Writes one byte.
extern "C" __global__ void write_byte(unsigned char *data, int at, int value) {
    data[at] = value;
}

// Copies without any flag.
extern "C" __global__ void copy(const unsigned *from, unsigned *to, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i];
}

extern "C" __global__ void fill(unsigned *to, unsigned value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = value;
}

// Sends each word with its flag in one vector, as NCCL's protocol LL does. No fence is needed.
extern "C" __global__ void send_lines(unsigned *lines, int rounds, int split) {
    for (int round = 1; round <= rounds; round++) {
        unsigned *line = lines + 2 * (round - 1), value = 100 + round, flag = 1;
        if (split) {
            *(volatile unsigned *)line = value;
            *(volatile unsigned *)(line + 1) = flag;
        } else {
            asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(line), "r"(value), "r"(flag) : "memory");
        }
    }
}

extern "C" __global__ void receive_lines(unsigned *lines, unsigned *out, int rounds, int split) {
    for (int round = 1; round <= rounds; round++) {
        unsigned *line = lines + 2 * (round - 1), value, flag;
        do {
            if (split) {
                flag = *(volatile unsigned *)(line + 1);
                value = *(volatile unsigned *)line;
            } else {
                asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(value), "=r"(flag) : "l"(line) : "memory");
            }
        } while (flag != 1);
        out[round - 1] = value;
    }
}

// Gives up after some attempts.
extern "C" __global__ void receive_patiently(unsigned *data, unsigned *flag, unsigned *out, int kind, int attempts) {
    for (int i = 0; i < attempts; i++) {
        if (get(flag, VOLATILE) == 1) {
            fence(kind);
            *out = *data;
            return;
        }
    }
}
