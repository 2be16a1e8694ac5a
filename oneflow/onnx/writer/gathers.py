"""Ops that read and write at positions, and weights of few bits."""

from __future__ import annotations

import numpy as np

from oneflow.core.dtype import DType, int32, int64, uint8
from oneflow.core.tensor_type import TensorType
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.elementwise import filled
from oneflow.onnx.writer.sizes import product
from oneflow.onnx.writer.table import writes
from oneflow.ops.quantized import zero_of


def _index(b: Builder, index: str, dtype: DType) -> str:
    return index if dtype in (int32, int64) else b.cast(index, int64, dtype)


@writes("gather")
def _gather(b: Builder, call: Call) -> str:
    index = _index(b, call.inputs[1], call.types[1].dtype)
    return b("Gather", call.inputs[0], index, axis=call.attrs["dim"])


@writes("gather_grad")
def _gather_grad(b: Builder, call: Call) -> str:
    (d, index), (d_type, index_type) = call.inputs, call.types
    dim, out = call.attrs["dim"], call.results[0].shape
    flat = (*out[:dim], product(index_type.shape), *out[dim + 1 :])
    ones = [flat[dim] if i == dim else 1 for i in range(len(out))]
    wide = b.expand(b.reshape(b.cast(index, int64, index_type.dtype), ones), flat)
    zeros = filled(b, out, 0, d_type.dtype)
    return b("ScatterElements", zeros, wide, b.reshape(d, flat), axis=dim, reduction="add")


@writes("dim_gather")
def _dim_gather(b: Builder, call: Call) -> str:
    index = _index(b, call.inputs[1], call.types[1].dtype)
    if not call.types[0].ndim:
        return b.reshape(call.inputs[0], ())
    return b("GatherElements", call.inputs[0], index, axis=call.attrs["dim"])


@writes("dim_scatter", "dim_assign", "dim_scatter_add")
def _dim_scatter(b: Builder, call: Call) -> str:
    x, index, source = call.inputs
    index = _index(b, index, call.types[1].dtype)
    reduction = "add" if call.op == "dim_scatter_add" else None
    made = b("ScatterElements", x, index, source, axis=call.attrs["dim"], reduction=reduction)
    return made


# ---- weights of few bits -------------------------------------------------------------------------


def _dequantized(
    b: Builder,
    weight: str,
    scales: str,
    zeros: str,
    types: tuple[TensorType, TensorType],
    bits: int,
) -> str:
    """(q - zeros) * scales, where a byte holds 8 / bits numbers, the low bits first."""
    w_type, s_type = types
    rows, columns = w_type.shape[0], w_type.shape[1] * 8 // bits
    groups, dtype = s_type.shape[1], s_type.dtype
    q = b.cast(weight, int32, uint8)
    if bits != 8:
        shifts = b.constant(np.array([1 << bits * i for i in range(8 // bits)], np.int32))
        parts = b("Div", b.unsqueeze(q, [-1]), shifts)
        q = b("Mod", parts, b.number(1 << bits, int32))
    q = b.reshape(b.cast(q, dtype, int32), (rows, groups, columns // groups))
    zero = (
        b.unsqueeze(b.cast(zeros, dtype, uint8), [-1]) if zeros else b.number(zero_of(bits), dtype)
    )
    made = b("Mul", b("Sub", q, zero), b.unsqueeze(scales, [-1]))
    return b.reshape(made, (rows, columns))


@writes("dequantize")
def _dequantize(b: Builder, call: Call) -> str:
    weight, scales, *zeros = call.inputs
    types = call.types[0], call.types[1]
    return _dequantized(b, weight, scales, zeros[0] if zeros else "", types, call.attrs["bits"])


@writes("quantized_linear")
def _quantized_linear(b: Builder, call: Call) -> str:
    x, weight, scales, *others = call.inputs
    zeros = bias = ""
    for name, type_ in zip(others, call.types[3:], strict=True):
        if type_.dtype is uint8:
            zeros = name
        else:
            bias = name
    w = _dequantized(b, weight, scales, zeros, (call.types[1], call.types[2]), call.attrs["bits"])
    w = b.cast(w, call.types[0].dtype, call.types[2].dtype)
    made = b("MatMul", x, b.swap(w, 2))
    return b("Add", made, bias) if bias else made
