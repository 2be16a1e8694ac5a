"""Elementwise ops with an operator of their own in ONNX, and ops that make tensors of nothing."""

from __future__ import annotations

import math

import numpy as np

from oneflow.core.dtype import DType, bool_, float32, int64
from oneflow.core.op import find_op
from oneflow.onnx.writer.builder import Builder, Call, onnx_dtype
from oneflow.onnx.writer.expressions import write_formula
from oneflow.onnx.writer.sizes import Size, is_dynamic
from oneflow.onnx.writer.table import Row, writes


@writes("copy", "assign", "depend", "amp_white_identity", "amp_black_identity")
def _same(b: Builder, call: Call) -> str:
    return call.inputs[-1 if call.op == "assign" else 0]


@writes("cast")
def _cast(b: Builder, call: Call) -> str:
    return b.cast(call.inputs[0], call.attrs["dtype"], call.types[0].dtype)


@writes("add")
def _add(b: Builder, call: Call) -> str:
    """A sum; or the bias of the convolution whose result is the other addend."""
    fused = _biased(b, call)
    return fused or write_formula(b, find_op("add"), call)[0]


def _biased(b: Builder, call: Call) -> str:
    """The convolution before with a bias, which its operator takes; "" if this is no bias."""
    if len(call.values) != 2:
        return ""
    conv, bias = (value.node for value in call.values)
    if conv.op not in ("conv", "conv_data_grad") or bias.op != "reshape":
        return ""
    source, channels = bias.inputs[0], call.types[0].shape[1]
    wanted = (channels, *(1,) * (call.types[0].ndim - 2))
    if source.type.shape != (channels,) or call.types[1].shape not in ((1, *wanted), wanted):
        return ""
    made = b.made_by(call.inputs[0])
    if made is None or made.op_type not in ("Conv", "ConvTranspose") or len(made.input) != 2:
        return ""
    return b.again(made, b.names[source.id])


def _operator(kind: str, since: int = 1, **names: str) -> Row:
    """A row that writes one operator. names: attribute of the operator -> attr of the op."""

    def row(b: Builder, call: Call) -> str | tuple[str, ...]:
        if b.opset < since:
            return write_formula(b, find_op(call.op), call)
        attrs = {key: float(call.attrs[attr]) for key, attr in names.items()}
        return b(kind, call.inputs[0], **attrs)

    return row


writes("leaky_relu")(_operator("LeakyRelu", alpha="negative_slope"))
writes("elu")(_operator("Elu", alpha="alpha"))
writes("celu")(_operator("Celu", 12, alpha="alpha"))
writes("softsign")(_operator("Softsign"))
writes("hardswish")(_operator("HardSwish", 14))
writes("mish")(_operator("Mish", 18))


@writes("hardsigmoid")
def _hardsigmoid(b: Builder, call: Call) -> str:
    return b("HardSigmoid", call.inputs[0], alpha=1 / 6, beta=0.5)


@writes("silu")
def _silu(b: Builder, call: Call) -> str:
    (x,) = call.inputs
    return b("Mul", x, b("Sigmoid", x))


@writes("gelu")
def _gelu(b: Builder, call: Call) -> str:
    (x,), form = call.inputs, call.attrs["approximate"]
    if b.opset >= 20:
        return b("Gelu", x, approximate=form)
    dtype = call.types[0].dtype
    half, one = b.number(0.5, dtype), b.number(1, dtype)
    if form == "tanh":
        cube = b("Mul", b("Mul", x, b("Mul", x, x)), b.number(0.044715, dtype))
        inner = b("Mul", b("Add", x, cube), b.number(math.sqrt(2 / math.pi), dtype))
        share = b("Add", b("Tanh", inner), one)
    else:
        share = b("Add", b("Erf", b("Div", x, b.number(math.sqrt(2), dtype))), one)
    return b("Mul", b("Mul", x, share), half)


@writes("clamp")
def _clamp(b: Builder, call: Call) -> str:
    (x,), dtype = call.inputs, call.types[0].dtype
    low, high = call.attrs["min"], call.attrs["max"]
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            x = b(kind, x, b.number(bound, dtype))
    return x


@writes("softmax", "log_softmax")
def _softmax(b: Builder, call: Call) -> str:
    return b("Softmax" if call.op == "softmax" else "LogSoftmax", call.inputs[0], axis=-1)


@writes("spherical_bessel_j0")
def _spherical_bessel(b: Builder, call: Call) -> str:
    """sin(x) / x, and 1 at 0."""
    (x,), dtype = call.inputs, call.types[0].dtype
    is_zero = b("Equal", x, b.number(0, dtype))
    one = b.number(1, dtype)
    return b("Where", is_zero, one, b("Div", b("Sin", x), b("Where", is_zero, one, x)))


