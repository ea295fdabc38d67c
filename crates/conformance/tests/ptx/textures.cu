// Kernels that read textures and write surfaces, in the ways of NVIDIA's samples.

// A picture that is turned around its center.
extern "C" __global__ void turn(float *to, int width, int height, float angle, cudaTextureObject_t picture) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float u = (x + 0.5f) / width - 0.5f, v = (y + 0.5f) / height - 0.5f;
    float tu = u * cosf(angle) - v * sinf(angle) + 0.5f, tv = v * cosf(angle) + u * sinf(angle) + 0.5f;
    to[y * width + x] = tex2D<float>(picture, tu, tv);
}

// The elements of a texture at centers that are moved by whole elements.
extern "C" __global__ void shift(float *to, int width, int height, int dx, int dy, cudaTextureObject_t rows) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    to[y * width + x] = tex2D<float>(rows, (x + dx + 0.5f) / width, (y + dy + 0.5f) / height);
}

extern "C" __global__ void layers(float *to, int width, cudaTextureObject_t planes) {
    int x = threadIdx.x, y = threadIdx.y, layer = blockIdx.x;
    float value = tex2DLayered<float>(planes, (x + 0.5f) / width, (y + 0.5f) / width, layer);
    to[(layer * width + y) * width + x] = layer - value;
}

extern "C" __global__ void faces(float *to, int width, cudaTextureObject_t cube) {
    int x = threadIdx.x, y = threadIdx.y;
    float u = (x + 0.5f) / width * 2.f - 1.f, v = (y + 0.5f) / width * 2.f - 1.f;
    for (int face = 0; face < 6; face++) {
        float cx = face == 0 ? 1 : face == 1 ? -1 : face == 5 ? -u : u;
        float cy = face == 2 ? 1 : face == 3 ? -1 : -v;
        float cz = face == 0 ? -u : face == 1 ? u : face == 2 ? v : face == 3 ? -v : face == 4 ? 1 : -1;
        to[(face * width + y) * width + x] = texCubemap<float>(cube, cx, cy, cz);
    }
}

extern "C" __global__ void slice(float *to, int width, int height, float w, cudaTextureObject_t volume) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    to[y * width + x] = tex3D<float>(volume, (x + 0.5f) / width, (y + 0.5f) / height, w);
}

extern "C" __global__ void fetch(float *to, int count, cudaTextureObject_t buffer) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    to[at] = tex1Dfetch<float>(buffer, at + (at < count ? 0 : 1000));
}

extern "C" __global__ void draw(const float *from, int width, int height, cudaSurfaceObject_t picture) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    surf2Dwrite(from[y * width + x], picture, x * 4, y, cudaBoundaryModeTrap);
}

extern "C" __global__ void draw_unscaled(cudaSurfaceObject_t picture) {
    surf2Dwrite(1.f, picture, (threadIdx.x + 64) * 4, 3, cudaBoundaryModeTrap);
}

// Each element of the next level is the mean of four elements.
extern "C" __global__ void smaller(cudaSurfaceObject_t to, cudaTextureObject_t from, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float u = (x + 0.5f) / width, v = (y + 0.5f) / height;
    float4 mean = tex2D<float4>(from, u, v);
    uchar4 color = make_uchar4(mean.x * 255.f + 0.5f, mean.y * 255.f + 0.5f, mean.z * 255.f + 0.5f, 255);
    surf2Dwrite(color, to, x * 4, y);
}

// Colors from textures whose handles are in memory.
extern "C" __global__ void bindless(float4 *to, const cudaTextureObject_t *pictures, float level) {
    to[threadIdx.x] = tex2DLod<float4>(pictures[threadIdx.x], 0.5f, 0.5f, level);
}

extern "C" __global__ void gather(uint4 *to, float x, float y, cudaTextureObject_t picture) {
    to[0] = tex2Dgather<uint4>(picture, x, y, 0);
}

// Each element becomes its left neighbor, in place: a mistake.
extern "C" __global__ void smear(cudaSurfaceObject_t to, cudaTextureObject_t from) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    surf2Dwrite(tex2D<float>(from, x - 0.5f, y + 0.5f), to, x * 4, y);
}
