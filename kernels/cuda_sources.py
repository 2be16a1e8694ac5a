"""CUDA C of the hand-fused GPU kernels, as text: compiled at run time, for T = float or double.

Rows: one block of THREADS threads works on one row, with reductions through warp shuffles. Flat
arrays: grid-stride loops. lr and step of the updates are read on the device, so that a step never
waits for the host. The functions are extern "C" and get their sizes as long long.
"""
# ruff: noqa: E501 (C lines)

from __future__ import annotations

THREADS = 256

PRELUDE = r"""
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
#define THREADS 256
#define FLAT(i, n) for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)
#define ROW(j, n) for (i64 j = threadIdx.x; j < (n); j += THREADS)

__device__ T lowest() { return -INFINITY_T; }
__device__ T larger(T a, T b) { return (a > b || a != a) ? a : b; }

// Reduction over the block; every thread gets the result. Leads and ends with a barrier, so calls may follow each other.
#define BLOCK_REDUCE(name, combine, empty)                                          \
  __device__ T name(T value) {                                                      \
    __shared__ T part[32];                                                          \
    for (int o = 16; o > 0; o >>= 1) {                                              \
      T other = __shfl_xor_sync(0xffffffffu, value, o);                             \
      value = combine(value, other);                                                \
    }                                                                               \
    __syncthreads();                                                                \
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;                      \
    __syncthreads();                                                                \
    value = empty;                                                                  \
    for (int w = 0; w < THREADS / 32; ++w) value = combine(value, part[w]);         \
    return value;                                                                   \
  }
__device__ T plus(T a, T b) { return a + b; }
BLOCK_REDUCE(block_sum, plus, T(0))
BLOCK_REDUCE(block_max, larger, lowest())
"""

SOFTMAX = r"""
// period > 0: causal; row r sees its first columns - period + 1 + r % period columns.
extern "C" __global__ void softmax(T* out, const T* x, i64 columns, T scale, i64 period) {
  i64 row = blockIdx.x, seen = period > 0 ? columns - period + 1 + row % period : columns;
  const T* in = x + row * columns;
  T* to = out + row * columns;
  T best = lowest(), total = 0;
  ROW(j, seen) best = larger(best, in[j]);
  best = block_max(best);
  ROW(j, seen) total += exp((in[j] - best) * scale);
  total = block_sum(total);
  ROW(j, columns) to[j] = j < seen ? exp((in[j] - best) * scale) / total : T(0);
}

extern "C" __global__ void softmax_grad(T* d_x, const T* d_out, const T* out, i64 columns, T scale) {
  i64 at = blockIdx.x * columns;
  T along = 0;
  ROW(j, columns) along += d_out[at + j] * out[at + j];
  along = block_sum(along);
  ROW(j, columns) d_x[at + j] = scale * out[at + j] * (d_out[at + j] - along);
}

extern "C" __global__ void log_softmax(T* out, const T* x, i64 columns) {
  i64 at = blockIdx.x * columns;
  T best = lowest(), total = 0;
  ROW(j, columns) best = larger(best, x[at + j]);
  best = block_max(best);
  ROW(j, columns) total += exp(x[at + j] - best);
  T shift = best + log(block_sum(total));
  ROW(j, columns) out[at + j] = x[at + j] - shift;
}

extern "C" __global__ void log_softmax_grad(T* d_x, const T* d_out, const T* out, i64 columns) {
  i64 at = blockIdx.x * columns;
  T total = 0;
  ROW(j, columns) total += d_out[at + j];
  total = block_sum(total);
  ROW(j, columns) d_x[at + j] = d_out[at + j] - exp(out[at + j]) * total;
}
"""

CROSS_ENTROPY = r"""
extern "C" __global__ void cross_entropy(T* loss, T* lse, const T* logits, const i64* labels, i64 classes,
                                         i64 ignore_index, T smoothing) {
  i64 row = blockIdx.x, at = row * classes, label = labels[row];
  bool kept = label != ignore_index && label >= 0 && label < classes;
  T best = lowest(), total = 0, sum = 0;
  ROW(j, classes) { best = larger(best, logits[at + j]); sum += logits[at + j]; }
  best = block_max(best);
  ROW(j, classes) total += exp(logits[at + j] - best);
  total = block_sum(total);
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    T all = best + log(total);
    lse[row] = all;
    T wanted = kept ? logits[at + label] * (T(1) - smoothing) : T(0);
    if (smoothing > T(0)) wanted += sum * (smoothing / T(classes));
    loss[row] = kept ? all - wanted : T(0);
  }
}

extern "C" __global__ void cross_entropy_grad(T* d_logits, const T* d_loss, const T* logits, const i64* labels,
                                              const T* lse, i64 classes, i64 ignore_index, T smoothing) {
  i64 row = blockIdx.x, at = row * classes, label = labels[row];
  bool kept = label != ignore_index && label >= 0 && label < classes;
  T d = kept ? d_loss[row] : T(0), shift = lse[row], spread = smoothing / T(classes);
  ROW(j, classes) {
    T target = spread + (j == label ? T(1) - smoothing : T(0));
    d_logits[at + j] = kept ? d * (exp(logits[at + j] - shift) - target) : T(0);
  }
}
"""

