"""GELU in NumPy. Half precision is computed in float32."""

from __future__ import annotations

import math
from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.normal import normal_cdf
from oneflow.kernels.registry import kernel

_ROOT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _wide_copies(count: int) -> Any:
    def types(ins: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        t = ins[0]
        return (t if t.dtype.bytes >= 4 else t.with_dtype(dtypes.float32),) * count

    return types


@kernel("gelu", device="cpu", workspace=_wide_copies(5))
def gelu(
    xp: Any,
    out: Any,
    x: Any,
    wide: Any,
    phi: Any,
    a: Any,
    b: Any,
    c: Any,
    *,
    approximate: str = "none",
) -> None:
    wide[...] = x
    _phi(xp, phi, wide, a, b, c, approximate)
    xp.multiply(wide, phi, out=a)
    out[...] = a


@kernel("gelu_grad", device="cpu", workspace=_wide_copies(5))
def gelu_grad(
    xp: Any,
    d_x: Any,
    d_out: Any,
    x: Any,
    wide: Any,
    phi: Any,
    a: Any,
    b: Any,
    c: Any,
    *,
    approximate: str = "none",
) -> None:
    """gelu' = Phi + x * Phi'. Phi' is the normal density, or 2 p (1 - p) u' where p = Phi = (1 +
    tanh u) / 2.
    """
    wide[...] = x
    _phi(xp, phi, wide, a, b, c, approximate)
    xp.multiply(wide, wide, out=a)
    if approximate == "tanh":
        xp.multiply(a, 3.0 * _CUBIC * _ROOT_2_OVER_PI, out=a)
        xp.add(a, _ROOT_2_OVER_PI, out=a)
        xp.subtract(1.0, phi, out=b)
        xp.multiply(b, phi, out=b)
        xp.multiply(b, 2.0, out=b)
        xp.multiply(a, b, out=a)
    else:
        xp.multiply(a, -0.5, out=a)
        xp.exp(a, out=a)
        xp.multiply(a, 1.0 / math.sqrt(2.0 * math.pi), out=a)
    xp.multiply(a, wide, out=a)
    xp.add(a, phi, out=a)
    xp.multiply(a, d_out, out=a)
    d_x[...] = a


def _phi(xp: Any, phi: Any, x: Any, a: Any, b: Any, c: Any, approximate: str) -> None:
    """phi <- Phi(x), exact or by tanh."""
    if approximate != "tanh":
        normal_cdf(xp, phi, x, a, b, c)
        return
    xp.multiply(x, x, out=a)
    xp.multiply(a, _CUBIC, out=a)
    xp.add(a, 1.0, out=a)
    xp.multiply(a, x, out=a)
    xp.multiply(a, _ROOT_2_OVER_PI, out=a)
    xp.tanh(a, out=phi)
    xp.add(phi, 1.0, out=phi)
    xp.multiply(phi, 0.5, out=phi)
