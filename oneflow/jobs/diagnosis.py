"""The diagnosis of a number that is not finite: a step run again, op by op, on rank 0, until a
result is not finite.

The traced graph has the step's meaning without layouts, so one rank can run it whole, on the rows
of the batch and on the variables as they were before the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oneflow.core.dispatch import call
from oneflow.core.draws import Randomness
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.op import find_op
from oneflow.kernels.array import Array
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap


def first_nonfinite(
    graph: LogicalGraph,
    feeds: Mapping[str, Array],
    variables: Mapping[str, Array],
    randomness: Randomness,
    names: Mapping[str, str],
) -> str:
    """Name the op that gave the first result that is not finite, with module and line; "" if
    nothing did.

    feeds: whole inputs by name.  variables: whole, as before the step; they are not changed.
    randomness: the generators before the step.  names: the user's names of inputs, by name.
    """
    for piece in range(graph.num_pieces):
        found = _run(graph, feeds, variables, randomness, piece, names)
        if found:
            is_whole = graph.num_pieces == 1 or found.startswith(("input ", "variable "))
            return found if is_whole else f"{found}, in micro-batch {piece} of {graph.num_pieces}"
    return ""


def _run(
    graph: LogicalGraph,
    feeds: Mapping[str, Array],
    variables: Mapping[str, Array],
    randomness: Randomness,
    piece: int,
    names: Mapping[str, str],
) -> str:
    values: dict[int, Tensor] = {}
    with no_grad(), np.errstate(all="ignore"):
        for node in graph:
            ins = [values[v.id] for v in node.inputs]
            if node.op == "input":
                made: Any = wrap(np.array(feeds[node.attrs["name"]]))
            elif node.op == "variable":
                made = wrap(np.array(variables[node.attrs["name"]]))
            elif node.is_structural:
                if node.op == "output":
                    continue
                made = _part(node, ins[0], piece, graph.num_pieces)
            else:
                made = call(
                    find_op(node.op), *ins, **_attrs(node, randomness, piece, graph.num_pieces)
                )
            listed = made if isinstance(made, tuple) else (made,)
            for value, x in zip(node.outputs, listed, strict=True):
                values[value.id] = x
                if not _is_finite(x):
                    return _describe(node, ins, x, names)
    return ""


def _attrs(node: Node, randomness: Randomness, piece: int, num_pieces: int) -> dict[str, Any]:
    """A random op has other numbers in each step and micro-batch."""
    if find_op(node.op).is_random:
        seed = randomness.seed(int(node.attrs["seed"]), piece, num_pieces)
        return {**node.attrs, "seed": seed}
    return node.attrs


def _part(node: Node, x: Tensor, piece: int, num_pieces: int) -> Tensor:
    """A structural node: its input, or the piece of it that is run."""
    if node.op != "unpack":
        return x
    rows = x.meta.shape[0] // num_pieces
    return wrap(np.array(x._array[piece * rows : (piece + 1) * rows]))


def _is_finite(x: Tensor) -> bool:
    array = x._array
    if array.dtype.kind not in "fc" and array.dtype.name != "bfloat16":
        return True
    return bool(np.isfinite(array).all())


def _describe(node: Node, ins: list[Tensor], made: Tensor, names: Mapping[str, str]) -> str:
    """Goes on after "it comes from"."""
    if node.op in ("input", "variable"):
        name = str(node.attrs["name"])
        return f"{node.op} {names.get(name, name)}, which {_held(node.op, made._array)}"
    where = f" in module {node.module}" if node.module else ""
    taken = ", ".join(_range(x) for x in ins)
    return f"{node.describe()}{where}, of {taken}"


def _held(op: str, array: Array) -> str:
    odd = np.argwhere(~np.isfinite(array))
    count = f"{len(odd)} of {array.size} numbers not finite before the step"
    if op == "input" and array.ndim:
        return f"had {count}, the first in row {odd[0][0]} of the batch"
    return f"had {count}"


def _range(x: Tensor) -> str:
    array = x._array
    if not array.size or array.dtype.kind not in "fiu":
        return str(x.meta)
    return f"{x.meta} from {float(array.min()):.6g} to {float(array.max()):.6g}"
