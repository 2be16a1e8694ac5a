"""Products with weights that are kept as integers of 4 or 8 bits, and such weights as floats;
products of 8-bit integers.

A row of a weight is cut into groups of neighbouring inputs; element k of group g stands for
`(q[k] - zero[g]) * scale[g]`. The integers are unsigned and lie one after another, the low bits of
a byte first. How many inputs a group has follows from the shapes, so that shards need no attrs of
their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, TypeVar

from oneflow.core.dtype import float32, int8, int32, uint8
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.cast import cast
from oneflow.ops.checks import require_float
from oneflow.ops.conv import Sizes, window_count
from oneflow.ops.matmul import matmul, sum_rows
from oneflow.ops.shape import reshape

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    """out = x @ w^T + bias, where w is the result of `dequantize` on weight, scales and zeros.

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


# ---- products of integers ------------------------------------------------------------------------
#
# Dense layers and convolutions whose products are of integers of 8 bits, summed in 32.
#
# The layer's input becomes integers by one scale and zero point, q = clamp(round(x / scale) + zero,
# low, high); the weight holds integers already, with a scale and a zero point for each output. The
# sum over (q - zero) * (weight - zeros) is exact; times both scales, and plus the bias, it is the
# result. So a layer gives what fake quantization of its input and weight gives, but for the
# rounding of float products.
#
# A weight is kept in the order in which the products read it: `runs_of`.

RUN = 16
"""Integers of a run are a multiple of it: those of a vector register."""


class Levels(TypedDict):
    """The least and the largest integer of the input."""

    low: int
    high: int


