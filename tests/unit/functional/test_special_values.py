"""NaN, infinities, signed zeros, ties and the ends of each dtype: every public function that takes
one, two or three tensors, or a tensor and a dim, beside PyTorch on a CPU, forward and backward.

The functions are those of the public table that PyTorch has, too, and that it lets be called so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.api import ROWS
from tests.unit.test_public_table import counterpart

SPACES = ("flow", "tensor", "F", "special")
TOPICS = (
    "arithmetic", "elementwise", "nn_activation", "pointwise", "reduction", "searching", "special",
    "statistics",
)  # fmt: skip
"""Modules whose functions are asked, besides all that are ops."""
DTYPES = ("float32", "bfloat16")
RTOL = {"float32": 2e-4, "bfloat16": 0.02}
RANDOM = ("dropout", "gumbel_softmax", "multinomial", "rrelu", "alpha_dropout")
ENDS = "a step between overflows in one library, next to the largest numbers"
LIMIT = "the limit where PyTorch has NaN, or another of two conventions"
TIES = "which of equal elements is first is PyTorch's implementation, not its contract"
SHORT = "PyTorch's own answer depends on the length of the vector"
_REASONS = {
    ENDS: "div lerp addcmul addcdiv ldexp gradient glu hypot atan2 ndtri erfcx log_ndtr",
    LIMIT: (
        "remainder fmod pow logaddexp logaddexp2 logit i1 i1e bessel_j0 bessel_j1 bessel_y0 "
        "bessel_y1 modified_bessel_i0 modified_bessel_i1 airy_ai digamma mvlgamma multigammaln "
        "xlogy xlog1py sinc prod amax amin aminmax var var_mean std_mean nanmean nanquantile "
        "quantile pdist mish hardswish clamp "
        "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u "
        "shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w hermite_polynomial_h "
        "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
    ),
    TIES: "sort argsort topk kthvalue nanmedian mode bucketize searchsorted",
    SHORT: "elu celu hardshrink hardtanh softshrink signbit copysign",
}
KNOWN = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Functions that answer otherwise somewhere, each with its reason; what users meet of it is on the
page Differences."""


@dataclass(frozen=True)
class Call:
    """One function with arguments: arrays become tensors that take a gradient."""

    arrays: tuple[np.ndarray[Any, Any], ...]
    rest: tuple[Any, ...] = ()


def _ends(dtype: str) -> list[float]:
    info = torch.finfo(getattr(torch, dtype))
    largest, least = info.max, info.tiny
    usual = [1.0, -1.0, 2.0, 0.5, -2.5, 3.0, -0.5, 1e-3, 4.0, -3.0]
    return [math.nan, math.inf, -math.inf, 0.0, -0.0, *usual, largest, -largest, least, least / 4]


def _rows() -> np.ndarray[Any, Any]:
    nan, inf = math.nan, math.inf
    return np.array([
        [1, nan, 2, nan, 0], [1, 1, 2, 2, 0], [inf, -inf, 0, 1, 2], [nan] * 5, [2, 1, 1, 3, 3],
        [inf, inf, 1, 0, inf], [0, 0, 3, 1, 0], [0, 2, 3, 1, 0], [nan, 5, 4, 3, 1],
        [-1, -2, -2, -1, -3],
    ])  # fmt: skip


def _calls(dtype: str) -> Iterator[Call]:
    ends = np.array(_ends(dtype) * 2)  # PyTorch has other code for short vectors
    a, b = (grid.reshape(-1) for grid in np.meshgrid(ends[:19], ends[:19]))
    yield Call((ends,))
    yield Call((a, b))
    yield Call((a, b, a[::-1].copy()))
    yield Call((ends,), (2,))
    yield Call((ends,), (math.nan,))
    yield Call((_rows(),), (1,))


def _functions() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """name: (ours, PyTorch's)."""
    found: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
    for row in ROWS:
        name = row.names[0]
        if name.startswith(RANDOM) or row.torch is None:
            continue
        if row.promote is None and row.home.rpartition(".")[2] not in TOPICS:
            continue
        for space in (s for s in row.surfaces if s in SPACES):
            theirs, ours = counterpart(row, space, name), surfaces.find(space, name)
            if callable(theirs) and callable(ours) and not isinstance(ours, type):
                found.setdefault(name, (ours, theirs))
    return found


FUNCTIONS = _functions()


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in _leaves(part)]
    return [result]


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach()
    return np.asarray((x.double() if "float" in str(x.dtype) else x).numpy())


def _answers(lib: Any, function: Callable[..., Any], call: Call, dtype: str) -> list[Any]:
    """Results and gradients; a gradient that is not there is zero."""
    xs = [lib.tensor(a, dtype=getattr(lib, dtype)).requires_grad_() for a in call.arrays]
    leaves = _leaves(function(*xs, *call.rest))
    for y in leaves:
        if getattr(y, "requires_grad", False) and "complex" not in str(y.dtype):
            weight = np.resize(np.array([1.0, 2.0, 3.0]), tuple(y.shape))
            y.backward(lib.tensor(weight, dtype=y.dtype), retain_graph=True)
    grads = [np.zeros(x.shape) if x.grad is None else _numbers(x.grad) for x in xs]
    return [*map(_numbers, leaves), *grads]


def _differences(name: str, dtype: str) -> list[str]:
    ours, theirs = FUNCTIONS[name]
    found = []
    for call in _calls(dtype):
        try:
            want = _answers(torch, theirs, call, dtype)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError):
            continue  # PyTorch is not called so
        got = _answers(flow, ours, call, dtype)
        assert len(got) == len(want)
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            assert g.shape == w.shape
            with np.errstate(all="ignore"):
                close = np.isclose(g, w, rtol=RTOL[dtype], atol=RTOL[dtype], equal_nan=True)
            for at in map(tuple, np.argwhere(~close)[:3]):
                operands = [a[at] for a in call.arrays if a.ndim == len(at) and a.shape == g.shape]
                found.append(f"{call.rest} {i} at {at} of {operands}: {g[at]} for {w[at]}")
    return found


pytestmark = pytest.mark.filterwarnings("ignore:Implicit dimension choice")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - KNOWN.keys()))
def test_ends_are_pytorchs(name: str, dtype: str) -> None:
    assert not _differences(name, dtype)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_known_to_differ_still_does(name: str) -> None:
    assert any(_differences(name, dtype) for dtype in DTYPES), f"take {name} off the list"
