"""The walk over a logical graph, and the model that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.sbp import BROADCAST
from oneflow.core.tensor_type import TensorType
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.builder import Builder, Call, onnx_dtype
from oneflow.onnx.writer.quantize import write_quantized
from oneflow.onnx.writer.rows import write_call
from oneflow.onnx.writer.sizes import Size
from oneflow.onnx.writer.tracing import Traced
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import onnx

_SAME = frozenset(
    ("to_global", "boxing", "repeat", "pack", "unpack", "seed", "gradient", "accumulate")
)
"""Kinds of nodes that change where a value lies, not the value; with one piece a step."""


def write_model(
    source: Traced,
    opset: int,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    weights: Mapping[str, object] | None = None,
) -> onnx.ModelProto:
    """The model of a traced graph. inputs, outputs: other names. weights: values of variables that
    are taken instead of those that the tensors have.
    """
    return _Writer(source, opset, inputs, outputs, weights or {}).model()


class _Writer:
    def __init__(
        self,
        source: Traced,
        opset: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        weights: Mapping[str, object],
    ) -> None:
        self.source, self.graph, self.weights = source, source.graph, weights
        if self.graph.num_pieces > 1:
            raise OnnxExportError(
                "onnx.export: the graph runs in micro-batches; export a graph without gradient "
                "accumulation"
            )
        self.input_names = _renamed([n for n, _ in source.inputs], inputs, "input_names")
        self.output_names = _renamed(source.outputs, outputs, "output_names")
        self.live = live_nodes(self.graph)
        held = [str(n.attrs["name"]) for n in self.graph.of_kind("variable")]
        shown = [name.removeprefix(source.prefix) for name in held]
        taken = frozenset((*shown, *self.input_names, *self.output_names))
        self.b = Builder(opset, sizer=self._sized, taken=taken)
        self.dims: dict[tuple[int, ...], tuple[str, int]] = {}
        """The value, by name, and the dim of it that show a Size."""

    def model(self) -> onnx.ModelProto:
        from onnx import helper

        for name, (_, type_) in zip(self.input_names, self.source.inputs, strict=True):
            self._note(name, type_)
        results: dict[int, onnx.ValueInfoProto] = {}
        for node in self.graph:
            if node.op == "output":
                results[node.attrs["index"]] = self._output(node)
            elif node in self.live:
                self._node(node)
        given = [
            self._described(name, type_)
            for name, (_, type_) in zip(self.input_names, self.source.inputs, strict=True)
        ]
        self._drop_unread()
        made = helper.make_graph(
            self.b.nodes, self.graph.name, given, [results[i] for i in sorted(results)],
            list(self.b.initializers.values()),
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.b.opset)]
        version = helper.find_min_ir_version_for(opsets)
        return helper.make_model(
            made, opset_imports=opsets, ir_version=max(version, 8), producer_name="oneflow"
        )

    # ---- values ----------------------------------------------------------------------------------

    def _note(self, name: str, type_: TensorType) -> None:
        for dim, size in enumerate(type_.shape):
            if isinstance(size, Size):
                self.dims.setdefault(size.values, (name, dim))

    def _sized(self, b: Builder, size: Size) -> str | None:
        """A Size as a dim of a value that is there, or as a number times some of these."""
        known = self.dims.get(size.values)
        if known is not None:
            name, dim = known
            return b("Gather", b("Shape", name), b.constant(np.int64(dim)), axis=0)
        for values, (name, dim) in list(self.dims.items()):
            found = _linear(size.values, values)
            if found is not None:
                factor, offset = found
                own = b("Gather", b("Shape", name), b.constant(np.int64(dim)), axis=0)
                scaled = b("Mul", own, b.constant(np.int64(factor))) if factor != 1 else own
                return b("Add", scaled, b.constant(np.int64(offset))) if offset else scaled
        return self._product(b, size)

    def _product(self, b: Builder, size: Size) -> str | None:
        """The product of two dims times a number."""
        known = list(self.dims)
        for i, left in enumerate(known):
            for right in known[i:]:
                both = tuple(x * y for x, y in zip(left, right, strict=True))
                found = _linear(size.values, both)
                if found is not None and not found[1]:
                    made = b("Mul", b.size(Size(left)), b.size(Size(right)))
                    return b("Mul", made, b.constant(np.int64(found[0]))) if found[0] != 1 else made
        return None

    def _described(self, name: str, type_: TensorType) -> onnx.ValueInfoProto:
        """The declaration of an input or output, its dynamic dims by their names."""
        from onnx import helper

        by_sizes = {symbol.sizes: symbol.name for symbol in self.source.symbols}
        shape = [
            by_sizes.get(size.values, f"{name}_dim{dim}") if isinstance(size, Size) else int(size)
            for dim, size in enumerate(type_.shape)
        ]
        return helper.make_tensor_value_info(name, onnx_dtype(type_.dtype), shape)

    # ---- nodes -----------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        names, b = self.b.names, self.b
        if node.op == "input":
            names[node.outputs[0].id] = self.input_names[int(str(node.attrs["name"]).split(".")[1])]
        elif node.op == "variable":
            names[node.outputs[0].id] = self._variable(node)
        elif node.op in _SAME:
            names[node.outputs[0].id] = names[node.inputs[0].id]
        else:
            self._call(node)
        for value in node.outputs:
            if names.get(value.id):
                self._note(names[value.id], value.type)
        b.call = None

    def _variable(self, node: Node) -> str:
        name = str(node.attrs["name"])
        shown = name.removeprefix(self.source.prefix)
        if name in self.weights:
            return self.b.constant(_array_of(self.weights[name], node.outputs[0].type, name), shown)
        if name not in self.source.variables:
            raise OnnxExportError(f"onnx.export: there is no tensor for the variable {name}")
        array = _array_of(self.source.variables[name], node.outputs[0].type, name)
        return self.b.constant(array, shown)

    def _call(self, node: Node) -> None:
        names = self.b.names
        attrs = dict(node.declared.defaults | node.attrs)
        op = str(attrs.pop("of")) if node.op in ("parts", "exchange") else node.op
        self._check_writes(node)
        where = f" ({node.location})" if node.location else ""
        call = Call(
            op, tuple(names[v.id] for v in node.inputs), attrs,
            tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs),
            tuple(any(user in self.live or user.op == "output" for user in v.users)
                  for v in node.outputs),
            where, tuple(node.inputs),
        )  # fmt: skip
        self.b.prefix = f"{node.module.removeprefix(self.source.prefix)}/" if node.module else ""
        self.b.call = call
        quantized = write_quantized(self.b, node)
        made = (quantized,) if quantized else write_call(self.b, call)
        for value, name in zip(node.outputs, made, strict=True):
            names[value.id] = name

    def _check_writes(self, node: Node) -> None:
        """Refuse an op that overwrites a variable: a model of ONNX has constants, no state."""
        for value in node.overwritten:
            root = value
            while root.node.op != "variable" and (shared := root.node.shared_input(root.index)):
                root = shared
            if root.node.op == "variable":
                name = str(root.node.attrs["name"]).removeprefix(self.source.prefix)
                where = f" ({node.location})" if node.location else ""
                raise OnnxExportError(
                    f"onnx.export: {node.op} overwrites {name}, and a model in ONNX keeps no state "
                    f"between its runs; call model.eval() before, or return the new value{where}"
                )

    def _output(self, node: Node) -> onnx.ValueInfoProto:
        from onnx import helper

        value = node.inputs[0]
        name = self.output_names[node.attrs["index"]]
        self.b.nodes.append(
            helper.make_node("Identity", [self.b.names[value.id]], [name], name=f"output/{name}")
        )
        return self._described(name, value.type)

    def _drop_unread(self) -> None:
        """Take out nodes and constants that nothing reads, as parts of a fused pattern are."""
        read = set(self.output_names)
        kept = []
        for node in reversed(self.b.nodes):
            if read.intersection(node.output):
                kept.append(node)
                read.update(node.input)
        self.b.nodes = kept[::-1]
        self.b.initializers = {n: t for n, t in self.b.initializers.items() if n in read}


def live_nodes(graph: LogicalGraph) -> set[Node]:
    """Nodes that results depend on, and those that write something."""
    live: set[Node] = set()
    for node in reversed(list(graph)):
        is_read = any(user in live for value in node.outputs for user in value.users)
        if node.op == "output" or is_read or (not node.is_structural and node.has_effect):
            live.add(node)
    return live


def _linear(wanted: tuple[int, ...], known: tuple[int, ...]) -> tuple[int, int] | None:
    """(factor, offset), both whole, with wanted = factor * known + offset in all traces."""
    if len(wanted) != len(known):
        return None
    other = next((i for i, k in enumerate(known) if k != known[0]), None)
    if other is None:
        return None
    factor, rest = divmod(wanted[other] - wanted[0], known[other] - known[0])
    offset = wanted[0] - factor * known[0]
    if (
        rest
        or not factor
        or any(w != factor * k + offset for w, k in zip(wanted, known, strict=True))
    ):
        return None
    return factor, offset


def _renamed(own: Sequence[str], given: Sequence[str], what: str) -> list[str]:
    if len(given) > len(own):
        raise OnnxExportError(
            f"onnx.export: {len(given)} {what}, but there are {len(own)}: {', '.join(own)}"
        )
    names = [*given, *own[len(given) :]]
    if len(set(names)) < len(names):
        raise OnnxExportError(f"onnx.export: {what} are not all different: {', '.join(names)}")
    return names


def _array_of(x: object, type_: TensorType, name: str) -> np.ndarray[Any, Any]:
    """The values of a variable; of a global tensor all ranks ask for them."""
    if isinstance(x, Tensor):
        if x._placement is not None:
            x = x.to_global(sbp=[BROADCAST] * x._placement.ndim).to_local()
        x = x.detach().cpu()._array
    array: np.ndarray[Any, Any] = np.asarray(x)
    if array.shape != tuple(type_.shape) or array.dtype != type_.dtype.np:
        raise OnnxExportError(
            f"onnx.export: the weight {name} is {array.dtype}{list(array.shape)}, but the graph "
            f"has {type_}"
        )
    return array


def nbytes_of(model: onnx.ModelProto) -> int:
    """The bytes of all weights."""
    return sum(len(t.raw_data) for t in model.graph.initializer)
