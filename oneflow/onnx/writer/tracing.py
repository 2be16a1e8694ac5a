"""The logical graph to write: of a graph that is compiled, or traced for it; and of a module.

A compiled graph is written as its plan has it, whose values are whole tensors, however ranks
share them: layouts, boxing and parts of shards are left out, so a graph of many ranks gives the
model of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from oneflow.core.graph import LogicalGraph
from oneflow.core.tensor_type import TensorType
from oneflow.functional.creation import zeros
from oneflow.graph.arguments import Meta
from oneflow.graph.choosing import trace_chosen
from oneflow.graph.graph import Graph
from oneflow.graph.spec import spec_of
from oneflow.graph.trace import Trace
from oneflow.graph.tree import Tree, flatten
from oneflow.nn.module import Module
from oneflow.onnx.errors import OnnxExportError
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

HELD = "model"
"""The name under which the graph made for a module has the module."""


@dataclass(frozen=True)
class Symbol:
    """A dynamic dim. name: of the dim.  input: number of the tensor.  sizes: in each trace."""

    name: str
    input: int
    dim: int
    sizes: tuple[int, ...] = ()


@dataclass
class Traced:
    """A logical graph with the names that its caller needs.

    inputs: names and types of the input tensors.  outputs: names of the results, in order.
    variables: tensors by name.  prefix: of the names of variables, to be left out.
    """

    graph: LogicalGraph
    inputs: list[tuple[str, TensorType]]
    outputs: list[str]
    variables: Mapping[str, Tensor]
    prefix: str = ""
    symbols: list[Symbol] = field(default_factory=list)


class _OfModule(Graph):
    """The graph whose `build` calls a module."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.model = module

    def build(self, *args: object, **kwargs: object) -> Any:
        with no_grad():
            return self.model(*args, **kwargs)


_exporting = 0


def is_in_onnx_export() -> bool:
    """Whether a model is being exported, which code of models may ask to take another way."""
    return _exporting > 0


@contextmanager
def exporting() -> Iterator[None]:
    """`is_in_onnx_export()` says True within."""
    global _exporting
    _exporting += 1
    try:
        yield
    finally:
        _exporting -= 1


class TrainingMode(IntEnum):
    """The mode of a module while it is exported, in PyTorch's words."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


@contextmanager
def evaluating(model: object, training: int) -> Iterator[None]:
    """A module's modes within are those of evaluation, unless it is to be exported in training."""
    if not isinstance(model, Module) or training == TrainingMode.PRESERVE:
        yield
        return
    modes = [(m, m.training) for m in model.modules()]
    model.train(training == TrainingMode.TRAINING)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def traced(model: Module | Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """The logical graph of a module, or of a graph; without arguments of one that is compiled."""
    if isinstance(model, Module):
        if not args and not kwargs:
            raise OnnxExportError("onnx.export of a module needs args: examples of its arguments")
        return _trace(_OfModule(model), args, kwargs, model.forward, f"{HELD}.")
    if not isinstance(model, Graph):
        kind = type(model).__name__
        raise OnnxExportError(f"onnx.export takes an nn.Module or an nn.Graph, got {kind}")
    if args or kwargs:
        return _trace(model, args, kwargs, model.build, "")
    return _known(model)


def _known(graph: Graph) -> Traced:
    """A graph that is compiled, or at least traced, already."""
    spec = spec_of(graph)
    compiled, built = spec.plans.now, spec.plans.built
    if compiled is not None:
        arguments = compiled.arguments
        inputs = [
            (name, meta[0])
            for name, meta in zip(
                _names(graph.build, arguments.paths), arguments.metas, strict=True
            )
        ]
        names = _output_names(compiled.outputs)
        plan = compiled.job.bound.plan
        return Traced(plan.graph, inputs, names, compiled.variables)
    if built is not None:
        return _as_traced(built.trace, built.outputs, built.given, graph.build, "")
    raise OnnxExportError(
        f"onnx.export: graph {graph.name} was never called; call it, or give args: examples of the "
        "arguments of build()"
    )


def _trace(
    graph: Graph,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    called: Callable[..., object],
    prefix: str,
) -> Traced:
    given = args, dict(sorted(kwargs.items()))
    trace, outputs = trace_chosen(spec_of(graph), graph.build, given)
    return _as_traced(trace, outputs, given, called, prefix)


def _as_traced(
    trace: Trace, outputs: Tree, given: Tree, called: Callable[..., object], prefix: str
) -> Traced:
    leaves = [(path, x) for path, x in flatten(given) if isinstance(x, Tensor)]
    names = _names(called, [path for path, _ in leaves])
    inputs = [(name, x.meta) for name, (_, x) in zip(names, leaves, strict=True)]
    return Traced(trace.graph, inputs, _output_names(outputs), trace.variables, prefix)


# ---- names ---------------------------------------------------------------------------------------


def _names(called: Callable[..., object], paths: Sequence[str]) -> list[str]:
    """Names of input tensors: the parameters' of the callable, and places within those."""
    parameters = inspect.signature(called).parameters.values()
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    found = []
    for path in paths:
        _, side, first, *rest = path.split(".")
        if side == "0":
            place = int(first)
            first = positional[place] if place < len(positional) else f"input.{place}"
        found.append(".".join((first, *rest)))
    return found


def _output_names(outputs: Tree) -> list[str]:
    """Names of results: keys of a dict, else their number."""
    leaves = [path[1:] for path, leaf in flatten(outputs) if isinstance(leaf, Tensor)]
    if leaves == [""]:
        return ["output"]
    return [path if not path.isdigit() else f"output.{path}" for path in leaves]


def arguments_of(graph: Graph) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Zeros in the place of the arguments that a graph was compiled for."""
    compiled = spec_of(graph).plans.now
    if compiled is None:
        built = spec_of(graph).plans.built
        if built is None:
            raise OnnxExportError(f"onnx.export: graph {graph.name} was never called")
        return built.given
    arguments = compiled.arguments
    tree: dict[str, Any] = {}
    metas = dict(zip(arguments.paths, arguments.metas, strict=True))
    for path, leaf in {**arguments.constants, **metas}.items():
        *way, last = path.split(".")[1:]
        at = tree
        for key in way:
            at = at.setdefault(key, {})
        at[last] = example(leaf) if path in metas else leaf
    args = _listed(tree.get("0", {}))
    kwargs = {key: _listed(value) for key, value in tree.get("1", {}).items()}
    return tuple(args) if isinstance(args, list) else (), kwargs


def example(meta: Meta) -> Tensor:
    type_, placement, sbp = meta
    made: Tensor = zeros(*type_.shape, dtype=type_.dtype, placement=placement, sbp=sbp)
    return made


def _listed(tree: Tree) -> Any:
    """Dicts whose keys are 0, 1, ... as lists."""
    if not isinstance(tree, dict):
        return tree
    if tree and all(key.isdigit() for key in tree):
        return [_listed(tree[key]) for key in sorted(tree, key=int)]
    return {key: _listed(value) for key, value in tree.items()}
