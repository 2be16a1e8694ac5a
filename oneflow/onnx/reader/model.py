"""`flow.onnx.load`: an ONNX model as a module.

Weights are parameters, other constants buffers, under the names that they have in the model.
Shapes, and values computed of them and of constants alone, are numbers known while a program is
traced: nodes of these are run by the reference implementation of the `onnx` package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.functional.from_data import tensor
from oneflow.io.files import AnyPath
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.onnx.errors import OnnxImportError
from oneflow.onnx.reader import elementwise, products, recurrent, reductions, shapes  # noqa: F401
from oneflow.onnx.reader.step import OPERATORS, Array, Step, Value
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import onnx

LARGEST_KNOWN = 4096
"""Integer constants of at most this number of elements may be shapes and axes."""
BLOCKS = ("If",)
"""Operators that hold graphs."""
FIXED = ("Range", "ConstantOfShape", "EyeLike")
"""Operators that run on known numbers alone."""


def load(source: AnyPath | bytes | onnx.ModelProto) -> OnnxModule:
    """Read an ONNX model as a module, which runs eagerly and in graphs, and can be trained.

    Args:
        source: A file, its bytes, or a model of the `onnx` package.

    Returns:
        A module that is called with the model's inputs, in order or by name. It returns a tensor,
        or a tuple of them where the model has several outputs.

    Raises:
        OnnxImportError: For a node that cannot be run here, by its name, and for
            data that are no ONNX model.
        OSError: If the file cannot be opened.

    Example:
        >>> import oneflow as flow
        >>> made = flow.onnx.export(flow.nn.Linear(4, 2), flow.zeros(3, 4))
        >>> flow.onnx.load(made)(flow.zeros(5, 4)).shape
        oneflow.Size([5, 2])
    """
    try:
        import onnx
        from onnx import inliner
    except ImportError:
        raise OnnxImportError(
            "flow.onnx needs the package onnx: pip install 'oneflow-actors[onnx]'"
        ) from None
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        model = _parsed(source)
    if len(model.functions):
        model = inliner.inline_local_functions(model)
    return OnnxModule(model)


def _parsed(source: AnyPath | bytes) -> onnx.ModelProto:
    import onnx

    try:
        where = "the bytes" if isinstance(source, bytes) else os.fspath(source)
    except TypeError:
        raise OnnxImportError(f"onnx.load: a file or its bytes, not {source!r:.80}") from None
    try:
        if isinstance(source, bytes):
            model = onnx.load_from_string(source)
        else:
            model = onnx.load(where)
    except OSError:
        raise
    except Exception as error:  # of protobuf, or of onnx for weights beside the file
        raise OnnxImportError(f"onnx.load: {where} cannot be read: {error}") from error
    if not model.graph.output:
        raise OnnxImportError(f"onnx.load: {where} is no ONNX model: its graph has no output")
    return model


class OnnxModule(Module):
    """The module of a model; see `load`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        self._opset = next((o.version for o in model.opset_import if not o.domain), 1)
        self._known: dict[str, Array] = {}
        self._held: dict[str, tuple[Module, str]] = {}
        self._references: dict[int, Any] = {}
        _check_nodes(graph.node)
        statistics = {n for node in graph.node if node.op_type == "BatchNormalization"
                      for n in list(node.input)[3:5]}  # fmt: skip
        for initializer in graph.initializer:
            self._hold(initializer, initializer.name in statistics)
        self._inputs = [i.name for i in graph.input if i.name not in self._held]
        self._outputs = [o.name for o in graph.output]
        self._nodes = list(graph.node)
        self._ends = _last_uses(self._nodes, self._outputs)

    def _hold(self, initializer: onnx.TensorProto, is_statistic: bool) -> None:
        """Keep a constant as a parameter or buffer of the module that its name leads to."""
        array = _array_of(initializer)
        is_float = array.dtype.kind not in "iub"
        if (not is_float and array.size <= LARGEST_KNOWN) or array.size <= 64:
            self._known[initializer.name] = array
        holder, name = _place(self, initializer.name)
        if is_float and array.ndim and not is_statistic:
            holder.register_parameter(name, Parameter(tensor(array)))
        else:
            holder.register_buffer(name, tensor(array))
        self._held[initializer.name] = holder, name

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Run the nodes in order."""
        if len(args) > len(self._inputs) or not kwargs.keys() <= set(self._inputs[len(args) :]):
            raise OnnxImportError(f"the model takes {', '.join(self._inputs) or 'no inputs'}")
        values: dict[str, Value] = dict(zip(self._inputs, args, strict=False)) | kwargs
        missing = [name for name in self._inputs if name not in values]
        if missing:
            raise OnnxImportError(f"the model needs the inputs {', '.join(missing)}")
        like = next((v for v in values.values() if isinstance(v, Tensor)), None)
        self._run(self._nodes, values, like, self._ends)
        made = tuple(self._tensor(name, values, like) for name in self._outputs)
        return made[0] if len(made) == 1 else made

    def _tensor(self, name: str, values: Mapping[str, Value], like: Tensor | None) -> Tensor:
        value = self._value(name, values)
        if isinstance(value, Tensor):
            return value
        made: Tensor = tensor(value) if like is None else tensor(value, device=like.device)
        return made

    def _run(
        self,
        nodes: Iterable[onnx.NodeProto],
        values: dict[str, Value],
        like: Tensor | None,
        ends: Mapping[str, int],
    ) -> None:
        for number, node in enumerate(nodes):
            made = self._node(node, values, like)
            for name, value in zip(node.output, made, strict=False):
                if name:
                    values[name] = value
            for name in node.input:
                if ends.get(name) == number:
                    values.pop(name, None)

    def _value(self, name: str, values: Mapping[str, Value]) -> Value:
        """A value computed before, or a weight."""
        if name in values:
            return values[name]
        if name in self._held:
            holder, own = self._held[name]
            held: Tensor = getattr(holder, own)
            return held
        raise OnnxImportError(f"onnx.load: nothing gives the value {name!r}")

    def _numbers(self, name: str, values: Mapping[str, Value]) -> Array | None:
        """The numbers of a value that are known."""
        value = values.get(name)
        if value is None:
            return self._known.get(name)
        return value if isinstance(value, np.ndarray) else None

    def _node(
        self, node: onnx.NodeProto, values: dict[str, Value], like: Tensor | None
    ) -> tuple[Value, ...]:
        from onnx import helper

        numbers = [self._numbers(name, values) if name else None for name in node.input]
        if node.op_type == "Constant" or self._is_fixed(node, numbers, values):
            return self._evaluated(node, numbers)
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = [self._value(name, values) if name else None for name in node.input]
        step = Step(node, attrs, inputs, numbers, self._opset, like)
        if node.op_type in BLOCKS:
            return self._branch(step, values, like)
        if node.op_type in FIXED:
            raise step.refuse("needs its inputs as constants, and they are computed")
        made = OPERATORS[node.op_type](step)
        return made if isinstance(made, tuple) else (made,)

    def _is_fixed(
        self, node: onnx.NodeProto, numbers: list[Array | None], values: Mapping[str, Value]
    ) -> bool:
        """Whether a node is computed of known numbers alone; weights may change, and are none."""
        if node.op_type in BLOCKS or not node.input:
            return False
        return all(
            not name or (number is not None and (name in values or number.dtype.kind in "iub"))
            for name, number in zip(node.input, numbers, strict=True)
        )

    def _evaluated(self, node: onnx.NodeProto, numbers: list[Array | None]) -> tuple[Value, ...]:
        """The results of a node of known numbers, by the reference implementation."""
        from onnx.reference import ReferenceEvaluator

        run = self._references.get(id(node))
        if run is None:
            run = ReferenceEvaluator(node, opsets={"": self._opset})
            self._references[id(node)] = run
        feeds = {n: v for n, v in zip(node.input, numbers, strict=True) if n}
        return tuple(np.asarray(made) for made in run.run(None, feeds))

    def _branch(
        self, step: Step, values: dict[str, Value], like: Tensor | None
    ) -> tuple[Value, ...]:
        """The results of the branch that a known condition takes."""
        branch = step.get("then_branch" if step.known(0).reshape(()) else "else_branch")
        inner = dict(values)
        for initializer in branch.initializer:
            inner[initializer.name] = _array_of(initializer)
        self._run(branch.node, inner, like, {})
        return tuple(self._value(output.name, inner) for output in branch.output)


def _array_of(initializer: onnx.TensorProto) -> Array:
    from onnx import numpy_helper

    return np.array(numpy_helper.to_array(initializer))


def _check_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Refuse operators that nothing here runs, before any is run."""
    for node in nodes:
        known = node.op_type in OPERATORS or node.op_type in (*BLOCKS, "Constant", *FIXED)
        if node.domain not in ("", "ai.onnx") or not known:
            name = node.name or ", ".join(node.output)
            raise OnnxImportError(
                f"onnx.load: the operator {node.domain + '.' * bool(node.domain)}{node.op_type} of "
                f"node {name!r} has no counterpart here"
            )
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_nodes(attribute.g.node)


def _place(module: Module, name: str) -> tuple[Module, str]:
    """The module that holds a weight, made where it is not there, and the weight's name in it."""
    *way, own = [re.sub(r"[^\w-]", "_", part) or "_" for part in name.split(".")]
    for part in way:
        child = module._modules.get(part)
        if child is None:
            if hasattr(module, part):  # a weight, or a method of modules
                part = f"{part}_"
            child = module._modules.get(part) or Module()
            module.add_module(part, child)
        module = child
    while hasattr(module, own):
        own = f"{own}_"
    return module, own


def _last_uses(nodes: list[onnx.NodeProto], outputs: Iterable[str]) -> dict[str, int]:
    """The number of the last node that reads each value, but for the model's outputs."""
    last = {name: number for number, node in enumerate(nodes) for name in node.input}
    inner = (b.g.node for node in nodes for b in node.attribute if b.HasField("g"))
    for name in (*outputs, *(n for branch in inner for node in branch for n in node.input)):
        last.pop(name, None)
    return last
