// The parts of a transformer's layer that handle each token or each element on its own. Matrices are row-major, with one
// row per token.

// y[row] = x[row] / sqrt(mean of the squares of x[row] + epsilon): RMSNorm without weights.
// One thread per row sums in ascending order, so a row's result does not depend on the other rows.
extern "C" __global__ void rms_norm(float* y, const float* x, float epsilon, unsigned int rows, unsigned int columns) {
    unsigned int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (unsigned int column = 0; column < columns; column++) {
        float value = x[row * columns + column];
        sum += value * value;
    }
    float root = sqrtf(sum / columns + epsilon);
    for (unsigned int column = 0; column < columns; column++)
        y[row * columns + column] = x[row * columns + column] / root;
}

// Number `index` of the SplitMix64 generator that starts with `seed`, without those before it.
__device__ static unsigned long long random(unsigned long long seed, unsigned long long index) {
    unsigned long long bits = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    return bits ^ (bits >> 31);
}

// Dropout: x[i] is element `first + i` of the whole. If the upper half of its random number is below `threshold`, it
// becomes 0; otherwise, it is multiplied by `factor`.
extern "C" __global__ void dropout(float* x, unsigned long long seed, unsigned long long first, unsigned int threshold,
                                   float factor, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    bool drops = (unsigned int)(random(seed, first + i) >> 32) < threshold;
    x[i] = drops ? 0.0f : x[i] * factor;
}
