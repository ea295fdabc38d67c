// Keeps its stream busy for `nanoseconds` and touches no memory. One thread is enough.

__device__ static unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long start = now();
    for (unsigned long long past = 0; past < nanoseconds; past = now() - start) {
        // Whoever sleeps leaves the multiprocessor to others. A nap may last twice as long as it was told.
        unsigned long long rest = nanoseconds - past;
        __nanosleep(rest < 1000 ? (unsigned)rest : 1000);
    }
}
