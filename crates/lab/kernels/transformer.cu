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

// LayerNorm: normed[row] = (x[row] - mean) * inverse[row], and y[row] = normed[row] * gain. `inverse` is one divided by the
// standard deviation. The backward pass needs both.
extern "C" __global__ void layer_norm(float* y, float* normed, float* inverse, const float* x, const float* gain,
                                      float epsilon, unsigned int rows, unsigned int columns) {
    unsigned int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* values = x + row * columns;
    float sum = 0.0f;
    for (unsigned int column = 0; column < columns; column++) sum += values[column];
    float mean = sum / columns, squares = 0.0f;
    for (unsigned int column = 0; column < columns; column++) {
        float difference = values[column] - mean;
        squares += difference * difference;
    }
    float scale = 1.0f / sqrtf(squares / columns + epsilon);
    for (unsigned int column = 0; column < columns; column++) {
        float value = (values[column] - mean) * scale;
        normed[row * columns + column] = value;
        y[row * columns + column] = value * gain[column];
    }
    inverse[row] = scale;
}

// Adds the gradient of layer_norm's input to x_gradient.
extern "C" __global__ void layer_norm_gradient(float* x_gradient, const float* y_gradient, const float* normed,
                                               const float* inverse, const float* gain, unsigned int rows,
                                               unsigned int columns) {
    unsigned int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, product = 0.0f;
    for (unsigned int column = 0; column < columns; column++) {
        float slope = y_gradient[row * columns + column] * gain[column];
        sum += slope;
        product += slope * normed[row * columns + column];
    }
    float mean = sum / columns, projection = product / columns;
    for (unsigned int column = 0; column < columns; column++) {
        unsigned int i = row * columns + column;
        x_gradient[i] += inverse[row] * (y_gradient[i] * gain[column] - mean - normed[i] * projection);
    }
}

// dots[column] = sum over the rows of a[row][column] * b[row][column], which is the gradient of a gain.
extern "C" __global__ void column_dots(float* dots, const float* a, const float* b, unsigned int rows,
                                       unsigned int columns) {
    unsigned int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float sum = 0.0f;
    for (unsigned int row = 0; row < rows; row++) sum += a[row * columns + column] * b[row * columns + column];
    dots[column] = sum;
}

// The logistic function of 2 * sqrt(2 / pi) * (x + 0.044715 * x^3). GELU with the approximation by tanh is x times it.
__device__ static float gelu_gate(float x) {
    return 1.0f / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// y[i] = gelu(x[i])
extern "C" __global__ void gelu(float* y, const float* x, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * gelu_gate(x[i]);
}

// gradient[i] *= the slope of gelu at x[i]
extern "C" __global__ void gelu_gradient(float* gradient, const float* x, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float gate = gelu_gate(x[i]);
    gradient[i] *= gate + x[i] * gate * (1.0f - gate) * 1.5957691216f * (1.0f + 0.134145f * x[i] * x[i]);
}
