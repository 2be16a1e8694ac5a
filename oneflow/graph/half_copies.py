"""Half floats of parameters that live from step to step, in mixed precision with
`enable_fused_model_update_cast`: the update of a parameter writes them in the same pass, and the
next step reads them instead of casting.

A copy follows its parameter only in the graph. So before a step each copy is compared by the
version of its parameter, and made anew if somebody else has written to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.dispatch import call, swap_mode
from oneflow.core.dtype import DType, float32, int64
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.graph.precision import kept_operands
from oneflow.ops.assign import assign
from oneflow.ops.cast import cast
from oneflow.ops.update import AND_CAST, with_copy
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import wrap, wrap_global

if TYPE_CHECKING:
    from oneflow.core.graph import Value
    from oneflow.graph.trace import Trace
    from oneflow.tensor.tensor import Tensor

Pairs = Sequence[tuple["Tensor", "Tensor"]]
"""Parameters, and their copies."""


class HalfCopies:
    """The copies that a compiled graph reads."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._seen: list[tuple[int, ...]] = []
        """Versions of the parameters that the copies have."""

    @classmethod
    def of(cls, pairs: Pairs) -> HalfCopies | None:
        """Those of some parameters; None of none."""
        return cls(pairs) if pairs else None

    def names(self, variables: Mapping[str, Tensor]) -> list[list[str]]:
        """The names of each parameter and its copy. variables: by name."""
        known = {id(x): name for name, x in variables.items()}
        return [[known[id(x)], known[id(copy)]] for x, copy in self._pairs]

    def refresh(self) -> None:
        """Bring copies up to date of whose parameters something outside of the graph has written
        to. Ranks of a global parameter call it alike.
        """
        seen = self._seen or [()] * len(self._pairs)
        for version, (x, copy) in zip(seen, self._pairs, strict=True):
            if version != tuple(x._version):
                with no_grad():
                    copy.copy_(x)

    def keep(self) -> None:
        """The graph has run a step: all copies are up to date."""
        self._seen = [tuple(x._version) for x, _ in self._pairs]


def take_copies(
    trace: Trace,
    lowered: set[int],
    dtype: DType,
    updated: Iterable[Tensor],
    known: dict[int, tuple[Tensor, Tensor]],
) -> dict[int, Value]:
    """Let ops that are lowered read copies of the parameters that the graph updates.

    updated: those parameters.  known: (parameter, copy) by the parameter's id, of earlier traces;
    new copies are added.  Returns the values to read, by the ids of those of the parameters.
    """
    found: dict[int, Value] = {}
    read = _read_by(trace, lowered)
    for x in updated:
        value = trace.value_of(x)
        name = str(value.node.attrs.get("name"))
        if value.id not in read or value.node.op != "variable" or x.meta.dtype is not float32:
            continue  # or build() has written to it
        if any(s.is_partial for s in x._sbp or ()):
            continue
        now = _copied(x, dtype)
        copy = known.get(id(x), (x, now))[1]
        if copy.meta != now.meta:  # of a parameter that has another memory since
            copy = now
        known[id(x)] = x, copy
        if copy is not now:  # of an earlier trace: what is exported has to be up to date
            copy._array[...] = now._array
        trace.names[id(copy)] = f"{name}-{dtype.name}"
        if id(x) in trace.split:
            trace.split = {**trace.split, id(copy): trace.split[id(x)]}
        trace.copies[id(x)] = copy
        found[value.id] = trace.value_of(copy)
        found[value.id].node.stage = value.node.stage
    return found


def _read_by(trace: Trace, lowered: set[int]) -> set[int]:
    """Ids of the values that lowered ops read in half precision."""
    return {
        value.id
        for node in trace.graph
        if node.id in lowered
        for i, value in enumerate(node.inputs)
        if i not in kept_operands(node)
    }


def _copied(x: Tensor, dtype: DType) -> Tensor:
    """A copy of a parameter; of a global one each rank casts its own part."""
    mode = swap_mode(None)
    try:
        made: Tensor = cast(wrap(x._array), dtype=dtype)
        if x._placement is None or x._sbp is None:
            return made
        return wrap_global(made._array, x.meta.with_dtype(dtype), x._placement, x._sbp)
    finally:
        swap_mode(mode)


def run_and_cast(trace: Trace, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
    """Run an op that overwrites a parameter, and its copy with it: as one op if there is one."""
    x = inputs[0]
    copy = trace.copies.pop(id(x))
    try:
        with no_grad():
            if op in AND_CAST:
                form, operands = with_copy(op, inputs, copy)
                wanted = () if trace.condition is None else (trace.condition(x),)
                with trace.writing_if(None):
                    operands += tuple(cast(number, dtype=int64) for number in wanted)
                    first, *others, _ = call(form, *operands, **attrs)
                return (first, *others) if others else first
            result = call(op, *inputs, **attrs)
            assign(copy, cast(x, dtype=copy.meta.dtype))
            return result
    finally:
        trace.copies[id(x)] = copy