LAYER_NORM = r"""
// gamma and beta may be null.
extern "C" __global__ void layer_norm(T* y, T* mean, T* inv_std, const T* x, const T* gamma, const T* beta,
                                      i64 columns, T eps) {
  i64 row = blockIdx.x, at = row * columns;
  T total = 0, square = 0;
  ROW(j, columns) total += x[at + j];
  T centre = block_sum(total) / T(columns);
  ROW(j, columns) { T d = x[at + j] - centre; square += d * d; }
  T inverse = T(1) / sqrt(block_sum(square) / T(columns) + eps);
  if (threadIdx.x == 0) { mean[row] = centre; inv_std[row] = inverse; }
  ROW(j, columns) {
    T hat = (x[at + j] - centre) * inverse;
    if (gamma) hat *= gamma[j];
    y[at + j] = beta ? hat + beta[j] : hat;
  }
}

extern "C" __global__ void layer_norm_grad(T* d_x, const T* d_y, const T* x, const T* mean, const T* inv_std,
                                           const T* gamma, i64 columns) {
  i64 row = blockIdx.x, at = row * columns;
  T centre = mean[row], inverse = inv_std[row], along = 0, total = 0;
  ROW(j, columns) {
    T g = gamma ? d_y[at + j] * gamma[j] : d_y[at + j];
    total += g;
    along += g * (x[at + j] - centre) * inverse;
  }
  total = block_sum(total) / T(columns);
  along = block_sum(along) / T(columns);
  ROW(j, columns) {
    T g = gamma ? d_y[at + j] * gamma[j] : d_y[at + j];
    d_x[at + j] = inverse * (g - total - (x[at + j] - centre) * inverse * along);
  }
}

// One block of 32 x 8 threads per 32 columns: reads are coalesced, and the order of the sums is fixed.
extern "C" __global__ void layer_norm_weight_grad(T* d_gamma, T* d_beta, const T* d_y, const T* x, const T* mean,
                                                  const T* inv_std, i64 rows, i64 columns) {
  __shared__ T gammas[8][32], betas[8][32];
  i64 column = blockIdx.x * 32 + threadIdx.x;
  T gamma = 0, beta = 0;
  if (column < columns)
    for (i64 row = threadIdx.y; row < rows; row += 8) {
      T d = d_y[row * columns + column];
      gamma += d * (x[row * columns + column] - mean[row]) * inv_std[row];
      beta += d;
    }
  gammas[threadIdx.y][threadIdx.x] = gamma;
  betas[threadIdx.y][threadIdx.x] = beta;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int i = 1; i < 8; ++i) { gamma += gammas[i][threadIdx.x]; beta += betas[i][threadIdx.x]; }
    d_gamma[column] = gamma;
    d_beta[column] = beta;
  }
}
"""

GELU = r"""
__device__ T gelu_phi(T x, int by_tanh) {
  const T c = T(0.7978845608028654);
  if (by_tanh) return T(0.5) * (T(1) + tanh(c * (x + T(0.044715) * x * x * x)));
  return T(0.5) * erfc(-x * T(0.7071067811865476));
}

extern "C" __global__ void gelu(T* out, const T* x, i64 n, int by_tanh) {
  FLAT(i, n) out[i] = x[i] * gelu_phi(x[i], by_tanh);
}

extern "C" __global__ void gelu_grad(T* d_x, const T* d_out, const T* x, i64 n, int by_tanh) {
  FLAT(i, n) {
    T v = x[i], phi = gelu_phi(v, by_tanh), slope;
    if (by_tanh)
      slope = T(2) * phi * (T(1) - phi) * T(0.7978845608028654) * (T(1) + T(3 * 0.044715) * v * v);
    else
      slope = T(0.3989422804014327) * exp(T(-0.5) * v * v);
    d_x[i] = d_out[i] * (phi + v * slope);
  }
}
"""

