"""Softmax over the last dim. Statistics of a row stay in a small workspace."""

from __future__ import annotations

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, as_rows
from oneflow.kernels.cuda_launch import by_row, count_rows, cuda_source, long, whole
from oneflow.kernels.registry import cuda_kernel, fused_kernel, kernel


def row_stat(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """One number per row of input 0."""
    return (types[0].with_shape((*types[0].shape[:-1], 1)),)


def row_stat_and_copy(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """One number per row, and one array like input 0."""
    return (*row_stat(types, attrs), types[0])


@kernel("softmax", workspace=row_stat)
def softmax(xp: ArrayModule, out: Array, x: Array, stat: Array) -> None:
    if x.size == 0:
        return
    xp.max(x, axis=-1, keepdims=True, out=stat)
    xp.subtract(x, stat, out=out)
    xp.exp(out, out=out)
    xp.sum(out, axis=-1, keepdims=True, out=stat)
    xp.divide(out, stat, out=out)


@kernel("softmax_grad", workspace=row_stat)
def softmax_grad(
    xp: ArrayModule, d_x: Array, d_out: Array, out: Array, stat: Array, *, scale: float
) -> None:
    xp.multiply(d_out, out, out=d_x)
    xp.sum(d_x, axis=-1, keepdims=True, out=stat)
    xp.subtract(d_out, stat, out=d_x)
    xp.multiply(d_x, out, out=d_x)
    if scale != 1.0:
        xp.multiply(d_x, scale, out=d_x)


@kernel("log_softmax", workspace=row_stat_and_copy)
def log_softmax(xp: ArrayModule, out: Array, x: Array, stat: Array, spare: Array) -> None:
    if x.size == 0:
        return
    xp.max(x, axis=-1, keepdims=True, out=stat)
    xp.subtract(x, stat, out=out)
    xp.exp(out, out=spare)
    xp.sum(spare, axis=-1, keepdims=True, out=stat)
    xp.log(stat, out=stat)
    xp.subtract(out, stat, out=out)


@kernel("log_softmax_grad", workspace=row_stat)
def log_softmax_grad(xp: ArrayModule, d_x: Array, d_out: Array, out: Array, stat: Array) -> None:
    xp.sum(d_out, axis=-1, keepdims=True, out=stat)
    xp.exp(out, out=d_x)
    xp.multiply(d_x, stat, out=d_x)
    xp.subtract(d_out, d_x, out=d_x)


def _mask_too(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return (*row_stat(types, attrs), TensorType(types[0].shape[-2:], dtypes.bool_))


@kernel("causal_softmax", workspace=_mask_too)
def causal_softmax(
    xp: ArrayModule, out: Array, x: Array, stat: Array, future: Array, *, scale: float
) -> None:
    rows, columns = x.shape[-2:]
    positions = xp.arange(columns - rows, columns)
    xp.greater(xp.arange(columns), positions[:, None], out=future)
    xp.multiply(x, scale, out=out)
    xp.copyto(out, -xp.inf, where=future)
    softmax(xp, out, out, stat)


# ---- large float32 arrays on a CPU ---------------------------------------------------------------


@fused_kernel("softmax", workspace=row_stat)
def softmax_fused(xp: ArrayModule, out: Array, x: Array, stat: Array) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.softmax(as_rows(out), stat.reshape(-1), as_rows(x))


@fused_kernel("softmax_grad")
def softmax_grad_fused(
    xp: ArrayModule, d_x: Array, d_out: Array, out: Array, *, scale: float
) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.softmax_grad(as_rows(d_x), as_rows(d_out), as_rows(out), np.float32(scale))


@fused_kernel("log_softmax", workspace=row_stat)
def log_softmax_fused(xp: ArrayModule, out: Array, x: Array, stat: Array) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.log_softmax(as_rows(out), stat.reshape(-1), as_rows(x))


@fused_kernel("log_softmax_grad")
def log_softmax_grad_fused(xp: ArrayModule, d_x: Array, d_out: Array, out: Array) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.log_softmax_grad(as_rows(d_x), as_rows(d_out), as_rows(out))


@fused_kernel("causal_softmax", workspace=row_stat)
def causal_softmax_fused(
    xp: ArrayModule, out: Array, x: Array, stat: Array, *, scale: float
) -> None:
    from oneflow.kernels.fused import softmax as fused

    period = x.shape[-2]
    fused.causal_softmax(as_rows(out), stat.reshape(-1), as_rows(x), np.float32(scale), period)


# ---- GPU: a block per row; scale and causal mask included ----------------------------------------

cuda_source(
    "softmax",
    r"""
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

extern "C" __global__ void softmax_grad(T* d_x, const T* d_out, const T* out, i64 columns,
                                        T scale) {
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
""",
)


@cuda_kernel("softmax")
def softmax_cuda(xp: ArrayModule, out: Array, x: Array) -> None:
    one = out.dtype.type(1)
    by_row("softmax", count_rows(x), out, whole(x), long(x.shape[-1]), one, long(0))


@cuda_kernel("causal_softmax")
def causal_softmax_cuda(xp: ArrayModule, out: Array, x: Array, *, scale: float) -> None:
    columns, period = long(x.shape[-1]), long(x.shape[-2])
    by_row("softmax", count_rows(x), out, whole(x), columns, out.dtype.type(scale), period)


@cuda_kernel("softmax_grad")
def softmax_grad_cuda(
    xp: ArrayModule, d_x: Array, d_out: Array, out: Array, *, scale: float
) -> None:
    inputs = whole(d_out), whole(out)
    columns = long(out.shape[-1])
    by_row("softmax_grad", count_rows(out), d_x, *inputs, columns, d_x.dtype.type(scale))


@cuda_kernel("log_softmax")
def log_softmax_cuda(xp: ArrayModule, out: Array, x: Array) -> None:
    by_row("log_softmax", count_rows(x), out, whole(x), long(x.shape[-1]))


@cuda_kernel("log_softmax_grad")
def log_softmax_grad_cuda(xp: ArrayModule, d_x: Array, d_out: Array, out: Array) -> None:
    inputs = whole(d_out), whole(out)
    by_row("log_softmax_grad", count_rows(out), d_x, *inputs, long(out.shape[-1]))
