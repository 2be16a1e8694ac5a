"""The table of rows: how each op is written, and which ops are not."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.op import find_op
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.expressions import write_formula
from oneflow.onnx.writer.refusals import REFUSED

Row = Callable[[Builder, Call], "str | tuple[str, ...]"]

ROWS: dict[str, Row] = {}


def writes(*names: str) -> Callable[[Row], Row]:
    """Decorator: the function writes the ops of these names."""

    def enter(row: Row) -> Row:
        for name in names:
            ROWS[name] = row
        return row

    return enter


def write_call(b: Builder, call: Call) -> tuple[str, ...]:
    """Write one call. Returns the names of its outputs. Raises OnnxExportError."""
    b.call = call
    if call.op in REFUSED:
        raise call.refuse(REFUSED[call.op])
    row = ROWS.get(call.op)
    if row is not None:
        made = row(b, call)
        return (made,) if isinstance(made, str) else made
    op = find_op(call.op)
    if op.formula is None:
        raise call.refuse("has no form in ONNX")
    return write_formula(b, op, call)
