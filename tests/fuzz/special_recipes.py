"""Recipes of special functions, where they are smooth."""

from __future__ import annotations

from .drawing import Draft
from .operands import between, of, second
from .recipes import Operand, nothing, recipe


def detached(operand: Operand) -> Operand:
    """An operand of functions without a derivative in PyTorch."""
    return lambda d: f"{operand(d)}.detach()"


def degree(d: Draft, x: str) -> list[str]:
    return [str(d.pick((0, 1, 2, 3, 5)))]


recipe("i1 i1e erfcx", nothing, own=between(-4, 4))
recipe(
    "bessel_j0 bessel_j1 modified_bessel_i0 modified_bessel_i1 spherical_bessel_j0 airy_ai",
    nothing,
    own=detached(between(-4, 4, ("float32",))),  # PyTorch's are no better than this in float64
)
recipe(
    "bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1",
    nothing,
    own=between(0.25, 6, ("float32",)),
)
recipe(
    "igamma igammac gammainc gammaincc",
    second(0.25, 4),
    own=detached(between(0.5, 4)),
)
recipe("zeta", second(0.5, 4), own=detached(between(1.5, 4)))
recipe("mvlgamma multigammaln", of("1", "2"), own=between(2, 6))
recipe("ndtri", nothing, own=between(0.125, 0.875))
recipe(
    "chebyshev_polynomial_t chebyshev_polynomial_u hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p chebyshev_polynomial_v chebyshev_polynomial_w",
    degree,
    own=detached(between(-2, 2)),
)