DROPOUT = r"""
__device__ u32 first_word(u64 index, u32 key, u32 fold) {
  u32 left = (u32)index, right = (u32)(index >> 32) ^ fold;
  for (int i = 0; i < 10; ++i) {
    u64 made = (u64)left * 0xD256D193ull;
    left = (u32)(made >> 32) ^ key ^ right;
    right = (u32)made;
    key += 0x9E3779B9u;
  }
  return left;
}

// The array is a box of sizes n0..n5 at s0..s5 in an array of sizes w0..w5.
extern "C" __global__ void dropout(T* out, const T* x, i64 n, i64 n0, i64 n1, i64 n2, i64 n3, i64 n4, i64 n5,
                                   i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5,
                                   i64 w0, i64 w1, i64 w2, i64 w3, i64 w4, i64 w5,
                                   u64 threshold, T scale, u32 key, u32 fold) {
  const i64 size[6] = {n0, n1, n2, n3, n4, n5}, start[6] = {s0, s1, s2, s3, s4, s5};
  const i64 whole[6] = {w0, w1, w2, w3, w4, w5};
  FLAT(i, n) {
    i64 rest = i, index = 0, stride = 1;
    for (int d = 5; d >= 0; --d) {
      index += (rest % size[d] + start[d]) * stride;
      rest /= size[d];
      stride *= whole[d];
    }
    out[i] = first_word((u64)index, key, fold) >= threshold ? x[i] * scale : T(0);
  }
}
"""

UPDATE = r"""
extern "C" __global__ void sgd(T* param, const T* grad, const double* lr, i64 n, T weight_decay, T sign) {
  T rate = (T)*lr;
  FLAT(i, n) param[i] -= rate * (sign * grad[i] + weight_decay * param[i]);
}

extern "C" __global__ void momentum(T* param, T* buf, const T* grad, const double* lr, i64 n, T decay, T fresh,
                                    T through_grad, T through_buf, T weight_decay, T sign) {
  T rate = (T)*lr;
  FLAT(i, n) {
    T g = sign * grad[i] + weight_decay * param[i];
    T b = decay * buf[i] + fresh * g;
    buf[i] = b;
    param[i] -= rate * (through_grad * g + through_buf * b);
  }
}

extern "C" __global__ void adam(T* param, T* m, T* v, const T* grad, const double* lr, const i64* step, i64 n,
                                double beta1, double beta2, T eps, double weight_decay, int decoupled,
                                int correct, T sign) {
  double rate = *lr, inverse_root = 1.0;
  T shrink = decoupled ? (T)(1.0 - rate * weight_decay) : T(1), decay = decoupled ? T(0) : (T)weight_decay;
  if (correct) {
    rate /= 1.0 - pow(beta1, (double)*step);
    inverse_root = rsqrt(1.0 - pow(beta2, (double)*step));
  }
  T lift = (T)rate, root = (T)inverse_root;
  T keep1 = (T)beta1, fresh1 = (T)(1.0 - beta1), keep2 = (T)beta2, fresh2 = (T)(1.0 - beta2);
  FLAT(i, n) {
    T p = param[i], g = sign * grad[i] + decay * p;
    T a = keep1 * m[i] + fresh1 * g, b = keep2 * v[i] + fresh2 * g * g;
    m[i] = a;
    v[i] = b;
    param[i] = shrink * p - lift * a / (sqrt(b) * root + eps);
  }
}
"""

# module: (source, names of its kernels)
SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "softmax": (SOFTMAX, ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad")),
    "cross_entropy": (CROSS_ENTROPY, ("cross_entropy", "cross_entropy_grad")),
    "layer_norm": (LAYER_NORM, ("layer_norm", "layer_norm_grad", "layer_norm_weight_grad")),
    "activation": (GELU, ("gelu", "gelu_grad")),
    "dropout": (DROPOUT, ("dropout",)),
    "update": (UPDATE, ("sgd", "momentum", "adam")),
}

C_TYPES = {
    "float32": "typedef float T;\n#define INFINITY_T __int_as_float(0x7f800000)\n",
    "float64": "typedef double T;\n#define INFINITY_T __longlong_as_double(0x7ff0000000000000ll)\n",
}


def source_of(module: str, dtype: str) -> str:
    """The whole text of one module for T = `dtype` ("float32" or "float64")."""
    return C_TYPES[dtype] + PRELUDE + SOURCES[module][0]
