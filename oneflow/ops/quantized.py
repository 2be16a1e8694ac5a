"""Products with weights that are kept as integers of 4 or 8 bits, and such weights as floats.

A row of a weight is cut into groups of neighbouring inputs; element k of group g stands for
`(q[k] - zero[g]) * scale[g]`. The integers are unsigned and lie one after another, the low bits of
a byte first. How many inputs a group has follows from the shapes, so that shards need no attrs of
their own.
"""

from __future__ import annotations

from typing import TypeVar

from oneflow.core.dtype import float32, uint8
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.cast import cast
from oneflow.ops.checks import require_float
from oneflow.ops.matmul import matmul, sum_rows
from oneflow.ops.shape import reshape

T = TypeVar("T", bound=Operand)


def zero_of(bits: int) -> int:
    """The zero point of weights that come without: the middle of the range."""
    return 1 << (bits - 1)


class Dequantize(Op):
    """out = (q - zeros) * scales: a weight as floats.

    weight: (rows, columns * bits / 8), uint8. scales: (rows, groups). zeros: (rows, groups), uint8;
    without, the middle of the range. out: (rows, columns), of the dtype of scales.
    """

    name = "dequantize"
    precision = "keep"

    @staticmethod
    def infer(
        weight: Operand, scales: Operand, zeros: Operand | None = None, *, bits: int
    ) -> TensorType:
        columns = _columns("dequantize", weight, scales, zeros, bits)
        return TensorType((weight.shape[0], columns), scales.dtype)

    @staticmethod
    def flops(weight: TensorType, *_: TensorType, bits: int) -> int:
        return 2 * weight.numel * 8 // bits

    @staticmethod
    def sbp(*types: TensorType, bits: int) -> list[SbpSignature]:
        return Dequantize.sbp_for(0, *types, bits=bits)

    @staticmethod
    def sbp_for(num_ranks: int, *types: TensorType, bits: int) -> list[SbpSignature]:
        weight, scales, *zeros = types
        rest = len(zeros)
        listed = [
            SbpSignature((Split(0),) * len(types), (Split(0),)),
            SbpSignature((BROADCAST, PARTIAL, *[BROADCAST] * rest), (PARTIAL,)),
        ]
        if _has_whole_parts(num_ranks, weight, scales, bits):
            inner = Split(1) if scales.shape[1] > 1 else BROADCAST
            listed.append(SbpSignature((Split(1), inner, *[inner] * rest), (Split(1),)))
        return listed


dequantize = declare(Dequantize)


