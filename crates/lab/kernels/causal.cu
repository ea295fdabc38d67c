// Causal attention over whole sequences, with its backward pass. One thread handles one head of one token.
//
// Tokens are in order, `context` per sequence, and a token attends to itself and to those before it in its sequence. A
// token's row in `qkv` has, head by head, `width` queries, `width` keys, and `width` values. Its row in `out` has `width`
// values for each head. `weights` has, for each head of each token, a weight for each token of the sequence.

__device__ static float dot(const float* x, const float* y, unsigned int n) {
    float sum = 0.0f;
    for (unsigned int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

// The index of the same head of another token in the same sequence.
__device__ static unsigned int same_head(unsigned int i, unsigned int heads, unsigned int context, unsigned int other) {
    unsigned int token = i / heads;
    return (token - token % context + other) * heads + i % heads;
}

// weights[i] = softmax of scale * (query · keys), and out[i] = sum of weights * values. Later tokens have weight 0.
extern "C" __global__ void causal_attention(float* out, float* weights, const float* qkv, float scale, unsigned int tokens,
                                            unsigned int context, unsigned int heads, unsigned int width) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads) return;
    const float* query = qkv + i * 3 * width;
    float* own = weights + i * context;
    unsigned int position = i / heads % context;
    float largest = __int_as_float(0xff800000), sum = 0.0f;
    for (unsigned int other = 0; other <= position; other++) {
        own[other] = scale * dot(query, qkv + same_head(i, heads, context, other) * 3 * width + width, width);
        largest = fmaxf(largest, own[other]);
    }
    for (unsigned int other = 0; other <= position; other++) {
        own[other] = expf(own[other] - largest);
        sum += own[other];
    }
    for (unsigned int other = 0; other < context; other++) own[other] = other <= position ? own[other] / sum : 0.0f;
    for (unsigned int column = 0; column < width; column++) {
        float value = 0.0f;
        for (unsigned int other = 0; other <= position; other++)
            value += own[other] * qkv[same_head(i, heads, context, other) * 3 * width + 2 * width + column];
        out[i * width + column] = value;
    }
}

// The gradient of the scores, from that of `out`, in the form of `weights`.
extern "C" __global__ void causal_scores_gradient(float* scores_gradient, const float* out_gradient, const float* weights,
                                                  const float* qkv, unsigned int tokens, unsigned int context,
                                                  unsigned int heads, unsigned int width) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads) return;
    float* own = scores_gradient + i * context;
    unsigned int position = i / heads % context;
    float mean = 0.0f;
    for (unsigned int other = 0; other < context; other++) {
        const float* value = qkv + same_head(i, heads, context, other) * 3 * width + 2 * width;
        own[other] = other <= position ? dot(out_gradient + i * width, value, width) : 0.0f;
        mean += weights[i * context + other] * own[other];
    }
    for (unsigned int other = 0; other < context; other++)
        own[other] = weights[i * context + other] * (own[other] - mean);
}

// The gradient of `qkv`. A token's key and value are used by itself and by all later tokens of its sequence.
extern "C" __global__ void causal_attention_gradient(float* qkv_gradient, const float* out_gradient, const float* weights,
                                                     const float* scores_gradient, const float* qkv, float scale,
                                                     unsigned int tokens, unsigned int context, unsigned int heads,
                                                     unsigned int width) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * heads) return;
    unsigned int position = i / heads % context;
    for (unsigned int column = 0; column < width; column++) {
        float query = 0.0f, key = 0.0f, value = 0.0f;
        for (unsigned int other = 0; other <= position; other++)
            query += scores_gradient[i * context + other] *
                     qkv[same_head(i, heads, context, other) * 3 * width + width + column];
        for (unsigned int other = position; other < context; other++) {
            unsigned int later = same_head(i, heads, context, other);
            key += scores_gradient[later * context + position] * qkv[later * 3 * width + column];
            value += weights[later * context + position] * out_gradient[later * width + column];
        }
        float* own = qkv_gradient + i * 3 * width + column;
        own[0] = scale * query;
        own[width] = scale * key;
        own[2 * width] = value;
    }
}
