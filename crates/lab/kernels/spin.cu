// Keeps its stream busy for `nanoseconds` and touches no memory. One thread is enough.

__device__ static unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long start = now();
    for (unsigned long long past = 0; past < nanoseconds; past = now() - start) {
        // A sleeping thread leaves the multiprocessor to others. It may sleep twice as long as requested.
        unsigned long long rest = nanoseconds - past;
        __nanosleep(rest < 1000 ? (unsigned)rest : 1000);
    }
}
