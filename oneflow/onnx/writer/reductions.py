"""Reductions over dims, running sums, sorting."""

from __future__ import annotations

import numpy as np

from oneflow.core.dtype import bool_, float32, float64, int32, int64, uint8
from oneflow.onnx.writer.builder import Builder, Call, wide
from oneflow.onnx.writer.elementwise import places
from oneflow.onnx.writer.table import writes

_KINDS = {
    "reduce_sum": "ReduceSum",
    "reduce_prod": "ReduceProd",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_any": "ReduceMax",
    "reduce_all": "ReduceMin",
}
_REDUCED = (int32, int64, float32, float64)
"""Dtypes that runtimes reduce."""


@writes(*_KINDS)
def _reduce(b: Builder, call: Call) -> str:
    (x,), source, result = call.inputs, call.types[0].dtype, call.results[0].dtype
    dims, keep = list(call.attrs["dims"]), call.attrs["keepdim"]
    kind = _KINDS[call.op]
    inner = wide(result) if call.op in ("reduce_sum", "reduce_prod") else wide(source)
    if call.op in ("reduce_any", "reduce_all"):
        x = b.cast(x, bool_, source)
        source = bool_
    if inner not in _REDUCED:
        inner = int32 if inner is not bool_ or call.op in ("reduce_max", "reduce_min") else uint8
        inner = int32 if inner is uint8 else inner
    x = b.cast(x, inner, source)
    return b.cast(b.reduce(kind, x, dims, keep), result, inner)


@writes("argmax", "argmin")
def _argument(b: Builder, call: Call) -> str:
    kind = "ArgMax" if call.op == "argmax" else "ArgMin"
    x = call.inputs[0]
    if call.types[0].dtype is bool_:
        x = b.cast(x, int32)
    keep = int(call.attrs["keepdim"])
    return b(kind, x, axis=call.attrs["dim"], keepdims=keep)


@writes("square_sum", "sum_rows")
def _sums(b: Builder, call: Call) -> str:
    (x,), (type_,), result = call.inputs, call.types, call.results[0].dtype
    x = b.cast(x, wide(result), type_.dtype)
    if call.op == "square_sum":
        made = b.reduce("ReduceSum", b("Mul", x, x), None)
    else:
        made = b.reduce("ReduceSum", x, list(range(type_.ndim - 1)))
    return b.cast(made, result, wide(result))


@writes("cumsum")
def _cumsum(b: Builder, call: Call) -> str:
    (x,), source, result = call.inputs, call.types[0].dtype, call.results[0].dtype
    if not call.types[0].ndim:
        return b.cast(x, result, source)
    inner = result if result in _REDUCED else wide(result) if result.is_floating_point else int64
    made = b("CumSum", b.cast(x, inner, source), b.number(call.attrs["dim"], int64))
    return b.cast(made, result, inner)


def _running(b: Builder, call: Call, kind: str, fill: float) -> str:
    """Reductions of everything up to each place: quadratic in the length of the dim."""
    (x,), (type_,), result = call.inputs, call.types, call.results[0].dtype
    dim, size = call.attrs["dim"], type_.shape[call.attrs["dim"]]
    inner = result if result in _REDUCED else float32 if result.is_floating_point else int64
    x = b.cast(x, inner, type_.dtype)
    ndim = type_.ndim
    grown = b.unsqueeze(x, [dim])  # (..., 1, n, ...)
    seen = b("LessOrEqual", places(b, size), b.unsqueeze(places(b, size), [1]))
    seen = b.unsqueeze(seen, list(range(2, ndim - dim + 1)))
    return b.cast(
        b.reduce(kind, b("Where", seen, grown, b.number(fill, inner)), [dim + 1]), result, inner
    )


@writes("cumprod")
def _cumprod(b: Builder, call: Call) -> str:
    if not call.types[0].ndim:
        return b.cast(call.inputs[0], call.results[0].dtype, call.types[0].dtype)
    return _running(b, call, "ReduceProd", 1)


@writes("logcumsumexp")
def _logcumsumexp(b: Builder, call: Call) -> str:
    return _running(b, call, "ReduceLogSumExp", float("-inf"))


@writes("cumextreme")
def _cumextreme(b: Builder, call: Call) -> tuple[str, ...]:
    (x,), (type_,) = call.inputs, call.types
    dim, size, largest = call.attrs["dim"], type_.shape[call.attrs["dim"]], call.attrs["largest"]
    dtype = type_.dtype
    limit = np.inf if dtype.is_floating_point else np.iinfo(dtype.np).max
    fill = -limit - (not dtype.is_floating_point) if largest else limit
    seen = b("LessOrEqual", places(b, size), b.unsqueeze(places(b, size), [1]))
    seen = b.unsqueeze(seen, list(range(2, type_.ndim - dim + 1)))
    grown = b("Where", seen, b.unsqueeze(x, [dim]), b.number(fill, dtype))
    values = b.reduce("ReduceMax" if largest else "ReduceMin", grown, [dim + 1])
    index = b("ArgMax" if largest else "ArgMin", grown, axis=dim + 1, keepdims=0,
              select_last_index=1)  # fmt: skip
    return values, index


@writes("sort", "topk")
def _topk(b: Builder, call: Call) -> tuple[str, ...]:
    (x,), (type_,), dim = call.inputs, call.types, call.attrs["dim"]
    if call.op == "sort":
        count, largest = type_.shape[dim], call.attrs["descending"]
    else:
        count, largest = call.attrs["k"], call.attrs["largest"]
    dtype = type_.dtype
    inner = dtype if dtype in _REDUCED else float32 if dtype.is_floating_point else int64
    values, index = b.many(
        "TopK", 2, b.cast(x, inner, dtype), b.ints([count]), axis=dim, largest=int(largest)
    )
    return b.cast(values, dtype, inner), index
