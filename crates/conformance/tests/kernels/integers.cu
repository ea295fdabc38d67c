// Integer arithmetic: intrinsics, carries, divisions of every width, packed bytes and halves.

// NVRTC 12.0 compiles __dp4a and __dp2a_lo to calls of undefined functions.
#define DOT(name, x, y, z, out) asm(name " %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z))

extern "C" {

__global__ void wide_integers(const unsigned long long *a, const unsigned long long *b, unsigned long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned __int128 x = (unsigned __int128)a[i] << 64 | b[i];
    unsigned __int128 y = (unsigned __int128)b[i] << 64 | a[i] >> 3;
    unsigned __int128 results[5] = {x + y, x - y, x * y, x >> (a[i] & 127), x << (b[i] & 127)};
    unsigned long long *o = out + 12 * i;
    for (int k = 0; k < 5; k++) {
        o[2 * k] = (unsigned long long)results[k];
        o[2 * k + 1] = (unsigned long long)(results[k] >> 64);
    }
    o[10] = x < y;
    o[11] = (__int128)x < (__int128)y;
}

// Four words of 32 bits: a carry chain as in cryptographic code.
__global__ void carry_chains(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned *x = a + 4 * i, *y = b + 4 * i;
    unsigned *o = out + 16 * i;
    asm("add.cc.u32 %0, %4, %8;\n\t"
        "addc.cc.u32 %1, %5, %9;\n\t"
        "addc.cc.u32 %2, %6, %10;\n\t"
        "addc.u32 %3, %7, %11;"
        : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]), "=r"(o[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
    asm("sub.cc.u32 %0, %4, %8;\n\t"
        "subc.cc.u32 %1, %5, %9;\n\t"
        "subc.cc.u32 %2, %6, %10;\n\t"
        "subc.u32 %3, %7, %11;"
        : "=r"(o[4]), "=r"(o[5]), "=r"(o[6]), "=r"(o[7])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
    // x * y[0], word by word.
    unsigned p[5];
    asm("mul.lo.u32 %0, %5, %9;\n\t"
        "mul.hi.u32 %1, %5, %9;\n\t"
        "mad.lo.cc.u32 %1, %6, %9, %1;\n\t"
        "madc.hi.u32 %2, %6, %9, 0;\n\t"
        "mad.lo.cc.u32 %2, %7, %9, %2;\n\t"
        "madc.hi.u32 %3, %7, %9, 0;\n\t"
        "mad.lo.cc.u32 %3, %8, %9, %3;\n\t"
        "madc.hi.u32 %4, %8, %9, 0;"
        : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3]), "=r"(p[4])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]));
    for (int k = 0; k < 5; k++) o[8 + k] = p[k];
    unsigned long long low = (unsigned long long)x[1] << 32 | x[0], high = (unsigned long long)y[1] << 32 | y[0], sum;
    asm("add.cc.u64 %0, %1, %2;" : "=l"(sum) : "l"(low), "l"(high));
    o[13] = (unsigned)sum;
    o[14] = (unsigned)(sum >> 32);
    o[15] = 0;
}

__global__ void intrinsics(const int *a, const int *b, const int *c, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i], z = c[i];
    unsigned ux = x, uy = y, uz = z;
    int *o = out + 24 * i;
    o[0] = __mul24(x, y) + z;
    o[1] = __umul24(ux, uy) + uz;
    o[2] = __mulhi(x, y) + z;
    o[3] = __usad(ux, uy, uz);
    o[4] = __hadd(x, y);
    o[5] = __rhadd(x, y);
    o[6] = __uhadd(ux, uy);
    o[7] = __urhadd(ux, uy);
    o[8] = __funnelshift_l(ux, uy, uz);
    o[9] = __funnelshift_lc(ux, uy, uz);
    o[10] = __funnelshift_r(ux, uy, uz);
    o[11] = __funnelshift_rc(ux, uy, uz);
    o[12] = __byte_perm(ux, uy, uz);
    DOT("dp4a.s32.s32", x, y, z, o[13]);
    DOT("dp4a.u32.u32", x, y, z, o[14]);
    DOT("dp2a.lo.s32.s32", x, y, z, o[15]);
    DOT("dp2a.hi.s32.s32", x, y, z, o[16]);
    DOT("dp2a.lo.u32.u32", x, y, z, o[17]);
    DOT("dp2a.hi.u32.u32", x, y, z, o[18]);
    o[19] = __fns(ux, uy & 31, (int)(uz % 9) - 4);
    o[20] = __ffs(x);
    o[21] = (ux >> (uy & 31) & ((1u << (uz & 15)) - 1));
    o[22] = x << 7 >> 20;
    o[23] = (x & y) | (~x & z);
}