class QuantizedLinear(Op):
    """out = x @ w^T + bias, where w is what `dequantize` makes of weight, scales and zeros.

    x: (..., in). weight: (out, in * bits / 8), uint8. scales: (out, groups), of the dtype of x or
    float32. Behind them zeros, (out, groups), uint8, and bias, (out,), each if there is one. out:
    (..., out). The weight has no gradient.
    """

    name = "quantized_linear"
    precision = "lower"
    stays_wide = (2,)

    @staticmethod
    def infer(
        x: Operand, weight: Operand, scales: Operand, *others: Operand, bits: int
    ) -> TensorType:
        who = "quantized_linear"
        require_float(who, x)
        zeros, bias = _optional(others)
        columns = _columns(who, weight, scales, zeros, bits)
        if x.ndim < 1 or x.shape[-1] != columns:
            raise ShapeError(
                f"{who}: x {x} does not fit weight {weight} of {bits} bits; x needs {columns} "
                "columns"
            )
        if scales.dtype not in (x.dtype, float32):
            raise DTypeError(f"{who}: scales {scales} must have the dtype of x {x}, or float32")
        rows = weight.shape[:1]
        if bias is not None and (bias.shape != rows or bias.dtype is not x.dtype):
            wanted = TensorType(rows, x.dtype)
            raise ShapeError(
                f"{who}: bias {bias} does not fit weight {weight}; it must be {wanted}"
            )
        return TensorType((*x.shape[:-1], *rows), x.dtype)

    @staticmethod
    def flops(x: TensorType, weight: TensorType, *_: TensorType, bits: int) -> int:
        return 2 * x.numel * weight.shape[0]

    @staticmethod
    def sbp(*types: TensorType, bits: int) -> list[SbpSignature]:
        return QuantizedLinear.sbp_for(0, *types, bits=bits)

    @staticmethod
    def sbp_for(num_ranks: int, x: TensorType, *types: TensorType, bits: int) -> list[SbpSignature]:
        weight, scales, *others = types
        bias = _optional(tuple(others))[1]
        last, num_biases = x.ndim - 1, int(bias is not None)
        same = (BROADCAST,) * len(types)
        rest, sums = (BROADCAST,) * (len(types) - num_biases), (PARTIAL,) * num_biases
        listed = [
            *(SbpSignature((Split(i), *same), (Split(i),)) for i in range(last)),
            SbpSignature((BROADCAST, *[Split(0)] * len(types)), (Split(last),)),
            SbpSignature((PARTIAL, *rest, *sums), (PARTIAL,)),
        ]
        if _has_whole_parts(num_ranks, weight, scales, bits):
            inner = Split(1) if scales.shape[1] > 1 else BROADCAST
            split = (Split(last), Split(1), *[inner] * (len(rest) - 1))
            listed.append(SbpSignature((*split, *sums), (PARTIAL,)))
        return listed

    @staticmethod
    def grad(
        d_out: Tensor, x: Tensor, weight: Tensor, scales: Tensor, *tensors: Tensor, bits: int
    ) -> Gradients:
        others = tensors[:-1]
        zeros, bias = _optional(others)
        none = (None,) * (len(others) - (bias is not None))

        def of_x() -> Tensor:
            given = (weight, scales) if zeros is None else (weight, scales, zeros)
            w = cast(dequantize(*given, bits=bits), dtype=x.meta.dtype)
            rows = d_out if x.meta.ndim > 1 else reshape(d_out, shape=(1, *d_out.meta.shape))
            return reshape(matmul(rows, w), shape=x.meta.shape)

        return (of_x, None, None, *none, *([] if bias is None else [lambda: sum_rows(d_out)]))


quantized_linear = declare(QuantizedLinear)


def _optional(others: tuple[T, ...]) -> tuple[T | None, T | None]:
    """(zeros, bias) of the operands behind scales: zeros alone are integers."""
    zeros = others[0] if others and others[0].meta.dtype is uint8 else None
    rest = others[zeros is not None :]
    return zeros, rest[0] if rest else None


def _columns(who: str, weight: Operand, scales: Operand, zeros: Operand | None, bits: int) -> int:
    """Inputs of a weight, once its parts are known to fit."""
    if bits not in (4, 8):
        raise ArgumentError(f"{who}: weights have 4 or 8 bits, not {bits}")
    if weight.ndim != 2 or weight.dtype is not uint8:
        raise DTypeError(f"{who}: weight must be a uint8 matrix of packed integers, got {weight}")
    require_float(who, scales)
    columns = weight.shape[1] * 8 // bits
    rows, groups = weight.shape[0], scales.shape[-1] if scales.ndim else 0
    fits = scales.shape == (rows, groups) and groups > 0 and columns % groups == 0
    if not fits or (columns // groups * bits) % 8:
        raise ShapeError(
            f"{who}: scales {scales} do not fit weight {weight} of {bits} bits; they need shape "
            f"[{rows}, groups], with groups of whole bytes that divide {columns} columns"
        )
    if zeros is not None and (zeros.shape != scales.shape or zeros.dtype is not uint8):
        wanted = TensorType(scales.shape, uint8)
        raise ShapeError(f"{who}: zeros {zeros} do not fit scales {scales}; they must be {wanted}")
    return columns


def _has_whole_parts(num_ranks: int, weight: TensorType, scales: TensorType, bits: int) -> bool:
    """Do even parts of the inputs lie on byte and group borders, so that x, weight and scales are
    cut alike?"""
    groups = scales.shape[1]
    return bool(num_ranks) and (weight.shape[1] if groups == 1 else groups) % num_ranks == 0
