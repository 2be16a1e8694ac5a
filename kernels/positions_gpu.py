"""The check of operands that hold positions, on a GPU: its CUDA C, and the launcher."""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array
from oneflow.kernels.cuda_launch import by_item, cuda_source, long, whole

cuda_source(
    "positions_gpu",
    r"""
extern "C" __device__ void __assertfail(const char*, const char*, u32, const char*, size_t);

// SAID: the name of the op, which the driver prints.
extern "C" __global__ void require_positions(const i64* index, i64 n, i64 start, i64 stop,
                                             i64 ignored) {
  FLAT(i, n) {
    i64 at = index[i];
    if ((at < start || at >= stop) && at != ignored)
      __assertfail("an index or a label is out of bounds", "oneflow", 0, "SAID", 1);
  }
}
""",
)


def assert_positions(name: str, index: Array, allowed: range, ignored: int) -> None:
    """Launch an assertion, under the name of the op, that every element is in `allowed` or
    `ignored`."""
    if index.size:
        index = whole(index if index.dtype == np.int64 else index.astype(np.int64))
        bounds = long(allowed.start), long(allowed.stop), long(ignored)
        by_item("require_positions", index.size, index, long(index.size), *bounds, said=name)
