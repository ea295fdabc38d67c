// For compute_80: a product on tensor cores, with instructions that are only available in assembly.

__device__ unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ void copy(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Starts to copy a tile of both matrices: 16 columns of a, 16 rows of b.
__device__ void begin(unsigned short *left, unsigned short *right, const unsigned short *a, const unsigned short *b, int k, int tile) {
    int lane = threadIdx.x;
    copy(left + lane / 2 * 16 + lane % 2 * 8, a + lane / 2 * k + 16 * tile + lane % 2 * 8);
    if (lane < 16) copy(right + lane * 8, b + (16 * tile + lane) * 8);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// One warp: c = a b, with 16 rows, k columns of a, and 8 columns of b, all in row-major order; k is a multiple of 16.
extern "C" __global__ void product(const unsigned short *a, const unsigned short *b, float *c, int k) {
    __shared__ __align__(16) unsigned short left[2][16 * 16], right[2][16 * 8];
    int lane = threadIdx.x;
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    begin(left[0], right[0], a, b, k, 0);
    for (int tile = 0; tile < k / 16; tile++) {
        int room = tile % 2;
        if (tile + 1 < k / 16) {
            begin(left[1 - room], right[1 - room], a, b, k, tile + 1);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_all;" ::: "memory");
        }
        __syncwarp();
        unsigned a0, a1, a2, a3, b0, b1;
        const void *row = &left[room][lane % 16 * 16 + lane / 16 * 8];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                     : "r"(shared_address(row))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b0), "=r"(b1)
                     : "r"(shared_address(&right[room][lane % 16 * 8]))
                     : "memory");
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        __syncwarp();
    }
    float *mine = c + lane / 4 * 8 + lane % 4 * 2;
    mine[0] = d0;
    mine[1] = d1;
    mine[64] = d2;
    mine[65] = d3;
}
