// c = op(a) * op(b), all row-major: op(a) has m rows and k columns, op(b) k rows and n columns, c m rows and n columns.
//
// A block of TILE x TILE threads computes one tile of c. It iterates over k: each step loads one tile of each factor
// into shared memory, where every value is then used TILE times. One thread sums over k in ascending order, so the
// result has the same bits on every run, whatever the number of rows.

constexpr unsigned int TILE = 16;

// The index of an operand's element (row, column), in the buffer itself or in the buffer read as its transpose.
template <bool TRANSPOSED>
__device__ static unsigned int at(unsigned int row, unsigned int column, unsigned int rows, unsigned int columns) {
    return TRANSPOSED ? column * rows + row : row * columns + column;
}

template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void multiply(float* c, const float* a, const float* b, unsigned int m, unsigned int n,
                                unsigned int k) {
    // The extra column makes a column of the tile fall into 16 different banks.
    __shared__ float a_tile[TILE][TILE + 1];
    __shared__ float b_tile[TILE][TILE + 1];

    unsigned int x = threadIdx.x;
    unsigned int y = threadIdx.y;
    unsigned int row = blockIdx.y * TILE + y;
    unsigned int column = blockIdx.x * TILE + x;
    float sum = 0.0f;

    for (unsigned int start = 0; start < k; start += TILE) {
        // Neighboring threads (x) read neighboring addresses along a row of the buffer. If the factor is transposed,
        // this row of the buffer is a column of the factor.
        unsigned int a_row = blockIdx.y * TILE + (A_TRANSPOSED ? x : y);
        unsigned int a_column = start + (A_TRANSPOSED ? y : x);
        float a_value = a_row < m && a_column < k ? a[at<A_TRANSPOSED>(a_row, a_column, m, k)] : 0.0f;
        a_tile[A_TRANSPOSED ? x : y][A_TRANSPOSED ? y : x] = a_value;

        unsigned int b_row = start + (B_TRANSPOSED ? x : y);
        unsigned int b_column = blockIdx.x * TILE + (B_TRANSPOSED ? y : x);
        float b_value = b_row < k && b_column < n ? b[at<B_TRANSPOSED>(b_row, b_column, k, n)] : 0.0f;
        b_tile[B_TRANSPOSED ? x : y][B_TRANSPOSED ? y : x] = b_value;
        __syncthreads();

        for (unsigned int i = 0; i < TILE; i++) sum += a_tile[y][i] * b_tile[i][x];
        // No thread may overwrite a tile that another thread is still reading.
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

// c = a * b
extern "C" __global__ void matmul(float* c, const float* a, const float* b, unsigned int m, unsigned int n,
                                  unsigned int k) {
    multiply<false, false>(c, a, b, m, n, k);
}

// c = transpose(a) * b, where the buffer a has k rows and m columns
extern "C" __global__ void matmul_ta(float* c, const float* a, const float* b, unsigned int m, unsigned int n,
                                     unsigned int k) {
    multiply<true, false>(c, a, b, m, n, k);
}

// c = a * transpose(b), where the buffer b has n rows and k columns
extern "C" __global__ void matmul_tb(float* c, const float* a, const float* b, unsigned int m, unsigned int n,
                                     unsigned int k) {
    multiply<false, true>(c, a, b, m, n, k);
}
