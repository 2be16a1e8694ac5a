"""GELU and its gradient."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, leading_signatures, register
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_same

_FORMS = ("none", "tanh")


def _check_form(who: str, approximate: str) -> None:
    if approximate not in _FORMS:
        raise ShapeError(f"{who}: approximate is one of {_FORMS}, got {approximate!r}")


@register
class Gelu(Op):
    """x * Phi(x), Phi the standard normal distribution (Hendrycks and Gimpel, arXiv 1606.08415).

    approximate: "none" for Phi itself, "tanh" for x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715
    x^3))).
    """

    name = "gelu"

    @staticmethod
    def infer(x: TensorType, *, approximate: str = "none") -> TensorType:
        require_float("gelu", x)
        _check_form("gelu", approximate)
        return x

    @staticmethod
    def sbp(x: TensorType, *, approximate: str = "none") -> list[SbpSignature]:
        return leading_signatures(x.ndim, 1)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any, *, approximate: str = "none") -> tuple[Any, ...]:
        return (lambda: gelu_grad(d_out, x, approximate=approximate),)


@register
class GeluGrad(Op):
    """d_x = d_out * gelu'(x)."""

    name = "gelu_grad"

    @staticmethod
    def infer(d_out: TensorType, x: TensorType, *, approximate: str = "none") -> TensorType:
        require_same("gelu_grad", d_out, x)
        _check_form("gelu_grad", approximate)
        return x

    @staticmethod
    def sbp(d_out: TensorType, x: TensorType, *, approximate: str = "none") -> list[SbpSignature]:
        return leading_signatures(x.ndim, 2)


def gelu(x: Any, *, approximate: str = "none") -> Any:
    """See Gelu."""
    return call(Gelu, x, approximate=approximate)


def gelu_grad(d_out: Any, x: Any, *, approximate: str = "none") -> Any:
    """See GeluGrad."""
    return call(GeluGrad, d_out, x, approximate=approximate)
