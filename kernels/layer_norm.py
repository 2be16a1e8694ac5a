"""Gradients of layer norm on a GPU: a block per row; weight gradients in a fixed order of sums.

On a CPU, and for half precision, they follow from the formula of the op.
"""

from __future__ import annotations

from math import prod

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import by_row, cuda_source, launch, long, whole
from oneflow.kernels.registry import cuda_kernel


def samples_and_size(x: Array, begin_axis: int) -> tuple[int, int]:
    """(number of samples, elements of one)."""
    return prod(x.shape[:begin_axis]), prod(x.shape[begin_axis:])


cuda_source(
    "layer_norm",
    r"""
// gamma may be null.
extern "C" __global__ void layer_norm_grad(T* d_x, const T* d_y, const T* x, const T* mean,
                                           const T* inv_std, const T* gamma, i64 columns) {
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

// One block of 32 x 8 threads per 32 columns: reads are coalesced, and the order of the sums is
// fixed.
extern "C" __global__ void layer_norm_weight_grad(T* d_gamma, T* d_beta, const T* d_y, const T* x,
                                                  const T* mean, const T* inv_std, i64 rows,
                                                  i64 columns) {
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
""",
)
_NONE = np.uint64(0)  # a null pointer


@cuda_kernel("layer_norm_grad")
def layer_norm_grad_cuda(xp: ArrayModule, d_x: Array, *rest: Array, begin_axis: int) -> None:
    d_weights, inputs = (rest[:2], rest[2:]) if len(rest) > 4 else ((), rest)
    d_y, x, mean, inv_std, *gamma = map(whole, inputs)
    rows, columns = samples_and_size(x, begin_axis)
    shared = d_y, x, mean, inv_std
    weight = gamma[0] if gamma else _NONE
    by_row("layer_norm_grad", rows if x.size else 0, d_x, *shared, weight, long(columns))
    if d_weights and columns:
        grid = (-(-columns // 32),)
        sizes = (long(rows), long(columns))
        launch("layer_norm_weight_grad", grid, (32, 8), d_weights[0], d_weights[1], *shared, *sizes)
