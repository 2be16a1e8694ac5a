"""RoIAlign on a GPU: a thread for each cell of a box in a channel, which reads point by point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import MAX_BLOCKS, THREADS, cuda_source, flat, launch, long, whole
from oneflow.kernels.registry import cuda_kernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oneflow.ops.pool import Cells

cuda_source(
    "pool_boxes_gpu",
    r"""
// One side of a cell: where its points begin, how far they lie apart, and how many there are.
struct Side {
  T first, apart;
  i64 points;
  __device__ Side(T begin, T end, T scale, T shift, i64 cell, i64 cells, i64 ratio) {
    T from = begin * scale - shift, length = end * scale - shift - from;
    if (shift == T(0) && !(length >= T(1))) length = T(1);
    T size = length / T(cells);
    points = ratio > 0 ? ratio : size > T(0) ? (i64)ceil(size) : 0;
    apart = size / T(points > 0 ? points : 1);
    first = from + T(cell) * size;
  }
};

// The two pixels around a point and their shares; false for a point that is not read.
struct Place {
  i64 low, high;
  T share_low, share_high;
  __device__ bool find(const Side& side, i64 k, i64 size) {
    T at = side.first + (T(k) + T(0.5)) * side.apart;
    if (!(at >= T(-1) && at <= T(size))) return false;
    at = at < T(0) ? T(0) : at > T(size - 1) ? T(size - 1) : at;
    low = (i64)at;
    high = low + 1 < size ? low + 1 : size - 1;
    share_high = at - T(low);
    share_low = T(1) - share_high;
    return true;
  }
};

#define EACH_POINT                                                                        \
  i64 j = i % columns, row = i / columns % rows, c = i / columns / rows % channels;       \
  i64 r = i / columns / rows / channels;                                                  \
  const T* box = boxes + r * 4;                                                           \
  Side down(box[1], box[3], T(scale), T(shift), row, rows, ratio);                        \
  Side across(box[0], box[2], T(scale), T(shift), j, columns, ratio);                     \
  i64 plane = (images[r] * channels + c) * height * width;                                \
  Place y, z;                                                                             \
  for (i64 a = 0; a < down.points; ++a)                                                   \
    if (y.find(down, a, height))                                                          \
      for (i64 b = 0; b < across.points; ++b)                                             \
        if (z.find(across, b, width))

#define SIZES                                                                             \
  const T *boxes, const i64 *images, i64 channels, i64 height, i64 width, i64 rows,       \
      i64 columns, double scale, double shift, i64 ratio

extern "C" __global__ void roi_align(S* out, i64 total, const S* x, SIZES) {
  FLAT(i, total) {
    T sum = T(0);
    EACH_POINT {
      const S *above = x + plane + y.low * width, *below = x + plane + y.high * width;
      sum += y.share_low * (z.share_low * read(above[z.low]) + z.share_high * read(above[z.high])) +
             y.share_high * (z.share_low * read(below[z.low]) + z.share_high * read(below[z.high]));
    }
    i64 points = down.points * across.points;
    out[i] = written(points > 0 ? sum / T(points) : T(0));
  }
}

// Additions are atomic, so their order, and the last bits, may differ from run to run.
extern "C" __global__ void roi_align_grad(T* d_x, i64 total, const T* d_out, SIZES) {
  FLAT(i, total) {
    EACH_POINT {
      T one = d_out[i] / T(down.points * across.points);
      T *above = d_x + plane + y.low * width, *below = d_x + plane + y.high * width;
      atomicAdd(above + z.low, one * y.share_low * z.share_low);
      atomicAdd(above + z.high, one * y.share_low * z.share_high);
      atomicAdd(below + z.low, one * y.share_high * z.share_low);
      atomicAdd(below + z.high, one * y.share_high * z.share_high);
    }
  }
}
""",
)


def _sizes(cells: Array, x: Array, boxes: Array, images: Array, how: Cells) -> tuple[object, ...]:
    """Return the arguments of both functions. cells: (R, C, rows, columns); x: (N, C, H, W)."""
    shift = 0.5 if how["aligned"] else 0.0
    return (
        whole(boxes.astype(x.dtype)),
        whole(images),
        *map(long, (*x.shape[1:], *cells.shape[2:])),
        np.float64(how["scale"]),
        np.float64(shift),
        long(how["sampling_ratio"]),
    )


@cuda_kernel("roi_align")
def roi_align(
    xp: ArrayModule,
    out: Array,
    x: Array,
    boxes: Array,
    images: Array,
    *,
    size: tuple[int, int],
    **cells: Unpack[Cells],
) -> None:
    sizes = _sizes(out, x, boxes, images, cells)
    flat("roi_align", out, long(out.size), whole(x), *sizes)


@cuda_kernel("roi_align_grad")
def roi_align_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    boxes: Array,
    images: Array,
    *,
    shape: tuple[int, int, int],
    **cells: Unpack[Cells],
) -> None:
    d_x.fill(0)
    if d_out.size:
        blocks = min(MAX_BLOCKS, -(-d_out.size // THREADS))
        sizes = _sizes(d_out, d_x, boxes, images, cells)
        launch("roi_align_grad", (blocks,), (THREADS,), d_x, long(d_out.size), whole(d_out), *sizes)
