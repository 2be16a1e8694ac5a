"""Complex numbers: their parts, sizes and angles, and views of them as pairs.

The gradient of a real loss by a complex number is that by its real part plus i times that by its
imaginary part, as PyTorch has it. Ops that are differentiable as complex functions need not know:
their rules get the conjugate, and their results are conjugated (oneflow/tensor/tape.py). The ops
here are not, so they say `is_conjugating = False` and follow the convention themselves.
"""

from __future__ import annotations

from oneflow.core.dtype import DType, complex64, complex128, float32, float64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare, elementwise_signatures, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, scalar, unary, where
from oneflow.ops.checks import broadcast, require_same_dtype

PARTS: dict[DType, DType] = {complex64: float32, complex128: float64}
"""The dtype of the parts of complex numbers."""
WHOLES: dict[DType, DType] = {part: whole for whole, part in PARTS.items()}


def _part_of(name: str, x: Operand) -> TensorType:
    if x.dtype not in PARTS:
        raise DTypeError(f"{name} needs complex elements, but its input is {x}")
    return x.meta.with_dtype(PARTS[x.dtype])


class Conj(Op):
    """The complex conjugate of each element."""

    name = "conj"
    precision = "follow"
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _part_of("conj", x)
        return x.meta

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x, linear=True)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (conj(d),)


conj = declare(Conj)


class Real(Op):
    """The real part of each element."""

    name = "real"
    is_view = True
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        return _part_of("real", x)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x, linear=True)

    @staticmethod
    def undo(x: Tensor, part: Tensor) -> Tensor:
        return make_complex(part, imag(x))

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (make_complex(d, unary.full_like(d, value=0)),)


real = declare(Real)


class Imag(Op):
    """The imaginary part of each element."""

    name = "imag"
    is_view = True
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        return _part_of("imag", x)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x, linear=True)

    @staticmethod
    def undo(x: Tensor, part: Tensor) -> Tensor:
        return make_complex(real(x), part)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (make_complex(unary.full_like(d, value=0), d),)


imag = declare(Imag)


class MakeComplex(Op):
    """real + i imag."""

    name = "complex"
    precision = "keep"
    is_conjugating = False

    @staticmethod
    def infer(real: Operand, imag: Operand) -> TensorType:
        dtype = require_same_dtype("complex", real, imag)
        if dtype not in WHOLES:
            raise DTypeError(f"complex needs float32 or float64 parts, got {real} and {imag}")
        return TensorType(broadcast("complex", real, imag), WHOLES[dtype])

    @staticmethod
    def sbp(real: TensorType, imag: TensorType) -> list[SbpSignature]:
        return [*elementwise_signatures(real, imag), signature("P P -> P")]

    @staticmethod
    def grad(d: Tensor, x: Tensor, y: Tensor, out: Tensor) -> Gradients:
        from oneflow.ops.reduce import sum_to_shape

        return (
            lambda: sum_to_shape(real(d), x.meta.shape),
            lambda: sum_to_shape(imag(d), y.meta.shape),
        )


make_complex = declare(MakeComplex)


class ComplexAbs(Op):
    """The distance of each element from 0."""

    name = "complex_abs"
    precision = "follow"
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        return _part_of("abs", x)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        is_zero = compare.scalar_compare(out, value=0, kind="eq")
        slope = where.masked_fill(binary.div(d, where.masked_fill(out, is_zero, value=1)),
                                  is_zero, value=0)  # fmt: skip
        return (lambda: binary.mul(as_complex(slope), x),)


complex_abs = declare(ComplexAbs)


def as_complex(x: Tensor) -> Tensor:
    """Real numbers as complex ones."""
    return make_complex(x, unary.full_like(x, value=0))


class ComplexAngle(Op):
    """The angle of each element, from -pi to pi."""

    name = "complex_angle"
    precision = "follow"
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        return _part_of("angle", x)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        size = complex_abs(x)
        is_zero = compare.scalar_compare(size, value=0, kind="eq")
        square = unary.square(where.masked_fill(size, is_zero, value=1))
        slope = where.masked_fill(binary.div(d, square), is_zero, value=0)
        down = unary.neg(binary.mul(slope, imag(x)))
        return (lambda: make_complex(down, binary.mul(slope, real(x))),)


complex_angle = declare(ComplexAngle)


class ViewAsReal(Op):
    """(real, imag) of each element in a new last dim."""

    name = "view_as_real"
    is_view = True
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        part = _part_of("view_as_real", x)
        return part.with_shape((*x.shape, 2))

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return [*leading_signatures(x.ndim, 1), signature("P -> P")]

    @staticmethod
    def undo(x: Tensor, part: Tensor) -> Tensor:
        return view_as_complex(part)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (view_as_complex(d),)


view_as_real = declare(ViewAsReal)


class ViewAsComplex(Op):
    """The two elements of the last dim as one complex number."""

    name = "view_as_complex"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_view = True
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        if x.dtype not in WHOLES or not x.ndim or x.shape[-1] != 2:
            raise ShapeError(f"view_as_complex: expected floats with a last dim of size 2, got {x}")
        return TensorType(x.shape[:-1], WHOLES[x.dtype])

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return [*leading_signatures(x.ndim - 1, 1), signature("P -> P")]

    @staticmethod
    def undo(x: Tensor, part: Tensor) -> Tensor:
        return view_as_real(part)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (view_as_real(d),)


view_as_complex = declare(ViewAsComplex)


def scaled(x: Tensor, factor: float) -> Tensor:
    """x * factor."""
    return x if factor == 1.0 else scalar.scalar_mul(x, value=factor)
