"""The modes in which `build` is traced where precision is mixed: of a graph that asks for it, where
nothing is cast yet, and of blocks of `autocast`, whose ops are told from all others also in a graph
that does not ask: a cluster may for its job file. The ops that run in half precision are chosen
when the whole graph is known (scheduler/compiler/rewrite/mixed_precision.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from oneflow.amp.autocasting import Autocasting
from oneflow.core.dispatch import ModeAbove, use_mode
from oneflow.core.dtype import DType, float32
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.precision import exceeds_float16
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace


class OwnDtypes(ModeAbove):
    """The mode of a block of `autocast` in `build`: its ops keep the dtypes that it gives them."""

    choosing_dtypes = None

    def __init__(self, inner: Trace) -> None:
        super().__init__(inner)
        self._trace = inner

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Record an op, in any precision of the graph."""
        before, self._trace.at.has_own_dtypes = self._trace.at.has_own_dtypes, True
        try:
            return self._trace.run(op, inputs, attrs)
        finally:
            self._trace.at.has_own_dtypes = before

    def afresh(self) -> OwnDtypes:
        return self


class Lowering(Autocasting):
    """The mode of `build` in mixed precision: it is as if all of it were a block, but nothing is
    cast yet.
    """

    def __init__(self, inner: Trace, dtype: DType) -> None:
        super().__init__(inner, {"cpu": dtype, "cuda": dtype}, None)

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Record an op, which may run in another precision."""
        return self.inner.run(op, inputs, attrs)

    def run_cast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        how: tuple[str, ...],
    ) -> Any:
        """Run a function as it is: nothing is cast before the whole graph is known."""
        return function(*args, **kwargs)

    def afresh(self) -> Lowering:
        return self


def lacks_numbers_of(x: Tensor) -> bool:
    """Whether float16 has no number near one of a local float32 tensor, which would be infinite or
    zero.
    """
    if x._placement is not None or x.meta.dtype is not float32:
        return False
    return exceeds_float16(x._array)


@contextmanager
def precision(trace: Trace, dtype: DType | None) -> Iterator[None]:
    """The mode in which `build` is traced. dtype: of mixed precision; None: there is none."""
    with nullcontext() if dtype is None else use_mode(Lowering(trace, dtype)):
        yield