# ---- sources -------------------------------------------------------------------------------------


def filled(b: Builder, shape: tuple[int, ...], value: object, dtype: DType) -> str:
    """A tensor of one number."""
    if not is_dynamic(shape):
        number = b.number(value, dtype)
        return b.expand(number, shape) if math.prod(shape) != 1 or shape else number
    return b.expand(b.number(value, dtype), shape)


@writes("full_like")
def _full_like(b: Builder, call: Call) -> str:
    return filled(b, call.types[0].shape, call.attrs["value"], call.types[0].dtype)


@writes("constant")
def _constant(b: Builder, call: Call) -> str:
    return filled(b, call.attrs["shape"], call.attrs["value"], call.attrs["dtype"])


@writes("arange")
def _arange(b: Builder, call: Call) -> str:
    start, step, length = (call.attrs[k] for k in ("start", "step", "length"))
    dtype = call.attrs["dtype"]
    if not is_dynamic((start, step, length)):
        with np.errstate(all="ignore"):
            return b.constant((start + np.arange(length) * step).astype(dtype.np))
    places = b("Range", b.number(0, int64), b.number(length, int64), b.number(1, int64))
    wide = int64 if isinstance(start, int) and isinstance(step, int) else float32
    scaled = b("Mul", b.cast(places, wide, int64), b.number(step, wide))
    return b.cast(b("Add", scaled, b.number(start, wide)), dtype, wide)


@writes("eye")
def _eye(b: Builder, call: Call) -> str:
    rows, columns, dtype = (call.attrs[k] for k in ("rows", "columns", "dtype"))
    if not is_dynamic((rows, columns)):
        return b.constant(np.eye(rows, columns).astype(dtype.np))
    row = b.unsqueeze(places(b, rows), [1])
    return b.cast(b("Equal", row, places(b, columns)), dtype, bool_)


def places(b: Builder, count: int) -> str:
    """0 .. count - 1, int64."""
    if isinstance(count, Size):
        return b("Range", b.number(0, int64), b.number(count, int64), b.number(1, int64))
    return b.constant(np.arange(count))


@writes("one_hot")
def _one_hot(b: Builder, call: Call) -> str:
    index, depth, dtype = call.inputs[0], call.attrs["depth"], call.attrs["dtype"]
    wide = b.cast(index, int64, call.types[0].dtype)
    found = b("Equal", b.unsqueeze(wide, [-1]), places(b, depth))
    return b.cast(found, dtype, bool_)


@writes("checked_index")
def _checked_index(b: Builder, call: Call) -> str:
    """Leave the check to the runtime, and make indices that count from the end count from the
    start.
    """
    (index,), dtype = call.inputs, call.types[0].dtype
    result = call.results[0].dtype
    if call.attrs["wraps"]:
        turned = b("Add", index, b.number(call.attrs["size"], dtype))
        index = b("Where", b("Less", index, b.number(0, dtype)), turned, index)
    return b.cast(index, result, dtype)


# ---- random numbers ------------------------------------------------------------------------------


@writes("uniform", "normal")
def _random(b: Builder, call: Call) -> str:
    """Drawn anew at each run, by the runtime's own generator."""
    a, dtype = call.attrs, call.attrs["dtype"]
    if call.op == "uniform":
        kind, of = "RandomUniform", {"low": float(a["low"]), "high": float(a["high"])}
    else:
        kind, of = "RandomNormal", {"mean": float(a["mean"]), "scale": float(a["std"])}
    given = a["shape"]
    if not is_dynamic(given) and given:
        return b(kind, shape=list(given), dtype=onnx_dtype(dtype), **of)
    like = filled(b, given, 0, dtype)
    return b(f"{kind}Like", like, dtype=onnx_dtype(dtype), **of)


@writes("randint")
def _randint(b: Builder, call: Call) -> str:
    a = call.attrs
    like = filled(b, a["shape"], 0, float32)
    span = {"low": float(a["low"]), "high": float(a["high"])}
    return b.cast(b("Floor", b("RandomUniformLike", like, **span)), a["dtype"], float32)


@writes("bernoulli")
def _bernoulli(b: Builder, call: Call) -> str:
    dtype = call.types[0].dtype
    uniform = b("RandomUniformLike", call.inputs[0], dtype=onnx_dtype(dtype))
    return b.cast(b("Less", uniform, call.inputs[0]), dtype, bool_)
