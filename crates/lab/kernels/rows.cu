// Rows in another order. Matrices are row-major. A row whose index is not below the number of rows on the other side is
// not read and not written; the checked side becomes NaN, so that a wrong index does not go unnoticed.

__device__ static float not_a_number() { return __int_as_float(0x7fffffff); }

// out[i] = in[indices[i]], for rows of `columns` elements
extern "C" __global__ void gather_rows(float* out, const float* in, const unsigned int* indices, unsigned int rows,
                                       unsigned int rows_in, unsigned int columns) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    unsigned int from = indices[i / columns];
    out[i] = from < rows_in ? in[from * columns + i % columns] : not_a_number();
}

// out[indices[i]] = in[i], for rows of `columns` elements. The indices differ from each other.
extern "C" __global__ void scatter_rows(float* out, const float* in, const unsigned int* indices, unsigned int rows,
                                        unsigned int rows_out, unsigned int columns) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    unsigned int to = indices[i / columns];
    if (to < rows_out) out[to * columns + i % columns] = in[i];
}

// out[r] = sum of the in[i] with indices[i] == r, for rows of `columns` elements. One thread per element of out sums in
// ascending order of i, for the same bits on every run.
extern "C" __global__ void sum_rows(float* out, const float* in, const unsigned int* indices, unsigned int rows,
                                    unsigned int rows_out, unsigned int columns) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows_out * columns) return;
    float sum = 0.0f;
    for (unsigned int row = 0; row < rows; row++)
        if (indices[row] == i / columns) sum += in[row * columns + i % columns];
    out[i] = sum;
}
