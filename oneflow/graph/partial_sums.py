"""Ops of a graph that overwrite partial sums, which they cannot do summand by summand. As eagerly
such a sum is added up, overwritten as a whole, and written back as summands, so that it stays where
it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.dispatch import call
from oneflow.core.graph import Value, written_variable
from oneflow.core.op import Op, signatures
from oneflow.core.operand import Attrs
from oneflow.core.sbp import PARTIAL, NdSbp, all_broadcast
from oneflow.ops.assign import assign
from oneflow.ops.unary import copy

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace
    from oneflow.tensor.tensor import Tensor


def sums_written(op: type[Op], values: Sequence[Value], attrs: Attrs) -> dict[int, NdSbp]:
    """Inputs that the op overwrites, known to be partial sums, which it cannot take as they are;
    and the one layout that every op can take.
    """
    found = [i for i in op.mutates.values() if PARTIAL in (written_variable(values[i]).sbp or ())]
    if not found:
        return {}
    listed = signatures(op, tuple(v.type for v in values), attrs)
    sums = [i for i in found if not any(s.inputs[i] is PARTIAL for s in listed)]
    return {i: all_broadcast(values[i].placement.ndim) for i in sums}


def write_moved(
    trace: Trace,
    op: type[Op],
    inputs: tuple[Tensor, ...],
    attrs: Attrs,
    layouts: Mapping[int, NdSbp],
) -> Any:
    """Records the op with some inputs in other layouts, and that they are written back."""
    moved = list(inputs)
    for i, nd_sbp in layouts.items():
        value = trace.value_of(inputs[i])
        moved[i] = copy(trace.fix_layout(inputs[i], value.placement, nd_sbp))
    outputs = call(op, *moved, **attrs)
    listed = list(outputs) if isinstance(outputs, tuple) else [outputs]
    with trace.writing_back():
        for output, i in op.mutates.items():
            if i in layouts:
                value = written_variable(trace.value_of(inputs[i]))
                back = trace.fix_layout(moved[i], value.placement, value.sbp)
                listed[output] = assign(inputs[i], back)
    return tuple(listed) if isinstance(outputs, tuple) else listed[0]
