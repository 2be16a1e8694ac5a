"""Gradients of layer norm and RMS norm. The norms have formulas."""

from __future__ import annotations

from math import prod

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, as_flat
from oneflow.kernels.cuda_launch import by_row, cuda_source, launch, long, whole
from oneflow.kernels.registry import Workspace, cuda_kernel, fused_kernel, kernel

NUM_PARTS = 16
"""Number of parts into which rows are cut for the gradients of norm weights on a CPU: fixed, so
that no sum depends on threads.
"""


def _wide_copies(index: int, count: int) -> Workspace:
    """Workspace: `count` arrays like input `index`, at least float32."""

    def types(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        t = ins[index]
        return (t if t.dtype.bytes >= 4 else t.with_dtype(dtypes.float32),) * count

    return types


def _as_column(statistic: Array, x: Array) -> Array:
    column: Array = statistic.reshape(statistic.shape + (1,) * (x.ndim - statistic.ndim))
    return column


@kernel("layer_norm_grad", workspace=_wide_copies(1, 3))
def layer_norm_grad(xp: ArrayModule, d_x: Array, *rest: Array, begin_axis: int) -> None:
    """Compute, with h = (x - mean) * inv_std and g = d_y * gamma: d_x = inv_std * (g - mean(g) - h
    * mean(g * h)).
    """
    *arrays, hat, g, spare = rest
    has_gamma = len(arrays) > 4
    d_y, x, mean, inv_std = arrays[2:6] if has_gamma else arrays
    dims = tuple(range(begin_axis, x.ndim))
    scale = _as_column(inv_std, x)
    xp.subtract(x, _as_column(mean, x), out=hat)
    xp.multiply(hat, scale, out=hat)
    g[...] = d_y
    if has_gamma:
        d_gamma, d_beta, gamma = arrays[0], arrays[1], arrays[6]
        samples = tuple(range(begin_axis))
        xp.multiply(g, hat, out=spare)
        xp.sum(spare, axis=samples, out=d_gamma)
        xp.sum(g, axis=samples, out=d_beta)
        xp.multiply(g, gamma, out=g)
    xp.multiply(g, hat, out=spare)
    size = prod(x.shape[begin_axis:])
    along = spare.sum(axis=dims, keepdims=True) / size
    xp.subtract(g, g.sum(axis=dims, keepdims=True) / size, out=g)
    xp.multiply(hat, along, out=hat)
    xp.subtract(g, hat, out=g)
    xp.multiply(g, scale, out=g)
    d_x[...] = g


@kernel("rms_norm_grad", workspace=_wide_copies(1, 3))
def rms_norm_grad(xp: ArrayModule, d_x: Array, *rest: Array, begin_axis: int) -> None:
    """Compute, with h = x * inv_rms and g = d_y * gamma: d_x = inv_rms * (g - h * mean(g * h))."""
    *arrays, hat, g, spare = rest
    has_gamma = len(arrays) > 3
    d_y, x, inv_rms = arrays[1:4] if has_gamma else arrays
    scale = _as_column(inv_rms, x)
    xp.multiply(x, scale, out=hat)
    g[...] = d_y
    if has_gamma:
        xp.multiply(g, hat, out=spare)
        xp.sum(spare, axis=tuple(range(begin_axis)), out=arrays[0])
        xp.multiply(g, arrays[4], out=g)
    xp.multiply(g, hat, out=spare)
    along = spare.sum(axis=tuple(range(begin_axis, x.ndim)), keepdims=True)
    along /= prod(x.shape[begin_axis:])
    xp.multiply(hat, along, out=hat)
    xp.subtract(g, hat, out=g)
    xp.multiply(g, scale, out=g)
    d_x[...] = g


def samples_and_size(x: Array, begin_axis: int) -> tuple[int, int]:
    """(number of samples, elements of one)."""
    return prod(x.shape[:begin_axis]), prod(x.shape[begin_axis:])


# ---- large float32 arrays on a CPU ---------------------------------------------------------------


def _weight_type(x: TensorType, begin_axis: int) -> TensorType:
    return x.with_shape((prod(x.shape[begin_axis:]),))


def _sums_and_weight(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Two sums per sample, partial sums of the gradients of the weights, and ones in the place of
    gamma.
    """
    weight = _weight_type(types[1], attrs["begin_axis"])
    samples = prod(types[1].shape[: attrs["begin_axis"]])
    return (
        weight.with_shape((samples, 2)),
        weight.with_shape((NUM_PARTS, 2, weight.numel)),
        weight,
    )


@fused_kernel("layer_norm_grad", workspace=_sums_and_weight)
def layer_norm_grad_fused(xp: ArrayModule, d_x: Array, *rest: Array, begin_axis: int) -> None:
    from oneflow.kernels.fused import layer_norm as fused

    *arrays, sums, partial, ones = rest
    ones[...] = 1
    d_weights, inputs = (arrays[:2], arrays[2:]) if len(arrays) > 4 else ([], arrays)
    d_y, x, mean, inv_std, *gamma = inputs
    shape = samples_and_size(x, begin_axis)
    fused.layer_norm_grad(
        d_x.reshape(shape),
        np.ascontiguousarray(d_y).reshape(shape),
        np.ascontiguousarray(x).reshape(shape),
        as_flat(mean),
        as_flat(inv_std),
        as_flat(gamma[0]) if gamma else ones,
        sums,
        partial,
    )
    for i, out in enumerate(d_weights):
        np.sum(partial[:, i], axis=0, out=out.reshape(-1))


# ---- GPU: a block per row; weight gradients in a fixed order of sums -----------------------------

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
