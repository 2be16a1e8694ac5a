"""Kernels of oneflow/ops/reduce.py."""

from __future__ import annotations

from oneflow.core.dtype import bfloat16, float16, float32
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import KernelFunction, kernel


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


def _wide_fold(name: str, function: str) -> KernelFunction:
    @kernel(name, workspace=_wide_result)
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


_fold("reduce_max", "max")
_fold("reduce_min", "min")
_fold("reduce_any", "any")
_fold("reduce_all", "all")
_wide_sum = _wide_fold("reduce_sum", "sum")
_wide_fold("reduce_prod", "prod")


@kernel("reduce_sum", device="cpu", dtypes=("float32",), min_elements=8192)
def reduce_sum_channels(
    xp: ArrayModule, out: Array, x: Array, *, dims: tuple[int, ...], keepdim: bool
) -> None:
    """The gradient of a convolution's bias, over all dims but the second, where NumPy adds short
    runs one by one (48 us for 96 x 32 x 16, fused 8); other sums go to NumPy.
    """
    others = (0, *range(2, x.ndim))
    if x.ndim < 3 or tuple(sorted(d % x.ndim for d in dims)) != others or not x.flags.c_contiguous:
        return _wide_sum(xp, out, x, dims=dims, keepdim=keepdim)
    from oneflow.kernels.expressions.columns import channel_sums

    channel_sums(out.reshape(-1), x.reshape(*x.shape[:2], -1))


def _position(name: str) -> None:
    @kernel(name)
    def run(xp: ArrayModule, out: Array, x: Array, *, dim: int, keepdim: bool = False) -> None:
        getattr(xp, name)(x, axis=dim, out=out.reshape(x.shape[:dim] + x.shape[dim + 1 :]))


_position("argmax")
_position("argmin")


def _wide_running(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Running results of half floats are of float32, too."""
    (x,) = types
    return (x.with_dtype(float32),) if x.dtype in (float16, bfloat16) else ()


def _running(name: str) -> None:
    @kernel(name, workspace=_wide_running)
    def run(xp: ArrayModule, out: Array, x: Array, *wide: Array, dim: int) -> None:
        if wide:
            wide[0][...] = x  # in place: with `dtype` NumPy would make a copy of that type
            getattr(xp, name)(wide[0], axis=dim, out=wide[0])
            out[...] = wide[0]
        else:
            getattr(xp, name)(x, axis=dim, dtype=x.dtype, out=out)


_running("cumsum")
_running("cumprod")
