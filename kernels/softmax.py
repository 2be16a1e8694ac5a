"""Causal softmax of attention scores on a GPU: a block per row, which reads the columns that the
row sees.

All else about softmax follows from formulas. A formula's loop reads the other half of the columns,
too; on a CPU it is the faster one all the same.
"""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import by_row, count_rows, cuda_source, long, whole
from oneflow.kernels.registry import cuda_kernel

cuda_source(
    "softmax",
    r"""
// Row r sees its first columns - period + 1 + r % period columns.
extern "C" __global__ void causal_softmax(T* out, const T* x, i64 columns, T scale, i64 period) {
  i64 row = blockIdx.x, seen = columns - period + 1 + row % period;
  const T* in = x + row * columns;
  T* to = out + row * columns;
  T best = lowest(), total = 0;
  ROW(j, seen) best = larger(best, in[j]);
  best = block_max(best);
  ROW(j, seen) total += exp((in[j] - best) * scale);
  total = block_sum(total);
  ROW(j, columns) to[j] = j < seen ? exp((in[j] - best) * scale) / total : T(0);
}
""",
)


@cuda_kernel("causal_softmax")
def causal_softmax_cuda(xp: ArrayModule, out: Array, x: Array, *, scale: float) -> None:
    columns, period = long(x.shape[-1]), long(x.shape[-2])
    scale_there = out.dtype.type(scale)
    by_row("causal_softmax", count_rows(x), out, whole(x), columns, scale_there, period)
