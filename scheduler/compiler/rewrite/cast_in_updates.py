"""Half floats of parameters that live from step to step: an update writes them in the same pass,
and the next step reads them instead of casting.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.dtype import dtype_of, float32
from oneflow.core.graph import GRADIENT, UPDATE, LogicalGraph, Node, Value, written_variable
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.sbp import PARTIAL
from oneflow.ops.assign import assign
from oneflow.ops.cast import cast
from oneflow.ops.update import AND_CAST, with_copy
from oneflow.scheduler.compiler.rewrite.insertion import inserting


def cast_in_updates(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Keeps a variable in half precision, `copy_of` another one, of each parameter that is cast and
    updated.
    """
    if not (config.amp and config.casts_in_updates):
        return
    updated = {str(n.attrs["of"]) for n in graph.of_kind(GRADIENT)}
    parameters = [value for name, value in graph.variables.items() if name in updated]
    copies = {v.id: copy for v in parameters if (copy := _copy(graph, v, config.amp)) is not None}
    for node in graph:
        if node.phase == UPDATE:
            for output, i in node.declared.mutates.items():
                of = written_variable(node.inputs[i]).id
                if of in copies:
                    copies[of] = _write(graph, node, output, copies[of])


def _copy(graph: LogicalGraph, parameter: Value, amp: str) -> Value | None:
    """The copy that ops read instead of a cast; None if none casts the parameter alone, as it was
    before the step.
    """
    half = dtype_of(amp)
    casts = [u for u in parameter.users if u.op == "cast" and u.attrs["dtype"] is half]
    if not casts or parameter.type.dtype is not float32 or PARTIAL in (parameter.sbp or ()):
        return None
    if any(u.overwrites(parameter) for u in parameter.users if u.phase != UPDATE):
        return None
    variable = parameter.node
    name = str(variable.attrs["name"])
    attrs = {**variable.attrs, "name": f"{name}-{amp}", "copy_of": name}
    with inserting(graph, variable) as at:
        copy = at.add("variable", [], [parameter.type.with_dtype(half)], variable.placement, attrs)
    copy.outputs[0].sbp = parameter.sbp
    for node in casts:
        graph.replace_uses(node.outputs[0], copy.outputs[0])
        graph.erase(node)
    return copy.outputs[0]


def _write(graph: LogicalGraph, node: Node, output: int, copy: Value) -> Value:
    """Let an update write a copy, too: in one op if there is one. Returns the value of the copy."""
    op = node.declared
    if op not in AND_CAST or output:
        with inserting(graph, node.next, like=node) as at:
            half = at.call(cast, node.outputs[output], dtype=copy.type.dtype)
            written: Value = at.call(assign, copy, half)
            return written
    given: list[Any] = [*node.inputs, copy]  # with_copy is typed for tensors
    form, operands = with_copy(op, tuple(given[:-1]), given[-1])
    with inserting(graph, node) as at:
        results: list[Value] = list(at.run(form, operands, node.attrs))
    for old, new in zip(node.outputs, results, strict=False):
        graph.replace_uses(old, new)
    graph.erase(node)
    return results[-1]
