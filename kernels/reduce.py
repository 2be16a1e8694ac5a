"""Kernels of oneflow/ops/reduce.py."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from oneflow.core.dtype import bfloat16, complex128, float16, float32, float64
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.native.running import run_on
from oneflow.kernels.registry import HALVES, KernelFunction, compute_in_float32, kernel
from oneflow.kernels.sums import is_long_chain, sum_in_blocks


def _wide_result(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Half floats are summed in float32: in their own precision a sum stops growing at a few
    hundred terms."""
    x = types[0]
    if x.dtype not in (float16, bfloat16):
        return ()
    dims = attrs["dims"]
    return (TensorType(tuple(1 if i in dims else n for i, n in enumerate(x.shape)), float32),)


def _fold(name: str, function: str) -> None:
    """A method of arrays: NumPy's function of that name, on top of it, costs 2 us a call."""

    @kernel(name)
    def run(
        xp: ArrayModule, out: Array, x: Array, *, dims: tuple[int, ...], keepdim: bool = False
    ) -> None:
        getattr(x, function)(axis=dims, keepdims=keepdim, out=out)


def _wide_fold(function: str) -> KernelFunction:
    def run(
        xp: ArrayModule,
        out: Array,
        x: Array,
        *wide: Array,
        dims: tuple[int, ...],
        keepdim: bool = False,
    ) -> None:
        if wide:
            getattr(x, function)(axis=dims, keepdims=True, dtype="float32", out=wide[0])
            xp.copyto(out, wide[0].reshape(out.shape), casting="unsafe")
        else:
            getattr(x, function)(axis=dims, keepdims=keepdim, dtype=x.dtype, out=out)

    return run


def _sum(
    xp: ArrayModule, out: Array, x: Array, *wide: Array, dims: tuple[int, ...], keepdim: bool
) -> None:
    if is_long_chain(xp, x, dims):
        total = sum_in_blocks(x, dims, wide[0].dtype if wide else x.dtype)
        out[...] = total.reshape(out.shape)
    elif xp is np and not wide:  # what the method does, without its function of Python
        np.add.reduce(x, axis=dims, dtype=x.dtype, out=out, keepdims=keepdim)
    else:
        _plain_sum(xp, out, x, *wide, dims=dims, keepdim=keepdim)


_fold("reduce_max", "max")
_fold("reduce_min", "min")
_fold("reduce_any", "any")
_fold("reduce_all", "all")
_plain_sum = _wide_fold("sum")
kernel("reduce_sum", workspace=_wide_result)(_sum)
kernel("reduce_prod", workspace=_wide_result)(_wide_fold("prod"))


MOST_ADDED = 1 << 16
"""Terms of a channel that compiled loops add up in float32, in chains of as many a lane."""
_LEAST = 1 << 16
"""Elements from which compiled loops beat NumPy's passes."""


def _loops() -> ModuleType:
    """The compiled loops; llvmlite takes a moment to import."""
    from oneflow.kernels.native import reducing

    return reducing


def _neighbours(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, int, int] | None:
    """`shape` as (outer, size, inner), of which `size` goes; None if other dims lie between."""
    gone = sorted({d % len(shape) for d in dims if shape[d] > 1})
    if not gone or any(shape[d] > 1 for d in range(gone[0], gone[-1]) if d not in gone):
        return None
    first, last = gone[0], gone[-1] + 1
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])


