"""Discrete Fourier transforms over several dims, each result times a number `scale`."""

from __future__ import annotations

from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import scalar, shape, slicing
from oneflow.ops.checks import require_dim
from oneflow.ops.complex_numbers import PARTS, WHOLES, real

Dims = tuple[int, ...]


def _check(name: str, x: Operand, dims: Dims) -> None:
    for dim in dims:
        require_dim(name, x, dim)
        if x.shape[dim] < 1:
            raise ShapeError(f"{name}: Invalid number of data points (0) in dim {dim} of {x}")


def _signatures(x: TensorType, dims: Dims) -> list[SbpSignature]:
    others = [signature(f"S{i} -> S{i}") for i in range(x.ndim) if i not in dims]
    return [*others, signature("P -> P")]


class FftC2c(Op):
    """The transform of complex numbers over `dims`; is_inverse: with the other sign in the
    exponent."""

    name = "fft_c2c"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_conjugating = False

    @staticmethod
    def infer(
        x: Operand, *, dims: Dims, is_inverse: bool = False, scale: float = 1.0
    ) -> TensorType:
        _check("fft_c2c", x, dims)
        if x.dtype not in PARTS:
            raise DTypeError(f"fft_c2c needs complex elements, but its input is {x}")
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims, **_: object) -> list[SbpSignature]:
        return _signatures(x, dims)

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, dims: Dims, is_inverse: bool, scale: float
    ) -> Gradients:
        return (fft_c2c(d, dims=dims, is_inverse=not is_inverse, scale=scale),)


fft_c2c = declare(FftC2c)


class FftR2c(Op):
    """The transform of real numbers over `dims`; of the last of them only the first half, of which
    the second is the mirror image."""

    name = "fft_r2c"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_conjugating = False

    @staticmethod
    def infer(x: Operand, *, dims: Dims, scale: float = 1.0) -> TensorType:
        _check("fft_r2c", x, dims)
        if x.dtype not in WHOLES:
            raise DTypeError(f"fft_r2c needs float32 or float64, but its input is {x}")
        last = dims[-1]
        size = x.shape[last] // 2 + 1
        return TensorType((*x.shape[:last], size, *x.shape[last + 1 :]), WHOLES[x.dtype])

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims, **_: object) -> list[SbpSignature]:
        return _signatures(x, dims)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dims: Dims, scale: float) -> Gradients:
        last = dims[-1]
        missing = x.meta.shape[last] - out.meta.shape[last]
        pads = tuple(n for i in range(len(x.meta.shape)) for n in (0, missing if i == last else 0))
        whole = shape.pad(d, pads=pads, value=0)
        return (lambda: real(fft_c2c(whole, dims=dims, is_inverse=True, scale=scale)),)


fft_r2c = declare(FftR2c)


class FftC2r(Op):
    """The inverse of the transform of real numbers; size: of the last dim of `dims`, of which x
    holds the first half."""

    name = "fft_c2r"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_conjugating = False

    @staticmethod
    def infer(x: Operand, *, dims: Dims, size: int, scale: float = 1.0) -> TensorType:
        _check("fft_c2r", x, dims)
        last = dims[-1]
        if x.dtype not in PARTS or size < 1 or x.shape[last] != size // 2 + 1:
            raise ShapeError(
                f"fft_c2r: complex {x} cannot become size {size} in dim {last}: it needs "
                f"{size // 2 + 1} elements there"
            )
        return TensorType((*x.shape[:last], size, *x.shape[last + 1 :]), PARTS[x.dtype])

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims, **_: object) -> list[SbpSignature]:
        return _signatures(x, dims)

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, dims: Dims, size: int, scale: float
    ) -> Gradients:
        """All but the first element, and the middle one of an even size, stand for two."""
        last = dims[-1]
        twice = fft_r2c(d, dims=dims, scale=2 * scale)
        ends = [0] if size % 2 or size == 1 else [0, size // 2]
        for at in dict.fromkeys(ends):
            starts = tuple(at if i == last else 0 for i in range(len(x.meta.shape)))
            stops = tuple(at + 1 if i == last else n for i, n in enumerate(x.meta.shape))
            where = {"starts": starts, "stops": stops, "steps": (1,) * len(stops)}
            part = slicing.slice(twice, **where)
            half = scalar.scalar_mul(part, value=0.5)
            twice = slicing.slice_update(twice, half, **where)
        return (twice,)


fft_c2r = declare(FftC2r)
