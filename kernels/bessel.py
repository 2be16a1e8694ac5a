"""Kernels of oneflow/ops/bessel.py, in float64 for any dtype: SciPy's functions, or CuPy's of the
same names; those that CuPy has not are computed in host memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import to_host
from oneflow.kernels.registry import kernel

_NAMES = {
    **{name: name for name in ("i0", "i0e", "i1", "i1e")},
    **{f"bessel_{name}": name for name in ("j0", "j1", "y0", "y1")},
    **{f"modified_bessel_{name}": name for name in ("k0", "k1")},
    **{f"scaled_modified_bessel_{name}": f"{name}e" for name in ("k0", "k1")},
    "airy_ai": "airy",
}
"""Name of the op -> the function's name in scipy.special."""


def _computed(xp: ArrayModule, name: str, *args: Array) -> Array:
    """Return a function of scipy.special of numbers as float64."""
    wide = [x.astype(np.float64) for x in args]
    prefix = "cupyx." if xp.__name__ == "cupy" else ""
    library: Any = importlib.import_module(f"{prefix}scipy.special")
    if xp is not np and not (prefix and hasattr(library, name)):
        on_host: Array = xp.asarray(_computed(np, name, *[to_host(x) for x in wide]))
        return on_host
    found: Any = getattr(library, name)(*wide)
    values: Array = found[0] if name == "airy" else found
    return values


def _kernel(name: str, function: str) -> None:
    @kernel(name)
    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        out[...] = _computed(xp, function, x)


for _name, _function in _NAMES.items():
    _kernel(_name, _function)


@kernel("spherical_bessel_j0")
def spherical_bessel_j0(xp: ArrayModule, out: Array, x: Array) -> None:
    wide = x.astype(np.float64)
    safe = xp.where((wide == 0) | xp.isinf(wide), 1.0, wide)
    out[...] = xp.where(wide == 0, 1.0, xp.where(xp.isinf(wide), 0.0, xp.sin(safe) / safe))


@kernel("gammainc")
def gammainc(
    xp: ArrayModule, out: Array, a: Array, x: Array, log_gamma: Array, *, is_upper: bool
) -> None:
    out[...] = _computed(xp, "gammaincc" if is_upper else "gammainc", a, x)


# ---- polynomials ---------------------------------------------------------------------------------

Step = Callable[[int, Array, Array, Array], Array]
"""The next polynomial of (its degree - 1, x, the last one, the one before)."""


def _twice(k: int, x: Array, last: Array, before: Array) -> Array:
    return 2 * x * last - before


_POLYNOMIALS: dict[str, tuple[Callable[[Array], Array], Step]] = {
    "chebyshev_t": (lambda x: x, _twice),
    "chebyshev_u": (lambda x: 2 * x, _twice),
    "chebyshev_v": (lambda x: 2 * x - 1, _twice),
    "chebyshev_w": (lambda x: 2 * x + 1, _twice),
    "hermite_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q)),
    "hermite_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}
"""Name -> the polynomial of degree 1, and the recurrence; that of degree 0 is 1."""


@kernel("polynomial")
def polynomial(xp: ArrayModule, out: Array, x: Array, n: Array, *, kind: str) -> None:
    with np.errstate(all="ignore"):
        degree = xp.where(xp.isfinite(n), n, -1).astype(np.int64)
        first, step = _POLYNOMIALS[kind]
        wide, degree = xp.broadcast_arrays(x.astype(np.float64), degree)
        before, last = 1.0 + 0 * wide, first(wide)
        value = xp.where(degree == 0, before, xp.where(degree == 1, last, 0.0))
        for k in range(1, int(degree.max()) if degree.size else 0):
            before, last = last, step(k, wide, last, before)
            value = xp.where(degree == k + 1, last, value)
        out[...] = value
