"""Traces small training graphs: a mode that appends nodes, a tape that appends gradients."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.dtype import float32, float64, int64
from oneflow.core.graph import (
    BACKWARD,
    FORWARD,
    GRADIENT,
    SEED,
    UPDATE,
    LogicalGraph,
    Node,
    Value,
)
from oneflow.core.op import Op, find_op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.sbp import parse_nd_sbp
from oneflow.core.tensor_type import TensorType

DTYPES = {"float32": float32, "float64": float64, "int64": int64}


class Builder(Mode):
    """A graph under construction; every node has a source line of its own."""

    def __init__(self, name: str = "G", num_pieces: int = 1) -> None:
        self.graph = LogicalGraph(name, num_pieces)
        self.tape: list[tuple[type[Op], Node]] = []
        self.stage, self.phase, self.grad_of = 0, FORWARD, -1

    def add(
        self, op: str, inputs: Any, types: Any, placement: Placement, sbp: Any, attrs: Any = None
    ) -> Node:
        node = self.graph.append(op, inputs, types, placement, attrs, sbp=sbp)
        node.location, node.stage = f"train.py:{node.id + 1}", self.stage
        node.phase, node.grad_of = self.phase, self.grad_of
        return node

    def source(
        self,
        kind: str,
        name: str,
        shape: Any,
        sbp: str,
        placement: Placement,
        dtype: str = "float32",
    ) -> Value:
        fixed = [parse_nd_sbp(sbp) if sbp != "?" else None]
        types = [TensorType(tuple(shape), DTYPES[dtype])]
        return self.add(kind, [], types, placement, fixed, {"name": name}).outputs[0]

    def input(
        self, name: str, shape: Any, sbp: str, placement: Placement, dtype: str = "float32"
    ) -> Value:
        return self.source("input", name, shape, sbp, placement, dtype)

    def variable(self, name: str, shape: Any, sbp: str, placement: Placement) -> Value:
        return self.source("variable", name, shape, sbp, placement)

    def to_global(self, x: Value, sbp: str, placement: Placement | None = None) -> Value:
        where = placement or x.placement
        node = self.add("to_global", [x], [x.type], where, [parse_nd_sbp(sbp)])
        self.tape.append((Op, node))
        return node.outputs[0]

    def structural(
        self, kind: str, x: Value, type: TensorType | None = None, **attrs: Any
    ) -> Value:
        return self.add(kind, [x], [type or x.type], x.placement, None, attrs).outputs[0]

    def output(self, *values: Value) -> None:
        for i, value in enumerate(values):
            self.add("output", [value], [], value.placement, None, {"index": i})

    def run(self, op: type[Op], inputs: tuple[Value, ...], attrs: dict[str, Any]) -> Any:
        """Appends one node, as a mode does."""
        attrs = op.defaults | attrs
        types = infer_types(op, tuple(v.type for v in inputs), attrs)
        where = next((v.placement for v in inputs if v.type.ndim), inputs[0].placement)
        node = self.add(op.name, inputs, types, where, None, attrs)
        self.tape.append((op, node))
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def call(self, name: str, *inputs: Value, **attrs: Any) -> Any:
        return self.run(find_op(name), inputs, attrs)

    def backward(self, loss: Value) -> dict[Value, Value]:
        """Appends the gradients of `loss` with regard to everything; returns value -> gradient."""
        grads = {loss: self.structural(SEED, self.call("full_like", loss, value=1.0))}
        self.phase = BACKWARD
        with use_mode(self):
            for op, node in reversed(list(self.tape[:-1])):
                self.grad_of = node.outputs[0].id
                self._step_back(op, node, grads)
        self.phase, self.grad_of = UPDATE, -1
        return grads

    def _step_back(self, op: type[Op], node: Node, grads: dict[Value, Value]) -> None:
        d_outs = [grads.get(v) for v in node.outputs]
        if all(d is None for d in d_outs):
            return
        self.stage, stage = node.stage, self.stage
        if node.op == "to_global":
            source = node.inputs[0]
            self.stage = source.node.stage
            found: Any = (
                self.add(
                    "to_global", d_outs, [source.type], source.placement, [source.sbp]
                ).outputs[0],
            )
        else:
            found = op.grad(*d_outs, *node.inputs, *node.outputs, **node.attrs)
        for value, grad in zip(node.inputs, found, strict=False):
            grad = grad() if callable(grad) and value.node.op != "input" else grad
            if isinstance(grad, Value):
                grads[value] = self.call("add", grads[value], grad) if value in grads else grad
        self.stage = stage


def cut(builder: Builder, x: Value) -> Value:
    """x through `unpack`, if the graph has several pieces."""
    pieces = builder.graph.num_pieces
    if pieces == 1:
        return x
    piece = x.type.with_shape((x.type.shape[0] // pieces, *x.type.shape[1:]))
    return builder.structural("unpack", x, piece)


def mlp(
    placements: list[Placement],
    x_sbp: str,
    up_sbp: str,
    down_sbp: str,
    *,
    num_pieces: int = 1,
    batch: int = 16,
    width: int = 4,
) -> LogicalGraph:
    """One training step of an MLP: a block of two products per placement, mean cross entropy, SGD.

    Weights are (out, in): `up_sbp` is the layout of the (2 * width, width) ones, `down_sbp` of the
    others.
    """
    builder = Builder("Mlp", num_pieces)
    where = placements[0]
    x = builder.input("x", (batch, width), x_sbp, where)
    labels = builder.input("labels", (batch,), x_sbp, where, "int64")
    h, target = cut(builder, x), cut(builder, labels)
    params = []
    for i, where in enumerate(placements):
        if h.placement != where:
            h, target = builder.to_global(h, x_sbp, where), builder.to_global(target, x_sbp, where)
        up = builder.variable(f"up.{i}", (2 * width, width), up_sbp, where)
        down = builder.variable(f"down.{i}", (width, 2 * width), down_sbp, where)
        h = builder.call("relu", builder.call("matmul", h, up, transpose_b=True))
        h = builder.call("matmul", h, down, transpose_b=True)
        params += [up, down]
    losses, _ = builder.call("sparse_softmax_cross_entropy", h, target)
    total = builder.call("reduce_sum", losses, dims=(0,))
    loss = builder.call("scalar_mul", total, value=1.0 / losses.type.numel)
    grads = builder.backward(loss)
    for param in params:
        _update(builder, param, grads[param])
    builder.output(loss)
    return builder.graph


def _update(builder: Builder, param: Value, grad: Value) -> None:
    grad = builder.structural(GRADIENT, grad, of=param.node.attrs["name"], optimizer=0)
    whole = "B" if param.placement.ndim == 1 else "(B, B)"
    lr = builder.input("lr", (), whole, param.placement, "float64")
    builder.call("sgd_update", param, grad, lr, weight_decay=0.0, maximize=False)
