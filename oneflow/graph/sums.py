"""Ops of a graph that overwrite what lies otherwise than they can work on it: partial sums, or
copies of which each rank is to overwrite a part.

What is a sum cannot be overwritten summand by summand. As eagerly it is added up, overwritten as a
whole, and written back as summands, so that it stays where it lies. Copies are cut, and gathered
again.

A part is cut when its gradient is there, in the memory that the op overwrites; and every so often
when what was gathered before has been written back, so that few gathered parameters lie in memory
at a time, which share it (scheduler/compiler/share_registers.py).
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
from oneflow.ops.depend import depend
from oneflow.ops.unary import copy

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace
    from oneflow.tensor.tensor import Tensor


class Gathers:
    """The updated parameters of a stage that are gathered in one go: of at most an eighth of
    all bytes, or one parameter.
    """

    def __init__(self, total_nbytes: int = 0) -> None:
        self.limit = total_nbytes / 8
        self.last: Tensor | None = None
        """The parameter that was written back last."""
        self._nbytes = 0
        self._before: Tensor | None = None

    def before(self, nbytes: int) -> Tensor | None:
        """The parameter that has to be written back before one of `nbytes` is cut; None: none."""
        if self._nbytes and self._nbytes + nbytes > self.limit:
            self._before, self._nbytes = self.last, 0
        self._nbytes += nbytes
        return self._before


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
        whole = inputs[i]
        if PARTIAL not in (written_variable(value).sbp or ()):
            moved[1] = trace.fix_layout(moved[1], value.placement, nd_sbp)
            before = trace.gathers_of(value).before(value.type.nbytes)
            whole = depend(whole, moved[1] if before is None else before)
        moved[i] = copy(trace.fix_layout(whole, value.placement, nd_sbp))
    outputs = call(op, *moved, **attrs)
    listed = list(outputs) if isinstance(outputs, tuple) else [outputs]
    with trace.writing_if(None), trace.writing_parts(False):
        for output, i in op.mutates.items():
            if i in layouts:
                value = written_variable(trace.value_of(inputs[i]))
                back = trace.fix_layout(moved[i], value.placement, value.sbp)
                listed[output] = assign(inputs[i], back)
                trace.gathers_of(value).last = listed[output]
    return tuple(listed) if isinstance(outputs, tuple) else listed[0]
