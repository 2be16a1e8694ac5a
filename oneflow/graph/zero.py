"""ZeRO as a rule on layouts: what the ranks of a parameter would hold as copies is split over them.

    stage 1   the optimizer's states
    stage 2   and the gradients, as soon as they are made, so that sums over micro-batches are parts
    stage 3   and the parameters themselves, which are gathered where an op reads them

Everything else follows: an update whose states are split runs on the parts of the parameter, and in
stages 1 and 2 the new parts are gathered into its copies; a gradient that is wanted in parts is
reduced and scattered in one exchange.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.core.graph import Value
from oneflow.core.sbp import BROADCAST, NdSbp, Sbp, Split
from oneflow.graph.laying_out import may_lay_out
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph


PREFETCHED = 2
"""Ops whose parameters are gathered before their turn; bytes ahead for each byte of the next."""


@dataclass(frozen=True)
class Zero:
    """The settings of `graph.config.enable_zero`.

    stage: 1 to 3.  min_size: parameters of fewer elements stay copies.  restore_level: how a split
    parameter is read: 0 as the layouts suggest, 1 and 2 gathered.
    """

    stage: int
    min_size: int
    restore_level: int


@dataclass
class Ahead:
    """The latest ops that read gathered parameters, and from when on those of the next are
    gathered: two ops ahead, or as many more as gather no more than twice what the next one does.

    While an op runs that many gathers are under way: with one of them a link idles whenever that
    arrives before the op has ended.
    """

    _ops: deque[tuple[Sequence[Value], int]] = field(default_factory=deque)
    """The ops, oldest first: an input of each without parameters, if it has one, and the bytes of
    its parameters."""

    def start(self, inputs: Sequence[Value], nbytes: int) -> Sequence[Value]:
        """The value that has to be there before the parameters of the next op are gathered, if
        any has.

        inputs: of the next op, without parameters.  nbytes: of its parameters.
        """
        ops = self._ops
        ahead = sum(of_op for _, of_op in ops)
        while len(ops) > PREFETCHED and ahead > PREFETCHED * nbytes:
            ahead -= ops.popleft()[1]
        ops.append((inputs[:1] or (ops[-1][0] if ops else ()), nbytes))
        return ops[0][0]


def split_layout(x: Tensor, min_size: int) -> NdSbp | None:
    """The layout of `x` with its copies split; None for what stays as it is: local tensors, small
    ones, and those without an axis of copies that a dim could be split over.
    """
    if x._placement is None or x._sbp is None or x.meta.numel < min_size:
        return None
    found = list(x._sbp)
    for axis, size in enumerate(x._placement.hierarchy):
        if found[axis] is BROADCAST:
            dim = _dim_to_split(x, found, size)
            found[axis] = BROADCAST if dim < 0 else Split(dim)
    return None if tuple(found) == x._sbp else tuple(found)


def _dim_to_split(x: Tensor, sbp: list[Sbp], size: int) -> int:
    """The first dim that `size` divides, else the first that has as many elements; -1: none."""
    assert x._placement is not None
    parts = [
        size * math.prod(n for n, s in zip(x._placement.hierarchy, sbp, strict=True) if s == cut)
        for cut in map(Split, range(x.meta.ndim))
    ]
    dims = [d for d in range(x.meta.ndim) if x.meta.shape[d] >= parts[d]]
    return next((d for d in dims if x.meta.shape[d] % parts[d] == 0), dims[0] if dims else -1)


def split_copies(graph: Graph) -> None:
    """Lays out the optimizers' states, and in stage 3 the parameters, as `graph.config` says.

    Their values stay; the eager tensors hold parts from here on. With auto-parallel they do so when
    the plan is bound, which says how its variables lie.
    """
    zero, later = graph.config.zero, graph.config.auto_parallel
    if zero is None:
        return
    for optimizer in graph._optimizers:
        for parameter in optimizer.parameters():
            layout = split_layout(parameter, zero.min_size)
            if later and not may_lay_out(parameter):
                layout = None
            if layout is not None and id(parameter) not in graph._split:
                graph._split[id(parameter)] = layout
                if zero.stage == 3:
                    graph._gathered[id(parameter)] = parameter.sbp
                    if not later:
                        parameter.data = parameter.detach().to_global(sbp=layout)
            layout = graph._split.get(id(parameter))
            if layout is not None and not later:
                _split_states(optimizer.state_of(parameter), parameter, layout)


def layouts_to_come(graph: Graph) -> dict[int, NdSbp]:
    """The layouts that parameters and states will have when the plan is bound, by id."""
    zero = graph.config.zero
    if zero is None or not graph.config.auto_parallel:
        return {}
    found: dict[int, NdSbp] = {}
    for optimizer in graph._optimizers:
        for parameter in optimizer.parameters():
            layout = graph._split.get(id(parameter))
            if layout is not None:
                states = _like(optimizer.state_of(parameter), parameter)
                found.update({id(state): layout for state in states.values()})
                if zero.stage == 3:
                    found[id(parameter)] = layout
    return found


def _split_states(states: dict[str, object], parameter: Tensor, layout: NdSbp) -> None:
    for key, state in _like(states, parameter).items():
        if state._sbp != layout:
            states[key] = state.detach().to_global(sbp=layout)


def _like(states: dict[str, object], parameter: Tensor) -> dict[str, Tensor]:
    """The states that are as large as their parameter."""
    found = {key: state for key, state in states.items() if isinstance(state, Tensor)}
    return {k: s for k, s in found.items() if s.meta.shape == parameter.meta.shape}
