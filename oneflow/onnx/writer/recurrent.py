"""Recurrent layers: the operators of ONNX, or their steps one by one."""

from __future__ import annotations

import numpy as np

from oneflow.core.tensor_type import TensorType
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.expressions import write_formula
from oneflow.onnx.writer.shapes import split
from oneflow.onnx.writer.sizes import is_dynamic
from oneflow.onnx.writer.table import writes
from oneflow.ops.recurrent_step import CELLS, step_of

_OPERATORS = {"LSTM": "LSTM", "GRU": "GRU", "RNN_TANH": "RNN", "RNN_RELU": "RNN"}
_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""Our gates in the order of ONNX: i o f c of i f g o, z r h of r z n."""


@writes("recurrent")
def _recurrent(b: Builder, call: Call) -> tuple[str, ...]:
    cell = CELLS[call.attrs["mode"]]
    rest = len(call.inputs) - 3
    is_projected = cell.has_cell and rest > 1
    saved = range(2 + cell.has_cell, len(call.results))
    if call.attrs["sizes"] or is_projected or any(call.is_read(i) for i in saved):
        return _steps(b, call)
    return _layer(b, call)


def _turned(b: Builder, x: str, mode: str, hidden: int) -> str:
    """A tensor of all gates, one after another along dim 0, with these in ONNX's order."""
    order = _ORDERS.get(mode)
    if order is None:
        return x
    taken = np.concatenate([np.arange(hidden) + hidden * g for g in order])
    return b("Gather", x, b.constant(taken), axis=0)


def _layer(b: Builder, call: Call) -> tuple[str, ...]:
    """A layer by its operator, which takes in the product before that gave the input's share."""
    mode, reverse = call.attrs["mode"], call.attrs["reverse"]
    (_, h, weight, *rest), dtype = call.inputs, call.types[0].dtype
    hidden, columns = call.types[1].shape[1], call.types[0].shape[-1]
    x, given, share = _product(b, call)
    recurrence = b.unsqueeze(_turned(b, weight, mode, hidden), [0])
    bias, own = share, rest[0] if mode == "GRU" and rest else ""
    if bias or own:
        zero = b.constant(np.zeros(columns, dtype.np))
        both = [_turned(b, part, mode, hidden) if part else zero for part in (bias, own)]
        bias = b.unsqueeze(b("Concat", *both, axis=0), [0])
    first = [b.unsqueeze(h, [0])]
    if mode == "LSTM":
        first.append(b.unsqueeze(rest[0], [0]))
    made = b.many(
        _OPERATORS[mode], 3 if mode == "LSTM" else 2, x,
        b.unsqueeze(_turned(b, given, mode, hidden), [0]), recurrence, bias, "", *first,
        hidden_size=hidden, direction="reverse" if reverse else "forward",
        activations=["Relu"] if mode == "RNN_RELU" else None,
        linear_before_reset=1 if mode == "GRU" else None,
    )  # fmt: skip
    outs = [b.squeeze(made[0], [1]), *(b.squeeze(m, [0]) for m in made[1:])]
    return (*outs, *[""] * (len(call.results) - len(outs)))


def _product(b: Builder, call: Call) -> tuple[str, str, str]:
    """(x, weight, bias) of the product that is the layer's input; without one its weight is the
    identity.
    """
    node = call.values[0].node if call.values else None
    is_product = node is not None and (
        node.op == "linear"
        or (node.op == "matmul" and node.attrs["transpose_b"] and not node.attrs["transpose_a"])
    )
    ndims = [value.type.ndim for value in node.inputs[:2]] if node is not None else []
    if node is None or not is_product or ndims != [3, 2]:
        eye = b.constant(np.eye(call.types[0].shape[-1], dtype=call.types[0].dtype.np))
        return call.inputs[0], eye, ""
    x, weight, *bias = (b.names[value.id] for value in node.inputs)
    return x, weight, bias[0] if bias else ""


def _steps(b: Builder, call: Call) -> tuple[str, ...]:
    """Each step by its formula: packed sequences, projections, and values for the gradient."""
    if is_dynamic(call.types[0].shape):
        raise call.refuse("has packed sequences, or gates that are read, and a dynamic dim")
    return _Steps(b, call).outputs()


