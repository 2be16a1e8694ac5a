"""The mode in which `build` of a graph in mixed precision is traced: nothing is cast, but ops whose
dtypes the program has chosen itself, inside of an `autocast`, are told from all others. What runs
in half precision is decided when the whole graph is known
(scheduler/compiler/rewrite/mixed_precision.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oneflow.amp.autocasting import Autocasting
from oneflow.core.dispatch import use_mode
from oneflow.core.dtype import DType, float32
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.precision import exceeds_float16
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace


class Lowering(Autocasting):
    """The mode: notes the ops that may be lowered, and casts none."""

    def __init__(self, inner: Trace, dtype: DType) -> None:
        super().__init__(inner, {"cpu": dtype, "cuda": dtype}, None)
        self._trace = inner

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Record an op, which may run in another precision."""
        before, self._trace.at.has_own_dtypes = self._trace.at.has_own_dtypes, False
        try:
            return self._trace.run(op, inputs, attrs)
        finally:
            self._trace.at.has_own_dtypes = before

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
    if dtype is None:
        yield
        return
    trace.at.has_own_dtypes = True
    with use_mode(Lowering(trace, dtype)):
        yield
    trace.at.has_own_dtypes = False
