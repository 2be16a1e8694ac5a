"""Dropout. The mask is never stored: it follows from the seed and each global index."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, leading_signatures, register
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float


@register
class Dropout(Op):
    """out = x / (1 - p) where an element is kept, else 0; each is dropped with probability p, in
    [0, 1].

    Linear in x with a mask that the seed fixes, so it is its own gradient: the same op, the same
    seed.
    Srivastava et al., J. Mach. Learn. Res. 15, 2014.
    """

    name = "dropout"
    is_random = True

    @staticmethod
    def infer(x: TensorType, *, p: float, seed: int) -> TensorType:
        require_float("dropout", x)
        if not 0.0 <= p <= 1.0:
            raise ShapeError(f"dropout: p must be in [0, 1], got {p}")
        return x

    @staticmethod
    def sbp(x: TensorType, *, p: float, seed: int) -> list[SbpSignature]:
        return leading_signatures(x.ndim, 1)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any, *, p: float, seed: int) -> tuple[Any, ...]:
        return (lambda: dropout(d_out, p=p, seed=seed),)


def dropout(x: Any, *, p: float, seed: int) -> Any:
    """See Dropout."""
    return call(Dropout, x, p=p, seed=seed)
