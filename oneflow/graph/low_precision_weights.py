"""Half floats of parameters that live from step to step, in mixed precision with
`enable_fused_model_update_cast`: the eager tensors behind the variables that the pass
`cast_in_updates` has added.

A copy follows its parameter only in the graph. So before a step each copy is compared by the
version of its parameter, and made anew if somebody else has written to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oneflow.core.dispatch import swap_mode
from oneflow.core.dtype import DType
from oneflow.core.graph import LogicalGraph
from oneflow.ops.cast import cast
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

Pairs = Sequence[tuple[Tensor, Tensor]]
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


def copies_in(
    graph: LogicalGraph,
    variables: Mapping[str, Tensor],
    known: dict[int, tuple[Tensor, Tensor]],
) -> dict[str, Tensor]:
    """The copies among the variables that a pass has added to a graph, by name.

    variables: those traced.  known: (parameter, copy) by the parameter's id, of earlier plans; new
    copies are added.
    """
    found = {}
    for name, value in graph.variables.items():
        if "copy_of" in value.node.attrs:
            x = variables[str(value.node.attrs["copy_of"])]
            now = _copied(x, value.type.dtype)
            copy = known.get(id(x), (x, now))[1]
            if (copy.meta, copy._sbp) != (now.meta, now._sbp):  # the parameter lies elsewhere since
                copy = now
            known[id(x)] = x, copy
            if copy is not now:  # what is exported has to be up to date
                copy._array[...] = now._array
            found[name] = copy
    return found


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
