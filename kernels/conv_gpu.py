"""Convolutions on a GPU: by cuDNN, where it is installed. Else windows are gathered by one launch,
with one product over as many samples as `CHUNK_NBYTES` of windows allow; convolutions of single
points need no windows.

A gradient for the data gathers, too: each point of the image adds up the windows it is in, in a
fixed order, so results repeat to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import cudnn
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import cuda_source, flat, long, whole
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import (
    Kernel,
    KernelFunction,
    Workspace,
    add_kernel,
    taking,
)
from oneflow.ops.conv import Conv, ConvDataGrad, ConvFilterGrad, Geometry, Sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHUNK_NBYTES = 256 << 20
DIMS = 3  # what the launched functions count over; missing ones have size 1
FLOATS = ("float32", "float64", "float16", "bfloat16")

cuda_source(
    "conv_gpu",
    r"""
#define TRIPLE(name) i64 name##0, i64 name##1, i64 name##2
// size: of the image; place: numbers of positions of the window.
#define GEOMETRY i64 channels, TRIPLE(size), TRIPLE(taps), TRIPLE(place), \
    TRIPLE(stride), TRIPLE(padding), TRIPLE(dilation)

// columns[sample * per_sample + row * per_row + position]; a row is a tap of a channel.
extern "C" __global__ void conv_windows(S* columns, const S* x, i64 samples, i64 per_sample,
                                        i64 per_row, GEOMETRY) {
  i64 places = place0 * place1 * place2, taps = taps0 * taps1 * taps2, rows = channels * taps;
  FLAT(i, samples * rows * places) {
    i64 p = i % places, row = i / places % rows, sample = i / places / rows, t = row % taps;
    i64 y0 = p / (place1 * place2) * stride0 + t / (taps1 * taps2) * dilation0 - padding0;
    i64 y1 = p / place2 % place1 * stride1 + t / taps2 % taps1 * dilation1 - padding1;
    i64 y2 = p % place2 * stride2 + t % taps2 * dilation2 - padding2;
    bool inside = y0 >= 0 && y0 < size0 && y1 >= 0 && y1 < size1 && y2 >= 0 && y2 < size2;
    i64 channel = sample * channels + row / taps;
    columns[sample * per_sample + row * per_row + p] =
        inside ? x[((channel * size0 + y0) * size1 + y1) * size2 + y2] : S(0);
  }
}

extern "C" __global__ void conv_images(S* x, const S* columns, i64 samples, GEOMETRY) {
  i64 places = place0 * place1 * place2, taps = taps0 * taps1 * taps2;
  FLAT(i, samples * channels * size0 * size1 * size2) {
    i64 y0 = i / (size1 * size2) % size0 + padding0, y1 = i / size2 % size1 + padding1;
    i64 y2 = i % size2 + padding2;
    const S* rows = columns + i / (size0 * size1 * size2) * taps * places;
    T total = 0;
    for (i64 t0 = 0; t0 < taps0; ++t0) {
      i64 p0 = y0 - t0 * dilation0;
      if (p0 < 0 || p0 % stride0 || p0 / stride0 >= place0) continue;
      for (i64 t1 = 0; t1 < taps1; ++t1) {
        i64 p1 = y1 - t1 * dilation1;
        if (p1 < 0 || p1 % stride1 || p1 / stride1 >= place1) continue;
        for (i64 t2 = 0; t2 < taps2; ++t2) {
          i64 p2 = y2 - t2 * dilation2;
          if (p2 < 0 || p2 % stride2 || p2 / stride2 >= place2) continue;
          i64 at = (p0 / stride0 * place1 + p1 / stride1) * place2 + p2 / stride2;
          total += read(rows[((t0 * taps1 + t1) * taps2 + t2) * places + at]);
        }
      }
    }
    x[i] = written(total);
  }
}
""",
)


def _is_pointwise(kernel_size: Sizes, stride: Sizes, padding: Sizes) -> bool:
    return prod(kernel_size) == 1 and max(stride) == 1 and not any(padding)


def _chunk(x: TensorType, w: TensorType, out: TensorType) -> int:
    """Samples whose windows are gathered at once, evenly many in each chunk; at least one."""
    nbytes = prod(x.shape[1:2] + w.shape[2:] + out.shape[2:]) * x.dtype.bytes
    most = max(1, min(x.shape[0], CHUNK_NBYTES // max(nbytes, 1)))
    return -(-x.shape[0] // -(-x.shape[0] // most)) if x.shape[0] else 1


def _columns(x: TensorType, w: TensorType, out: TensorType) -> TensorType:
    size = x.shape[1] * prod(w.shape[2:]) * prod(out.shape[2:])
    return x.with_shape((_chunk(x, w, out) * size,))


def _workspace(op: str) -> Workspace:
    """Flat windows, unless each is a point."""

    def types(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        if op == "conv":
            (x, w), out = ins, Conv.infer(*ins, **attrs)
        else:
            (out, w), x = ins, ConvDataGrad.infer(*ins, **attrs)
        is_pointwise = _is_pointwise(w.shape[2:], attrs["stride"], attrs["padding"])
        return () if is_pointwise else (_columns(x, w, out),)

    return types


def _filter_grad_workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Flat windows, the gradient with its channels first, a chunk's share of the result."""
    (out, x), w = ins, ConvFilterGrad.infer(*ins, **attrs)
    products = out.with_shape((_chunk(x, w, out) * prod(out.shape[1:]),))
    return _columns(x, w, out), products, w


