"""The text of `print(graph)` and `graph.debug()`: modules, their tensors and the ops of each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.graph.tree import Tree, flatten
from oneflow.scheduler.compiler.passes import PASSES
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.core.plan import Plan
    from oneflow.graph.compiling import Compiled
    from oneflow.graph.spec import GraphSpec
    from oneflow.nn.module import Module

NOT_SHOWN = frozenset({"input", "variable", "output"})
"""Nodes that stand in their own lines: as inputs, parameters, buffers, outputs."""


def describe(spec: GraphSpec, *, with_ops: bool = True) -> str:
    """The graph as nested lines. Ops are there once it is compiled, with the SBP they run with."""
    return _Description(spec, with_ops).text()


def describe_module(spec: GraphSpec, path: str, module: Module, *, with_ops: bool) -> str:
    """One module of the graph, as in `describe`."""
    return _Description(spec, with_ops).text_of(path, module)


def input_names(graph_name: str, args: Tree, kwargs: Tree) -> list[str]:
    """A name for each input tensor, made of its place among the arguments."""
    leaves = [path for path, leaf in flatten((args, kwargs)) if isinstance(leaf, Tensor)]
    return [f"_{graph_name}_input{path}_{i + 2}" for i, path in enumerate(leaves)]


def passes_done(plan: Plan) -> list[str]:
    """A phrase for each of the compiler's passes that has changed how much there is."""
    found = [f"traced {plan.sizes[0]} nodes"] if plan.sizes else []
    for name, before, after in zip(PASSES, plan.sizes, plan.sizes[1:], strict=False):
        if before != after:
            found.append(f"{name} {before} -> {after}")
    found.append(f"group_segments {len(plan.actors)} actors")
    return [*found, f"connect {len(plan.registers)} registers"]


def tensor_text(
    type_: TensorType,
    placement: Placement | None,
    sbp: NdSbp | None,
    *,
    requires_grad: bool = False,
) -> str:
    """`tensor(..., size=(4, 8), dtype=oneflow.float32)`, with placement and sbp if it is global."""
    where = f"placement={placement!r}, sbp={_tuple(sbp or ())}, " if placement else ""
    grad = ", requires_grad=True" if requires_grad else ""
    return f"tensor(..., {where}size={type_.shape}, dtype={type_.dtype!r}{grad})"


class _Description:
    def __init__(self, spec: GraphSpec, with_ops: bool) -> None:
        self._spec = spec
        self._ops: dict[str, list[str]] = {}
        self._lines: list[str] = []
        self._values: dict[int, str] = {}
        self._compiled = spec.plans.now
        if with_ops and self._compiled is not None:
            self._collect(self._compiled, self._compiled.job.bound.plan.graph)

    def text(self) -> str:
        spec = self._spec
        self._open(0, f"(GRAPH:{spec.name}:{spec.name.rpartition('_')[0]}): (")
        self._open(1, repr(spec.config))
        compiled = self._compiled
        if compiled is not None:
            self._open(1, f"(PASSES:{', '.join(passes_done(compiled.job.bound.plan))})")
            for name, meta in zip(compiled.input_names, compiled.arguments.metas, strict=True):
                self._open(1, f"(INPUT:{name}:{tensor_text(*meta)})")
        for path, module in spec.modules.items():
            self._module(1, path, module)
        for lines in self._ops.values():  # of no module, or of one that is not the graph's own
            for line in lines:
                self._open(1, line)
        if compiled is not None:
            self._outputs(compiled)
        self._open(0, ")")
        return "\n".join(self._lines)

    def text_of(self, path: str, module: Module) -> str:
        self._module(0, path, module)
        return "\n".join(self._lines)

    def _open(self, depth: int, line: str) -> None:
        self._lines.append("  " * depth + line)

    # ---- modules ---------------------------------------------------------------------------------

    def _module(self, depth: int, path: str, module: Module) -> None:
        begin = len(self._lines)
        self._open(depth, f"(MODULE:{path}:{type(module).__name__}({module.extra_repr()})): (")
        for kind, tensors in (("PARAMETER", module._parameters), ("BUFFER", module._buffers)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    self._open(depth + 1, f"({kind}:{path}.{name}:{_eager_text(tensor)}): ()")
        for name, child in module._modules.items():
            if child is not None:
                self._module(depth + 1, f"{path}.{name}", child)
        for line in self._ops.pop(path, ()):
            self._open(depth + 1, line)
        stage = self._spec.stages.get(id(module))
        if stage is not None:
            self._open(depth + 1, f"(GraphModule:{path}(stage_id={stage.id})): ()")
        if len(self._lines) == begin + 1:
            self._lines[begin] += ")"
        else:
            self._open(depth, ")")

    def _outputs(self, compiled: Compiled) -> None:
        leaves = flatten(((compiled.outputs,),))
        tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]
        for i, (path, leaf) in enumerate(tensors):
            value = compiled.output_values[i]
            where = (value.placement, value.sbp) if leaf._placement is not None else (None, None)
            text = tensor_text(value.type, *where)
            self._open(1, f"(OUTPUT:_{self._spec.name}_output{path}_{i + 2}:{text})")

    # ---- ops -------------------------------------------------------------------------------------

    def _collect(self, compiled: Compiled, graph: LogicalGraph) -> None:
        """Names every value and writes a line for every op, by its module."""
        numbers: Counter[tuple[str, str]] = Counter()
        for node in graph:
            if node.op in NOT_SHOWN:
                self._name_ends(node, compiled.input_names)
                continue
            key = node.module, node.op
            name = f"{node.module}-{node.op}-{numbers[key]}".lstrip("-")
            numbers[key] += 1
            for k, value in enumerate(node.outputs):
                self._values[value.id] = f"{name}/out_{k}"
            self._ops.setdefault(node.module, []).append(self._line(name, node))

    def _name_ends(self, node: Node, names: list[str]) -> None:
        if not node.outputs:
            return
        name = str(node.attrs["name"])
        index = name.removeprefix("input.")
        if node.op == "input" and index.isdigit() and int(index) < len(names):
            name = names[int(index)]
        self._values[node.outputs[0].id] = name

    def _line(self, name: str, node: Node) -> str:
        ins = ", ".join(map(self._value, node.inputs))
        outs = ", ".join(map(self._value, node.outputs))
        where = f", at {node.location}" if node.location else ""
        return f"(OPERATOR: {name}({ins}) -> ({outs}), placement=({node.placement!r}){where})"

    def _value(self, value: Value) -> str:
        sbp = ", ".join(map(str, value.sbp or ()))
        name = self._values.get(value.id, f"%{value.id}")
        return f"{name}:(sbp=({sbp}), size={value.type.shape}, dtype=({value.type.dtype!r}))"


def _eager_text(x: Tensor) -> str:
    return tensor_text(x.meta, x._placement, x._sbp, requires_grad=x.requires_grad)


def _tuple(items: NdSbp) -> str:
    return repr(tuple(items))