class Windows(Levels):
    """The same, and the geometry of a convolution."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int


def padded_run(count: int) -> int:
    """The length of a run that holds `count` integers."""
    return -(-count // RUN) * RUN


def runs_of(kernel: Sizes, channels: int, dilation: Sizes) -> tuple[int, int, int]:
    """(lines, places of a line, integers of a place) of a window of a group's channels.

    The channels of a place lie side by side, and so do neighbouring places: without dilation, all
    places of a line are one run.
    """
    lines, across = kernel
    return (lines, 1, across * channels) if dilation[1] == 1 else (lines, across, channels)


class IntegerLinear(Op):
    """out = unit * scales * ((q(x) - zero) @ (weight - zeros)^T) + bias.

    x: (..., in). weight: (out, padded_run(in)), int8, equal to zeros behind the inputs. scales and
    bias: (out,), float32. zeros: (out,), int32. unit: (1,), float32, the scale of x; zero: (1,),
    int32, its zero point. out: (..., out), of the dtype of x. There is no gradient.
    """

    name = "integer_linear"
    precision = "keep"

    @staticmethod
    def infer(
        x: Operand,
        weight: Operand,
        scales: Operand,
        zeros: Operand,
        unit: Operand,
        zero: Operand,
        *bias: Operand,
        **levels: Unpack[Levels],
    ) -> TensorType:
        who = "integer_linear"
        outs = _outputs(who, x, (weight, scales, zeros, unit, zero, *bias))
        if x.ndim < 1 or weight.ndim != 2 or weight.shape[1] != padded_run(x.shape[-1]):
            wanted = f"(out, {padded_run(x.shape[-1]) if x.ndim else RUN})"
            raise ShapeError(f"{who}: weight {weight} does not fit x {x}; it must be {wanted}")
        return x.meta.with_shape((*x.shape[:-1], outs))

    @staticmethod
    def flops(x: TensorType, weight: TensorType, *_: TensorType, **__: object) -> int:
        return 2 * x.numel * weight.shape[0]

    @staticmethod
    def sbp(x: TensorType, *types: TensorType, **_: object) -> list[SbpSignature]:
        last = x.ndim - 1
        whole = (BROADCAST,) * len(types)
        return [
            *(SbpSignature((Split(i), *whole), (Split(i),)) for i in range(last)),
            SbpSignature((BROADCAST, *_of_outputs(types)), (Split(last),)),
        ]


integer_linear = declare(IntegerLinear)


class IntegerConv(Op):
    """The same sums over the windows of an image, around which lie zeros.

    x: (N, C, H, W). weight: (out, lines, padded_run(places * integers)), int8, see `runs_of`; equal
    to zeros behind a run, which is the line of a window, or a place of one with dilation: then
    (out, lines * places, padded_run(integers)). out: (N, out, positions). Others: `IntegerLinear`.
    """

    name = "integer_conv"
    precision = "keep"

    @staticmethod
    def infer(
        x: Operand,
        weight: Operand,
        scales: Operand,
        zeros: Operand,
        unit: Operand,
        zero: Operand,
        *bias: Operand,
        **windows: Unpack[Windows],
    ) -> TensorType:
        who = "integer_conv"
        outs = _outputs(who, x, (weight, scales, zeros, unit, zero, *bias))
        groups, kernel = windows["groups"], windows["kernel"]
        if x.ndim != 4 or x.shape[1] % groups or outs % groups:
            raise ShapeError(
                f"{who}: needs x (N, C, H, W), of which {groups} groups divide C and the {outs} "
                f"outputs; got {x}"
            )
        lines, places, count = runs_of(kernel, x.shape[1] // groups, windows["dilation"])
        if weight.shape[1:] != (lines * places, padded_run(count)):
            raise ShapeError(
                f"{who}: weight {weight} does not fit x {x} and a kernel of {kernel}; it must be "
                f"(out, {lines * places}, {padded_run(count)})"
            )
        places_ = positions(x.shape[2:], windows)
        if min(places_) < 1:
            raise ShapeError(f"{who}: the kernel {kernel} is larger than the padded x {x}")
        return x.meta.with_shape((x.shape[0], outs, *places_))

    @staticmethod
    def flops(x: TensorType, weight: TensorType, *_: TensorType, **windows: Unpack[Windows]) -> int:
        height, width = positions(x.shape[2:], windows)
        (lines, across), channels = windows["kernel"], x.shape[1] // windows["groups"]
        return 2 * x.shape[0] * height * width * weight.shape[0] * lines * across * channels

    @staticmethod
    def sbp(x: TensorType, *types: TensorType, groups: int, **_: object) -> list[SbpSignature]:
        samples = SbpSignature((Split(0), *(BROADCAST,) * len(types)), (Split(0),))
        outputs = SbpSignature((BROADCAST, *_of_outputs(types)), (Split(1),))
        return [samples, outputs] if groups == 1 else [samples]


integer_conv = declare(IntegerConv)


def positions(spatial: Sizes, windows: Windows) -> Sizes:
    """Height and width of the result."""
    attrs = windows["kernel"], windows["stride"], windows["padding"], windows["dilation"]
    return tuple(window_count(*sizes) for sizes in zip(spatial, *attrs, strict=True))


def _of_outputs(types: tuple[TensorType, ...]) -> tuple[Sbp, ...]:
    """Weight, scales, zeros and bias split by outputs; the scale of x is everybody's."""
    return (*[Split(0)] * 3, BROADCAST, BROADCAST, *[Split(0)] * (len(types) - 5))


def _outputs(who: str, x: Operand, given: tuple[Operand, ...]) -> int:
    """Number of outputs, once the operands behind x are known to fit each other."""
    require_float(who, x)
    weight, scales, zeros, unit, zero, *bias = given
    outs = weight.shape[0] if weight.ndim else 0
    if weight.dtype is not int8:
        raise DTypeError(f"{who}: weight must be int8, got {weight}")
    wanted = {
        "scales": (scales, TensorType((outs,), float32)),
        "zeros": (zeros, TensorType((outs,), int32)),
        "unit": (unit, TensorType((1,), float32)),
        "zero": (zero, TensorType((1,), int32)),
    }
    if bias:
        wanted["bias"] = bias[0], TensorType((outs,), float32)
    for what, (found, type_) in wanted.items():
        if found.shape != type_.shape or found.dtype is not type_.dtype:
            raise ShapeError(f"{who}: {what} {found} does not fit weight {weight}; it must be "
                             f"{type_}")  # fmt: skip
    return outs
