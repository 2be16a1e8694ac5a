"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.onnx.reader.step import Step, constant, flow, layer, runs
from oneflow.ops.recurrent import recurrent
from oneflow.tensor.tensor import Tensor

_ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""The gates of ONNX in our order: i f g o of i o f g, r z n of z r n."""


@runs("LSTM", "GRU", "RNN")
def _layer(step: Step) -> Any:
    kind = step.node.op_type
    _check(step, kind)
    x = step.x()
    if step.get("layout", 0):
        raise step.refuse("has the layout 1, which is not read")
    directions = step.x(1).shape[0]
    turned = _text(step.get("direction", "forward")) == "reverse"
    made = [_direction(step, kind, x, d, turned or d == 1) for d in range(directions)]
    outs = [
        flow("stack")([m[k] for m in made], dim=1 if k == 0 else 0) for k in range(len(made[0]))
    ]
    return tuple(outs)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _check(step: Step, kind: str) -> None:
    """Refuse attributes that change the arithmetic of a step."""
    usual = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}.get(kind)
    functions = [_text(f) for f in step.get("activations", [])]
    if (
        usual
        and functions
        and any(
            functions[i : i + len(usual)] != usual for i in range(0, len(functions), len(usual))
        )
    ):
        raise step.refuse(f"has the activations {', '.join(functions)}, which are not read")
    if step.get("clip", 0.0) or step.get("input_forget", 0) or step.has(7):
        raise step.refuse("has clip, input_forget or peepholes, which are not read")
    if kind == "GRU" and not step.get("linear_before_reset", 0):
        raise step.refuse("has linear_before_reset=0, which is not read")
    if step.has(4):
        lengths = np.unique(step.known(4))
        if lengths.size > 1 or lengths[0] != step.x().shape[0]:
            raise step.refuse("has sequences of different lengths, which are not read")


def _direction(step: Step, kind: str, x: Tensor, d: int, reverse: bool) -> tuple[Tensor, ...]:
    """(out, last h[, last c]) of one direction."""
    hidden, rows = step.x(2).shape[2], x.shape[1]
    w, r = (_ordered(kind, step.x(i)[d], hidden) for i in (1, 2))
    gates = w.shape[0]
    none = constant(x, np.zeros(gates))
    bias, own = none, none
    if step.has(3):
        both = step.x(3)[d]
        bias, own = (_ordered(kind, both[i : i + gates], hidden) for i in (0, gates))
    zero = constant(x, np.zeros((rows, hidden)))
    h = step.x(5)[d] if step.has(5) else zero
    mode, rest = kind, [own]
    if kind == "LSTM":
        rest = [step.x(6)[d] if step.has(6) else zero]
    elif kind == "RNN":
        functions = [_text(f) for f in step.get("activations", ["Tanh", "Tanh"])]
        if functions[d] not in ("Tanh", "Relu"):
            raise step.refuse(f"has the activation {functions[d]}, which is not read")
        mode, rest = f"RNN_{functions[d].upper()}", []
    if kind != "GRU":
        bias = bias + own
    made = recurrent(layer("linear")(x, w, bias), h, r, *rest, mode=mode, reverse=reverse)
    return tuple(made[: 3 if kind == "LSTM" else 2])


def _ordered(kind: str, x: Tensor, hidden: int) -> Tensor:
    order = _ORDERS[kind]
    if len(order) == 1:
        return x
    made: Tensor = flow("cat")([x[g * hidden : (g + 1) * hidden] for g in order], dim=0)
    return made
