// Attention with a softmax that is computed online: keys and values come in blocks, and each block is folded into the
// running result. Matrices are row-major. One thread handles one query.

__device__ static float dot(const float* x, const float* y, unsigned int n) {
    float sum = 0.0f;
    for (unsigned int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

// Folds a block into each query's running maximum of its scores, sum of their exponentials, and sum of the values,
// weighted by the exponentials. A larger maximum rescales both sums. If `causal` is not 0, query i sees only the keys up
// to i. `keys_values` has all keys, and then all values.
extern "C" __global__ void attend(float* output, float* maximum, float* sum, const float* queries,
                                  const float* keys_values, float scale, unsigned int rows, unsigned int keys,
                                  unsigned int width, unsigned int causal) {
    unsigned int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || keys == 0) return;
    const float* query = queries + row * width;
    const float* values = keys_values + keys * width;
    unsigned int visible = causal != 0 && row < keys ? row + 1 : keys;
    float before = maximum[row], largest = before;
    for (unsigned int key = 0; key < visible; key++)
        largest = fmaxf(largest, scale * dot(query, keys_values + key * width, width));
    float rescale = expf(before - largest), total = sum[row] * rescale;
    float* out = output + row * width;
    for (unsigned int i = 0; i < width; i++) out[i] *= rescale;
    for (unsigned int key = 0; key < visible; key++) {
        float weight = expf(scale * dot(query, keys_values + key * width, width) - largest);
        total += weight;
        for (unsigned int i = 0; i < width; i++) out[i] += weight * values[key * width + i];
    }
    maximum[row] = largest;
    sum[row] = total;
}

// matrix[row][column] /= divisors[row]
extern "C" __global__ void divide_rows(float* matrix, const float* divisors, unsigned int rows, unsigned int columns) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * columns) matrix[i] /= divisors[i / columns];
}
