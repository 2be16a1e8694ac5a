"""CUDA C of the GPU kernels of elementwise ops and updates, for `cuda_launch`.

lr and step of the updates are read on the device, so that a step never waits for the host.
"""
# ruff: noqa: E501 (C lines)

from __future__ import annotations

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

SOURCES = {"activation": GELU, "dropout": DROPOUT, "update": UPDATE}
"""Topic -> its CUDA C."""
