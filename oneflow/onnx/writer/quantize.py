"""Fake quantization, found among its ops, and layers of integers, written as QuantizeLinear and
DequantizeLinear."""

from __future__ import annotations

from oneflow.core.dtype import DType, float32, int8, int32, uint8
from oneflow.core.graph import Node, Value
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.table import writes
from oneflow.ops.quantized import runs_of

_RANGES: dict[tuple[int, int], DType] = {(-128, 127): int8, (0, 255): uint8}


def write_quantized(b: Builder, node: Node) -> str:
    """Write the numbers that integers of 8 bits stand for, if a node gives such; else ""."""
    found = _found(node)
    if found is None:
        return ""
    x, unit, zero, dtype = found
    shape = tuple(unit.type.shape)
    cut = [i for i, size in enumerate(shape) if size != 1]
    if len(cut) > 1 or any(v.id not in b.names for v in (x, unit, zero)):
        return ""
    axis = cut[0] if cut else None
    kept = [] if axis is None else [shape[axis]]
    scale = b.reshape(b.names[unit.id], kept)
    point = b.cast(b.reshape(b.names[zero.id], kept), dtype)
    axis = None if axis is None else axis + x.type.ndim - len(shape)
    whole = b("QuantizeLinear", b.names[x.id], scale, point, axis=axis)
    return b("DequantizeLinear", whole, scale, point, axis=axis)


def _made_by(value: Value, op: str) -> Node | None:
    return value.node if value.node.op == op else None


def _found(node: Node) -> tuple[Value, Value, Value, DType] | None:
    """(x, unit, zero point, dtype) of (clamp(round(x / unit) + zero) - zero) * unit."""
    if node.op != "mul" or node.outputs[0].type.dtype is not float32:
        return None
    moved, unit = node.inputs
    shifted = _made_by(moved, "sub")
    whole = shifted and _made_by(shifted.inputs[0], "clamp")
    if not shifted or not whole:
        return None
    zero = shifted.inputs[1]
    dtype = _RANGES.get((whole.attrs["min"], whole.attrs["max"]))
    added = _made_by(whole.inputs[0], "add")
    rounded = added and _made_by(added.inputs[0], "round")
    divided = rounded and _made_by(rounded.inputs[0], "div")
    if dtype is None or not added or not divided:
        return None
    if added.inputs[1] is not zero or divided.inputs[1] is not unit:
        return None
    return divided.inputs[0], unit, zero, dtype


# ---- layers of integers --------------------------------------------------------------------------


def _of_input(b: Builder, call: Call) -> str:
    """The numbers that the integers of x stand for."""
    (x, *_), (unit, zero) = call.inputs, call.inputs[4:6]
    limits = call.attrs["low"], call.attrs["high"]
    dtype = _RANGES.get(limits)
    if dtype is not None:
        scale, point = b.reshape(unit, []), b.cast(b.reshape(zero, []), dtype, int32)
        return b("DequantizeLinear", b("QuantizeLinear", x, scale, point), scale, point)
    point = b.cast(zero, float32, int32)
    level = b("Add", b("Round", b("Div", x, unit)), point)
    level = b("Clip", level, *(b.number(limit, float32) for limit in limits))
    return b("Mul", b("Sub", level, point), unit)


def _dequantized(b: Builder, call: Call, weight: str) -> str:
    """Integers of a weight as numbers."""
    scales, zeros = call.inputs[2:4]
    return b("DequantizeLinear", weight, scales, b.cast(zeros, int8, int32), axis=0)


@writes("integer_linear")
def _integer_linear(b: Builder, call: Call) -> str:
    columns = call.types[0].shape[-1]
    w = _dequantized(b, call, b.slice(call.inputs[1], [0], [columns], [1]))
    made = b("MatMul", _of_input(b, call), b.swap(w, 2))
    return b("Add", made, call.inputs[6]) if len(call.inputs) > 6 else made


@writes("integer_conv")
def _integer_conv(b: Builder, call: Call) -> str:
    a, outs = call.attrs, call.types[1].shape[0]
    own = call.types[0].shape[1] // a["groups"]
    w = b.slice(call.inputs[1], [0], [runs_of(a["kernel"], own, a["dilation"])[2]], [2])
    w = b.transpose(b.reshape(w, (outs, *a["kernel"], own)), (0, 3, 1, 2))
    windows = {
        "pads": [*a["padding"], *a["padding"]], "kernel_shape": list(a["kernel"]),
        "strides": list(a["stride"]), "dilations": list(a["dilation"]), "group": a["groups"],
    }  # fmt: skip
    return b("Conv", _of_input(b, call), _dequantized(b, call, w), *call.inputs[6:], **windows)