class _Steps:
    """A layer step by step. counts: rows of each step."""

    def __init__(self, b: Builder, call: Call) -> None:
        self.b, self.call, self.mode = b, call, str(call.attrs["mode"])
        self.cell = CELLS[self.mode]
        self.x, self.h, weight, *rest = call.inputs
        x_type, self.rows = call.types[0], call.types[1].shape[0]
        self.hidden, self.dtype = x_type.shape[-1] // self.cell.gates, x_type.dtype
        self.is_packed = bool(call.attrs["sizes"])
        self.counts: tuple[int, ...] = call.attrs["sizes"] or (self.rows,) * x_type.shape[0]
        self.weight = b.swap(weight, 2)
        self.c = rest[0] if self.cell.has_cell else ""
        self.projection = b.swap(rest[1], 2) if self.cell.has_cell and len(rest) > 1 else ""
        self.bias = rest[-1] if self.mode == "GRU" and rest else ""

    def outputs(self) -> tuple[str, ...]:
        order = range(len(self.counts))
        made = {
            t: self._step(t) for t in (reversed(order) if self.call.attrs["reverse"] else order)
        }
        saved = [self._stacked([made[t][k] for t in order]) for k in range(len(made[0]))]
        return (saved[0], self.h, *([self.c] if self.cell.has_cell else []), *saved[1:])

    def _step(self, t: int) -> list[str]:
        """(out, gates if they are kept, cell if there is one) of a step, which moves the states."""
        b, count = self.b, self.counts[t]
        own, own_c = self._head(self.h, count), self._head(self.c, count)
        results = self._formula(self._input(t), b("MatMul", own, self.weight), own, own_c, count)
        out = b("MatMul", results[-1], self.projection) if self.projection else results[-1]
        self.h = self._joined(out, self.h, count)
        made = [out]
        if self.cell.saved:
            made.append(b("Concat", *results[: self.cell.saved], axis=1))
        if self.cell.has_cell:
            self.c = self._joined(results[4], self.c, count)
            made.append(results[4])
        return made

    def _input(self, t: int) -> str:
        if not self.is_packed:
            return self.b("Gather", self.x, self.b.constant(np.int64(t)), axis=0)
        first = sum(self.counts[:t])
        return self.b.slice(self.x, [first], [first + self.counts[t]], [0])

    def _formula(self, x: str, shares: str, h: str, c: str, count: int) -> tuple[str, ...]:
        b, (op, attrs) = self.b, step_of(self.mode)
        if self.mode == "LSTM":
            inputs = [*self._gates(x), *self._gates(shares), c]
        elif self.mode == "GRU":
            zero = b.constant(np.zeros((1, self.hidden), self.dtype.np))
            bias = self._gates(self.bias) if self.bias else [zero] * 3
            inputs = [*self._gates(x), *self._gates(shares), *bias, h]
        else:
            inputs = [x, shares]
        type_ = TensorType((count, self.hidden), self.dtype)
        results = (type_,) * (self.cell.saved + 2 * self.cell.has_cell or 1)
        if self.mode == "GRU":
            results = (type_,) * 5
        types = (type_,) * len(inputs)
        return write_formula(
            b, op, Call(op.name, tuple(inputs), attrs, types, results, where=self.call.where)
        )

    def _gates(self, x: str) -> tuple[str, ...]:
        return split(self.b, x, (self.hidden,) * self.cell.gates, -1)

    def _head(self, state: str, count: int) -> str:
        return state if not state or count == self.rows else self.b.slice(state, [0], [count], [0])

    def _joined(self, new: str, old: str, count: int) -> str:
        """The state after a step of the first rows alone."""
        if count == self.rows:
            return new
        return self.b("Concat", new, self.b.slice(old, [count], [self.rows], [0]), axis=0)

    def _stacked(self, parts: list[str]) -> str:
        if self.is_packed:
            return self.b("Concat", *parts, axis=0)
        return self.b("Concat", *(self.b.unsqueeze(p, [0]) for p in parts), axis=0)
