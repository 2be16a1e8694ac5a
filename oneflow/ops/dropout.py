"""Dropout. The mask is never stored: it follows from the seed and each global index."""

from __future__ import annotations

from typing import Any

from oneflow.core.dtype import int64
from oneflow.core.errors import ShapeError
from oneflow.core.expression import Expression, apply, cast, scalar, symbol, where, word
from oneflow.core.op import declare, leading_signatures
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float
from oneflow.ops.elementwise import Elementwise


class Dropout(Elementwise):
    """out = x / (1 - p) where an element is kept, else 0; each is dropped with probability p, in
    [0, 1].

    Linear in x with a mask that the seed fixes, so it is its own gradient: the same op, the same
    seed. Srivastava et al., J. Mach. Learn. Res. 15, 2014.
    """

    name = "dropout"
    is_random = True

    @staticmethod
    def infer(x: Operand, *, p: float, seed: int) -> TensorType:
        require_float("dropout", x)
        if not 0.0 <= p <= 1.0:
            raise ShapeError(f"dropout: p must be in [0, 1], got {p}")
        return x.meta

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        return leading_signatures(types[0].ndim, 1)

    @staticmethod
    def formula(*_: TensorType, p: float, seed: int) -> Expression:
        """A word is uniform over [0, 2^32): it is kept if it is at least p * 2^32."""
        least = cast(apply("round", scalar("p") * 2.0**32), int64)
        return where(word() >= least, symbol("x") * (1 / (1 - scalar("p"))), 0)

    @classmethod
    def grad(cls, d_out: Tensor, *_: Tensor, **attrs: Any) -> Gradients:
        return (lambda: dropout(d_out, **attrs),)


dropout = declare(Dropout)