def _chunks(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Results of parts of the dims, of which there are several where these are long."""
    sizes = _neighbours(types[0].shape, attrs["dims"])
    if sizes is None:
        return ()
    outer, size, inner = sizes
    count = _loops().num_chunks(size, inner)
    return (types[0].with_shape((outer, count, inner)),) if count > 1 else ()


def _compiled(name: str, function: str, otherwise: KernelFunction) -> None:
    @kernel(name, device="cpu", dtypes=("float32",), min_elements=_LEAST, workspace=_chunks)
    def run(
        xp: ArrayModule, out: Array, x: Array, *work: Array, dims: tuple[int, ...], keepdim: bool
    ) -> None:
        sizes, loops = _neighbours(x.shape, dims), _loops()
        if sizes is None or not x.flags.c_contiguous or not loops.fits(sizes[2]):
            otherwise(xp, out, x, dims=dims, keepdim=keepdim)
        else:
            loops.reduce(function, out, x, sizes, work[0] if work else out)


def _sum_channels(
    xp: ArrayModule, out: Array, x: Array, *, dims: tuple[int, ...], keepdim: bool
) -> None:
    """The gradient of a convolution's bias, over all dims but the second, where NumPy adds short
    runs one by one (48 us for 96 x 32 x 16, fused 8); other sums go to NumPy.
    """
    others = (0, *range(2, x.ndim))
    is_fit = x.ndim > 2 and tuple(sorted(d % x.ndim for d in dims)) == others
    if not is_fit or not x.flags.c_contiguous or x.size > MOST_ADDED * x.shape[1]:
        return _sum(xp, out, x, dims=dims, keepdim=keepdim)
    _loops().channel_sums(out.reshape(-1), x.reshape(*x.shape[:2], -1))


def _method(function: str) -> KernelFunction:
    def run(xp: ArrayModule, out: Array, x: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
        getattr(x, function)(axis=dims, keepdims=keepdim, out=out)

    return run


kernel("reduce_sum", device="cpu", dtypes=("float32",), min_elements=8192)(_sum_channels)
_compiled("reduce_sum", "sum", _sum_channels)
_compiled("reduce_max", "largest", _method("max"))
_compiled("reduce_min", "smallest", _method("min"))


def _position(name: str) -> None:
    @kernel(name)
    def run(xp: ArrayModule, out: Array, x: Array, *, dim: int, keepdim: bool = False) -> None:
        getattr(xp, name)(x, axis=dim, out=out.reshape(x.shape[:dim] + x.shape[dim + 1 :]))


_position("argmax")
_position("argmin")


_BLOCK = 1 << 14
"""Elements of a running sum that are added up at once in float64."""


def _block(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """(samples, rows, columns) of the block that is added up at once: whole samples if they are
    small."""
    (x,) = types
    size, columns = x.shape[attrs["dim"]], math.prod(x.shape[attrs["dim"] + 1 :])
    samples = min(math.prod(x.shape[: attrs["dim"]]), max(_BLOCK // max(size * columns, 1), 1))
    rows = min(size, max(_BLOCK // max(columns, 1), 1))
    wide = complex128 if x.dtype.is_complex else float64
    return (TensorType((samples, rows, columns), wide),)


def _running(name: str) -> None:
    join = "add" if name == "cumsum" else "multiply"

    @kernel(name)
    def run(xp: ArrayModule, out: Array, x: Array, *, dim: int) -> None:
        getattr(xp, name)(x, axis=dim, dtype=x.dtype, out=out)

    accumulate = getattr(np, join).accumulate

    def run_block(target: Array, source: Array, block: Array) -> None:
        """Products of some samples, (samples, size, columns)."""
        last = None
        for start in range(0, source.shape[1], block.shape[1]):
            some = source[:, start : start + block.shape[1]]
            own = block[: some.shape[0], : some.shape[1]]
            own[...] = some
            if last is not None:
                getattr(np, join)(own[:, :1], last, out=own[:, :1])
            accumulate(own, 1, None, own)
            last = own[:, -1:].copy()
            target[:, start : start + block.shape[1]] = own

    @kernel(name, device="cpu", dtypes=("float32",))
    def run_in_loops(xp: ArrayModule, out: Array, x: Array, *, dim: int) -> None:
        """Running sums in float64: float32 terms added one by one drift by percents in millions."""
        if x.ndim == 0 or not out.flags.c_contiguous:
            out[...] = accumulate(x.astype(np.float64).reshape(x.shape or 1), dim).reshape(x.shape)
        elif x.size:
            run_on(out, np.ascontiguousarray(x), dim, multiplies=name == "cumprod")

    @kernel(name, device="cpu", dtypes=(*HALVES, "complex64"), workspace=_block)
    def run_in_blocks(xp: ArrayModule, out: Array, x: Array, block: Array, *, dim: int) -> None:
        """The same of other types, by NumPy."""
        if x.size <= block.size:
            wide = block.reshape(-1)[: x.size].reshape(x.shape)
            wide[...] = x
            accumulate(wide, dim, None, wide)
            out[...] = wide
            return
        shape = (math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :]))
        source, target = x.reshape(shape), out.reshape(shape)
        for first in range(0, shape[0], block.shape[0]):
            some = slice(first, first + block.shape[0])
            run_block(target[some], source[some], block)


compute_in_float32("cumsum", "cumprod", device="cuda")


_running("cumsum")
_running("cumprod")
