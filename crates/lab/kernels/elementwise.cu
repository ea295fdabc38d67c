// One thread handles one element. `n` is the number of elements; threads beyond it do nothing.

__device__ static unsigned int element() { return blockIdx.x * blockDim.x + threadIdx.x; }

// x[i] = value
extern "C" __global__ void fill(float* x, float value, unsigned int n) {
    unsigned int i = element();
    if (i < n) x[i] = value;
}

// y[i] += a * x[i]
extern "C" __global__ void axpy(float* y, const float* x, float a, unsigned int n) {
    unsigned int i = element();
    if (i < n) y[i] += a * x[i];
}

// x[i] *= factor
extern "C" __global__ void scale(float* x, float factor, unsigned int n) {
    unsigned int i = element();
    if (i < n) x[i] *= factor;
}

// Gradient descent: parameters[i] -= learning_rate * gradient[i]
extern "C" __global__ void sgd_step(float* parameters, const float* gradient, float learning_rate, unsigned int n) {
    unsigned int i = element();
    if (i < n) parameters[i] -= learning_rate * gradient[i];
}

// Gradient descent with momentum: velocity[i] = momentum * velocity[i] + gradient[i], then
// parameters[i] -= learning_rate * velocity[i]
extern "C" __global__ void momentum_step(float* parameters, float* velocity, const float* gradient, float learning_rate,
                                         float momentum, unsigned int n) {
    unsigned int i = element();
    if (i >= n) return;
    velocity[i] = momentum * velocity[i] + gradient[i];
    parameters[i] -= learning_rate * velocity[i];
}