__global__ void packed(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i];
    unsigned *o = out + 20 * i;
    o[0] = __vadd4(x, y);
    o[1] = __vsub4(x, y);
    o[2] = __vaddss4(x, y);
    o[3] = __vaddus4(x, y);
    o[4] = __vabsdiffu4(x, y);
    o[5] = __vsadu4(x, y);
    o[6] = __vavgu4(x, y);
    o[7] = __vcmpgtu4(x, y);
    o[8] = __vcmpgts4(x, y);
    o[9] = __vmaxs4(x, y);
    o[10] = __vminu4(x, y);
    o[11] = __vadd2(x, y);
    o[12] = __vaddss2(x, y);
    o[13] = __vsubus2(x, y);
    o[14] = __vmaxs2(x, y);
    o[15] = __vabsss4(x);
    o[16] = __vnegss2(x);
    o[17] = __vseteq4(x, y);
    o[18] = __vabsdiffs2(x, y);
    o[19] = __vcmpleu2(x, y);
}

__global__ void narrow(const short *a, const signed char *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    short x = a[i];
    signed char y = b[i];
    unsigned short ux = x;
    unsigned char uy = y;
    int *o = out + 12 * i;
    o[0] = (short)(x + y);
    o[1] = (signed char)(x * y);
    o[2] = y ? (short)(x / y) : 0;
    o[3] = y ? (short)(x % y) : 0;
    o[4] = uy ? (unsigned short)(ux / uy) : 0;
    o[5] = uy ? (unsigned char)(ux % uy) : 0;
    o[6] = (short)(x << 3) >> 2;
    o[7] = (unsigned short)(ux << 3) >> 2;
    o[8] = x < y ? x : y;
    o[9] = ux == uy;
    o[10] = (signed char)~x;
    o[11] = (unsigned short)-x;
}

// Instructions that compilers seldom choose, but that people write in assembly.
__global__ void by_hand(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], z = c[i];
    unsigned *o = out + 24 * i;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(o[0]) : "r"(x), "r"(y), "r"(z));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(o[1]) : "r"(x), "r"(y), "r"(z));
    asm("bfi.b32 %0, %1, %2, %3, 9;" : "=r"(o[2]) : "r"(x), "r"(y), "r"(z));
    asm("bfind.u32 %0, %1;" : "=r"(o[3]) : "r"(x));
    asm("bfind.shiftamt.s32 %0, %1;" : "=r"(o[4]) : "r"(x));
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(o[5]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(o[6]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.b4e %0, %1, %2, %3;" : "=r"(o[7]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.rc8 %0, %1, %2, %3;" : "=r"(o[8]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.ecl %0, %1, %2, %3;" : "=r"(o[9]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.ecr %0, %1, %2, %3;" : "=r"(o[10]) : "r"(x), "r"(y), "r"(z));
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(o[11]) : "r"(x), "r"(y), "r"(z));
    asm("sad.s32 %0, %1, %2, %3;" : "=r"(o[12]) : "r"(x), "r"(y), "r"(z));
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(o[13]) : "r"(x), "r"(y), "r"(z));
    asm("mul24.hi.s32 %0, %1, %2;" : "=r"(o[14]) : "r"(x), "r"(y));
    asm("mad24.lo.u32 %0, %1, %2, %3;" : "=r"(o[15]) : "r"(x), "r"(y), "r"(z));
    asm("add.sat.s32 %0, %1, %2;" : "=r"(o[16]) : "r"(x), "r"(y));
    asm("sub.sat.s32 %0, %1, %2;" : "=r"(o[17]) : "r"(x), "r"(y));
    asm("cnot.b32 %0, %1;" : "=r"(o[18]) : "r"(x & 1));
    asm("slct.u32.s32 %0, %1, %2, %3;" : "=r"(o[19]) : "r"(x), "r"(y), "r"(z));
    asm("set.lt.u32.s32 %0, %1, %2;" : "=r"(o[20]) : "r"(x), "r"(y));
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(o[21]) : "r"(x), "r"(y), "r"(z));
    asm("{.reg .pred p, q; setp.lt.and.u32 p|q, %1, %2, 1; selp.u32 %0, 10, 20, q; @p add.u32 %0, %0, 1;}"
        : "=r"(o[22])
        : "r"(x), "r"(y));
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(o[23]) : "r"(x), "r"(y), "r"(z));
}

__global__ void sums_of_64_bits(const long long *a, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long first = a[i], sum = 0;
    // Collatz on 64 bits, and a sum whose step depends only on the data.
    for (long long x = (first & 0xffffff) + 1; x != 1; x = x & 1 ? 3 * x + 1 : x / 2) sum++;
    long long product = 1;
    for (unsigned long long k = 1ull << 33; k < (1ull << 33) + 7 * (first & 63); k += 7) product = product * (long long)k % 1000003;
    out[2 * i] = sum;
    out[2 * i + 1] = product;
}

}
