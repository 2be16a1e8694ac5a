"""Ops of a graph that overwrite partial sums: an optimizer's update of a parameter that is P, say.

What is a sum cannot be overwritten summand by summand. As eagerly it is added up, overwritten as a
whole, and written back as summands, so that it stays where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.dispatch import call
from oneflow.core.graph import Value, written_variable
from oneflow.core.op import Op, signatures
from oneflow.core.operand import Attrs
from oneflow.core.sbp import PARTIAL, all_broadcast
from oneflow.ops.assign import assign
from oneflow.ops.unary import copy

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace
    from oneflow.tensor.tensor import Tensor


def sums_written(op: type[Op], values: Sequence[Value], attrs: Attrs) -> list[int]:
    """Inputs that the op overwrites, known to be partial sums, which it cannot take as they are."""
    found = [i for i in op.mutates.values() if PARTIAL in (written_variable(values[i]).sbp or ())]
    if not found:
        return []
    listed = signatures(op, tuple(v.type for v in values), attrs)
    return [i for i in found if not any(s.inputs[i] is PARTIAL for s in listed)]


def write_sums(
    trace: Trace,
    op: type[Op],
    inputs: tuple[Tensor, ...],
    attrs: Attrs,
    sums: Sequence[int],
) -> Any:
    """Records the op with its inputs `sums` added up, and that they are written back."""
    added = list(inputs)
    for i in sums:
        value = trace.value_of(inputs[i])
        whole = all_broadcast(value.placement.ndim)  # the one layout that every op can take
        added[i] = copy(trace.fix_layout(inputs[i], value.placement, whole))
    outputs = call(op, *added, **attrs)
    listed = list(outputs) if isinstance(outputs, tuple) else [outputs]
    for output, i in op.mutates.items():
        if i in sums:
            value = written_variable(trace.value_of(inputs[i]))
            parts = trace.fix_layout(added[i], value.placement, value.sbp)
            listed[output] = assign(inputs[i], parts)
    return tuple(listed) if isinstance(outputs, tuple) else listed[0]
