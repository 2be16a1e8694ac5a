"""Dims of any size: a program traced for several sizes, and the numbers that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from oneflow.core.errors import OneFlowError
from oneflow.core.graph import Node
from oneflow.core.tensor_type import TensorType
from oneflow.graph.graph import Graph
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.nn.module import Module
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.sizes import Differs, Size, merge
from oneflow.onnx.writer.tracing import Symbol, Traced, arguments_of, example, traced
from oneflow.tensor.tensor import Tensor

Axes = Mapping[int, Mapping[int, str]]
"""Names of dynamic dims by the number of the input tensor and the dim."""


class _Asked(NamedTuple):
    """A program, its example arguments (args, kwargs), and its dynamic dims."""

    model: Module | Graph
    given: tuple[tuple[Any, ...], dict[str, Any]]
    axes: Axes


def traced_dynamic(
    model: Module | Graph, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes
) -> Traced:
    """The graph with a Size for every number that depends on a dynamic dim: traced for several
    sizes, whose traces are compared node by node.
    """
    if not args and not kwargs and isinstance(model, Graph):
        args, kwargs = arguments_of(model)
    asked = _Asked(model, (args, dict(sorted(kwargs.items()))), axes)
    tensors = tensors_of(asked.given)
    names = list(dict.fromkeys(name for dims in axes.values() for name in dims.values()))
    first: dict[str, int] = {}
    for i, dims in axes.items():
        for dim, name in dims.items():
            first.setdefault(name, max(tensors[i].meta.shape[dim], 2))
    base = _traced_for(asked, first)
    others, chosen = [], dict(first)
    for name in names:
        other, chosen[name] = _traced_other(asked, first, name, base)
        others.append(other)
    if len(names) > 1:
        others.append(_traced_for(asked, chosen))
    _merge_graphs([base, *others])
    base.inputs = _merged_inputs([base, *others])
    for i, dims in axes.items():
        for dim, name in dims.items():
            size = base.inputs[i][1].shape[dim]
            sizes = size.values if isinstance(size, Size) else (size,)
            base.symbols.append(Symbol(name, i, dim, sizes))
    return base


def _traced_for(asked: _Asked, sizes: Mapping[str, int]) -> Traced:
    count = iter(range(1 << 30))

    def resized(x: Tensor) -> Tensor:
        shape = list(x.meta.shape)
        for dim, name in asked.axes.get(next(count), {}).items():
            shape[dim] = sizes[name]
        if tuple(shape) == x.meta.shape:
            return x
        return example((x.meta.with_shape(tuple(shape)), x._placement, x._sbp))

    given = map_tensors(asked.given, resized)
    return traced(asked.model, *given)


def _traced_other(
    asked: _Asked, sizes: Mapping[str, int], name: str, base: Traced
) -> tuple[Traced, int]:
    """A trace with another size of one dynamic dim: the first of some that the program takes, and
    for which it runs the same ops. A size of 1 is none: it fits any other.
    """
    own = sizes[name]
    ops = [node.op for node in base.graph]
    failure: OneFlowError | None = None
    for other in (2 * own, own + 1, own + 2, own + 4, own + 8, own // 2, own - 1):
        if other < 2 or other == own:
            continue
        try:
            found = _traced_for(asked, {**sizes, name: other})
        except OneFlowError as error:
            failure = error
            continue
        if [node.op for node in found.graph] == ops:
            return found, other
    raise OnnxExportError(
        f"onnx.export: the dim {name!r} cannot be dynamic: the program takes no other size than "
        f"{own}, or runs other ops for it; export it with fixed sizes ({failure})"
    )


def _merge_graphs(examples: list[Traced]) -> None:
    """Put a Size into the first graph for every number that differs between the graphs."""
    chains = [list(example.graph) for example in examples]
    if len({len(chain) for chain in chains}) > 1:
        raise OnnxExportError(
            "onnx.export: the program has other ops for another size of a dynamic dim; export it "
            "with fixed sizes"
        )
    for nodes in zip(*chains, strict=True):
        _merge_nodes(nodes)


def _merge_nodes(nodes: tuple[Node, ...]) -> None:
    node = nodes[0]
    if any(n.op != node.op for n in nodes):
        raise OnnxExportError(
            f"onnx.export: for another size of a dynamic dim the program does not run "
            f"{node.describe()}; export it with fixed sizes"
        )
    try:
        node.attrs = {k: merge([n.attrs[k] for n in nodes]) for k in node.attrs}
        for i, value in enumerate(node.outputs):
            value.type = merge([n.outputs[i].type for n in nodes])
    except Differs:
        raise OnnxExportError(
            f"onnx.export: {node.describe()} has a number that depends on a dynamic dim, and is "
            "no size; export it with fixed sizes"
        ) from None


def _merged_inputs(examples: list[Traced]) -> list[tuple[str, TensorType]]:
    return [
        (inputs[0][0], merge([type_ for _, type_ in inputs]))
        for inputs in zip(*(e.inputs for e in examples), strict=True)
    ]
