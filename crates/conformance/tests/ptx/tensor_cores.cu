// For compute_80: products through `nvcuda::wmma`.
#include <mma.h>
using namespace nvcuda;

// One warp for each 16 x 16 tile of c = scale * (a b), where a is row-major and b column-major; n is a multiple of 16.
// The tiles of a and b go through shared memory.
extern "C" __global__ void halves(const half *a, const half *b, float *c, int n, float scale) {
    __shared__ __align__(32) half left[16 * 16], right[16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    int row = 16 * blockIdx.y, column = 16 * blockIdx.x;
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            left[i] = a[(row + i / 16) * n + k + i % 16];
            right[i] = b[(column + i / 16) * n + k + i % 16];
        }
        __syncwarp();
        wmma::load_matrix_sync(fa, left, 16);
        wmma::load_matrix_sync(fb, right, 16);
        wmma::mma_sync(fc, fa, fb, fc);
        __syncwarp();
    }
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= scale;
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}

// One warp: c = max(a b, 0) for 8-bit integers, 8 rows, and 32 columns.
extern "C" __global__ void bytes(const signed char *a, const signed char *b, int *c) {
    wmma::fragment<wmma::matrix_a, 8, 32, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 32, 16, signed char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 8, 32, 16, int> fc;
    wmma::fill_fragment(fc, 0);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 32);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] > 0 ? fc.x[i] : 0;
    wmma::store_matrix_sync(c, fc, 8, wmma::mem_col_major);
}

// One warp: c = a b in double precision; 8 rows and columns, 4 columns of a.
extern "C" __global__ void doubles(const double *a, const double *b, double *c) {
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> fc;
    wmma::load_matrix_sync(fa, a, 4);
    wmma::load_matrix_sync(fb, b, 8);
    wmma::fill_fragment(fc, 0.0);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 8, wmma::mem_row_major);
}