def _numbers(image: Sizes, taps: Sizes, positions: Sizes, geometry: Geometry) -> list[object]:
    """The GEOMETRY of the launched functions. image: without its samples."""
    channels, *size = image
    groups = (
        *((sizes, 1) for sizes in (tuple(size), taps, positions)),
        (geometry["stride"], 1), (geometry["padding"], 0), (geometry["dilation"], 1),
    )  # fmt: skip
    wide = (n for sizes, one in groups for n in (*(one for _ in range(DIMS - len(sizes))), *sizes))
    return [long(channels), *map(long, wide)]


def conv(
    xp: ArrayModule, out: Array, x: Array, w: Array, *work: Array, **geometry: Unpack[Geometry]
) -> None:
    groups, places, x = geometry["groups"], prod(out.shape[2:]), whole(x)
    weight = whole(w).reshape(groups, w.shape[0] // groups, prod(w.shape[1:]))
    rows = groups * weight.shape[2]
    numbers = _numbers(x.shape[1:], w.shape[2:], out.shape[2:], geometry)
    chunk = work[0].size // max(rows * places, 1) if work else x.shape[0]
    for start in range(0, x.shape[0] if out.size else 0, max(chunk, 1)):
        some = x[start : start + chunk]
        n = some.shape[0]
        columns = some
        if work:
            columns = work[0][: n * rows * places]
            flat("conv_windows", columns, some, *map(long, (n, rows * places, places)), *numbers)
        made = out[start : start + n].reshape(n, groups, weight.shape[1], places)
        matrix_product(xp, weight, columns.reshape(n, groups, weight.shape[2], places), made)


def conv_data_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    w: Array,
    *work: Array,
    spatial: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    groups, places, d_out = geometry["groups"], prod(d_out.shape[2:]), whole(d_out)
    weight = whole(w).reshape(groups, w.shape[0] // groups, prod(w.shape[1:]))
    rows = groups * weight.shape[2]
    numbers = _numbers(d_x.shape[1:], w.shape[2:], d_out.shape[2:], geometry)
    chunk = work[0].size // max(rows * places, 1) if work else d_x.shape[0]
    if not places or not d_out.shape[1]:
        d_x[...] = 0
        return
    for start in range(0, d_x.shape[0] if d_x.size else 0, max(chunk, 1)):
        some = d_x[start : start + chunk]
        n = some.shape[0]
        columns = work[0][: n * rows * places] if work else some
        products = d_out[start : start + n].reshape(n, groups, weight.shape[1], places)
        target = columns.reshape(n, groups, weight.shape[2], places)
        matrix_product(xp, weight.swapaxes(1, 2), products, target)
        if work:
            flat("conv_images", some, columns, long(n), *numbers)


def conv_filter_grad(
    xp: ArrayModule,
    d_w: Array,
    d_out: Array,
    x: Array,
    columns: Array,
    products: Array,
    part: Array,
    *,
    kernel: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    """One product over samples and positions at once: rows are channels on both sides."""
    groups, places, x = geometry["groups"], prod(d_out.shape[2:]), whole(x)
    rows, outputs = x.shape[1] * prod(kernel), d_out.shape[1]
    numbers = _numbers(x.shape[1:], kernel, d_out.shape[2:], geometry)
    chunk = columns.size // max(rows * places, 1)
    if not (x.size and d_out.size):
        d_w[...] = 0
        return
    for start in range(0, x.shape[0], chunk):
        some = x[start : start + chunk]
        n = some.shape[0]
        right = columns[: rows * n * places]
        flat("conv_windows", right, some, *map(long, (n, places, n * places)), *numbers)
        left = products[: outputs * n * places].reshape(outputs, n, *d_out.shape[2:])
        left[...] = d_out[start : start + n].swapaxes(0, 1)
        target = part if start else d_w
        matrix_product(
            xp,
            left.reshape(groups, outputs // groups, n * places),
            right.reshape(groups, rows // groups, n * places).swapaxes(1, 2),
            target.reshape(groups, outputs // groups, rows // groups),
        )
        if start:
            d_w += part


# ---- by cuDNN ------------------------------------------------------------------------------------


class _Ways(NamedTuple):
    """One of the three ops: by windows, and by cuDNN.

    which: its name there.  infer: the type of its output.  operands: of cuDNN: output, inputs.
    """

    which: str
    infer: Callable[..., TensorType]
    operands: tuple[int, int, int]
    function: KernelFunction
    windows: Workspace

    def plan(self, layouts: tuple[cudnn.Layout, ...], dtype: str, attrs: Attrs) -> cudnn.Plan | str:
        """The plan for these layouts. One spatial dim gets another of size 1: cuDNN needs two."""
        spatial = len(attrs["stride"])
        numbers = [attrs[name] for name in ("stride", "padding", "dilation")]
        if spatial == 1:
            layouts = tuple(_with_a_row(layout) for layout in layouts)
            numbers = [(one, *n) for one, n in zip((1, 0, 1), numbers, strict=True)]
        at = dict(zip(self.operands, layouts, strict=True))
        ordered = (at[n] for n in (cudnn.IMAGE, cudnn.WEIGHT, cudnn.RESULT))
        return cudnn.planned(cudnn.conv, self.which, dtype, *ordered, *map(tuple, numbers))

    def _packed(self, ins: tuple[TensorType, ...], attrs: Attrs) -> cudnn.Plan | str:
        """The plan for arrays without gaps."""
        types = (self.infer(*ins, **attrs), *ins)
        if not all(t.numel for t in types):
            return "no elements"
        return self.plan(tuple(cudnn.packed(t.shape) for t in types), ins[0].dtype.name, attrs)

    def workspace(self, ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        plan = self._packed(ins, attrs)
        return self.windows(ins, attrs) if isinstance(plan, str) else cudnn.workspace(plan)

    def bind(self, ins: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
        plan = self._packed(ins, attrs)
        if isinstance(plan, str):
            return partial(self.function, **attrs)
        packed = plan

        def run(xp: ArrayModule, out: Array, a: Array, b: Array, work: Array) -> None:
            arrays = (out, a, b)
            as_they_lie = self.plan(tuple(map(cudnn.layout_of, arrays)), out.dtype.name, attrs)
            if cudnn.ran(as_they_lie, dict(zip(self.operands, arrays, strict=True)), work):
                return
            packed.run(
                dict(zip(self.operands, (out, *map(cudnn.without_gaps, arrays[1:])), strict=True)),
                work,
            )

        return taking(run, "cuDNN")


def _with_a_row(layout: cudnn.Layout) -> cudnn.Layout:
    """An array of one spatial dim as an image of one row."""
    (n, c, size), (per_n, per_c, step) = layout
    return cudnn.Layout((n, c, 1, size), (per_n, per_c, size * step, step))


WAYS = {
    "conv": _Ways(
        "forward", Conv.infer, (cudnn.RESULT, cudnn.IMAGE, cudnn.WEIGHT), conv, _workspace("conv")
    ),
    "conv_data_grad": _Ways(
        "data", ConvDataGrad.infer, (cudnn.IMAGE, cudnn.RESULT, cudnn.WEIGHT), conv_data_grad,
        _workspace("conv_data_grad"),
    ),
    "conv_filter_grad": _Ways(
        "filter", ConvFilterGrad.infer, (cudnn.WEIGHT, cudnn.RESULT, cudnn.IMAGE),
        conv_filter_grad, _filter_grad_workspace,
    ),
}  # fmt: skip
for _name, _ways in WAYS.items():
    add_kernel(
        _name, "cuda", Kernel(_ways.function, _ways.workspace, dtypes=FLOATS, bind=_ways.bind)
    )
