"""NaN, infinities, signed zeros, ties and the ends of each dtype: every public function that takes
one, two or three tensors, or a tensor and a dim, beside PyTorch on a CPU, forward and backward.
Graphs and global tensors give the values of eager code on local ones.

The functions are those of the public table that PyTorch has, too, and that it lets be called so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.api import ROWS
from oneflow.core.errors import GraphError
from tests.unit.test_public_table import counterpart

SPACES = ("flow", "tensor", "F", "special")
TOPICS = (
    "activation", "arithmetic", "elementwise", "gather_scatter", "pointwise", "reduction",
    "sort_and_search", "special", "statistics",
)  # fmt: skip
"""Modules whose functions are asked, besides all that are ops."""
DTYPES = ("float32", "bfloat16")
MORE_DTYPES = ("float64", "float16", "uint8", "int32")
RTOL = {
    "uint8": 2e-4,
    "int32": 2e-4,
    "float64": 1e-6,
    "float32": 2e-4,
    "float16": 4e-3,
    "bfloat16": 0.02,
}
RANDOM = ("dropout", "gumbel_softmax", "multinomial", "rrelu", "alpha_dropout")
ENDS = "a step between overflows in one library, next to the largest numbers"
LIMIT = "the limit where PyTorch has NaN, or another of two conventions"
TIES = "which of equal elements is first is PyTorch's implementation, not its contract"
SHORT = "PyTorch's own answer depends on the length of the vector, and on the processor"
_REASONS = {
    ENDS: "div frexp lerp addcmul addcdiv ldexp gradient glu hypot atan2 ndtri erfcx log_ndtr",
    LIMIT: (
        "remainder fmod pow logaddexp logaddexp2 logit i1 i1e bessel_y1 modified_bessel_i0 "
        "modified_bessel_i1 airy_ai digamma mvlgamma multigammaln "
        "xlogy xlog1py sinc prod amax amin aminmax var var_mean std_mean nanmean nanquantile "
        "quantile pdist mish hardswish clamp "
        "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u "
        "shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w hermite_polynomial_h "
        "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
    ),
    TIES: "sort argsort topk kthvalue nanmedian mode bucketize searchsorted",
    SHORT: "elu celu selu gelu hardshrink hardtanh softshrink signbit copysign",
}
_OF_INTEGERS = (
    "argsort sort topk kthvalue nanmedian mode bucketize searchsorted all any trapezoid gcd lcm "
    "where cumulative_trapezoid softsign logit airy_ai"
)
INTEGERS = frozenset(_OF_INTEGERS.split())
"""Functions that answer otherwise of integers: ties, and what the page Differences names."""
KNOWN = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Functions that answer otherwise somewhere, each with its reason; what users meet of it is on the
page Differences."""


@dataclass(frozen=True)
class Call:
    """One function with arguments: arrays become tensors that take a gradient."""

    arrays: tuple[np.ndarray[Any, Any], ...]
    rest: tuple[Any, ...] = ()


def _ends(dtype: str) -> list[float]:
    if dtype.startswith(("int", "uint")):
        last = int(np.iinfo(dtype).max)
        signed = [-1, -2, -3, -7, -last] if dtype[0] == "i" else [4, 6, 254, 9, 10]
        return [0, 1, 2, 3, 5, 7, last, last - 1, 11, 1, 2, 0, 12, 13, *signed]
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
    if dtype.startswith(("int", "uint")):
        yield Call((ends,), (-1,))
        yield Call((ends,), (2.5,))
        return
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
    x = x.to_local() if getattr(x, "is_global", False) else x
    return np.asarray((x.double() if "float" in str(x.dtype) else x).numpy())


def _answers(
    lib: Any,
    function: Callable[..., Any],
    call: Call,
    dtype: str,
    place: Callable[[Any], Any] = lambda x: x,
) -> list[Any]:
    """Results and gradients; a gradient that is not there is zero. place: makes tensors global."""
    xs = [place(lib.tensor(a, dtype=getattr(lib, dtype))) for a in call.arrays]
    for x in xs if "int" not in dtype else ():
        x.requires_grad_()
    leaves = _leaves(function(*xs, *call.rest))
    for y in leaves:
        if getattr(y, "requires_grad", False) and "complex" not in str(y.dtype):
            weight = np.resize(np.array([1.0, 2.0, 3.0]), tuple(y.shape))
            y.backward(place(lib.tensor(weight, dtype=y.dtype)), retain_graph=True)
    grads = [np.zeros(x.shape) if x.grad is None else _numbers(x.grad) for x in xs]
    return [*map(_numbers, leaves), *grads]


REFUSED = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)


def _differences(name: str, dtype: str) -> list[str]:
    ours, theirs = FUNCTIONS[name]
    found = []
    for call in _calls(dtype):
        try:
            want = _answers(torch, theirs, call, dtype)
        except REFUSED:
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


@pytest.mark.parametrize("dtype", MORE_DTYPES)
def test_ends_of_other_dtypes_are_pytorchs(dtype: str) -> None:
    known = KNOWN.keys() | (INTEGERS if "int" in dtype else set())
    names = sorted(FUNCTIONS.keys() - known)
    assert not {n: found for n in names if (found := _differences(n, dtype))}


def _is_same(got: list[Any], want: list[Any]) -> bool:
    with np.errstate(all="ignore"):
        return len(got) == len(want) and all(
            g.shape == w.shape and np.isclose(g, w, rtol=1e-5, atol=1e-6, equal_nan=True).all()
            for g, w in zip(got, want, strict=True)
        )


@pytest.mark.slow
def test_global_tensors_have_the_same_ends() -> None:
    placement, sbp = flow.placement("cpu", [0]), flow.sbp.broadcast
    others, asked = [], 0
    for name, (function, _) in FUNCTIONS.items():
        for call in _calls("float32"):
            try:
                want = _answers(flow, function, call, "float32")
            except REFUSED:
                continue
            got = _answers(
                flow, function, call, "float32", lambda x: x.to_global(placement, sbp).detach()
            )
            asked += 1
            others += [] if _is_same(got, want) else [(name, call.rest)]
            break  # the first call that it takes
    assert asked > 180 and not others


class _All(flow.nn.Graph):
    """The results of functions of the same tensors, all in one graph."""

    def __init__(self, names: Iterable[str], rest: tuple[Any, ...]) -> None:
        super().__init__()
        self.names, self.rest = names, rest

    def build(self, *xs: Any) -> Any:
        found = {}
        for name in self.names:
            try:
                found[name] = _leaves(FUNCTIONS[name][0](*(x.clone() for x in xs), *self.rest))
            except GraphError:
                continue  # needs the values of its tensors
        return found


@pytest.mark.slow
def test_graphs_have_the_same_ends() -> None:
    asked = 0
    for call in _calls("float32"):
        xs = [flow.tensor(a, dtype=flow.float32) for a in call.arrays]
        want = {}
        for name, (function, _) in FUNCTIONS.items():
            try:
                leaves = _leaves(function(*(x.clone() for x in xs), *call.rest))
            except REFUSED:
                continue
            if all(hasattr(leaf, "detach") for leaf in leaves):
                want[name] = list(map(_numbers, leaves))
        got = _All(want, call.rest)(*xs)
        others = [n for n in got if not _is_same(list(map(_numbers, got[n])), want[n])]
        asked += len(got)
        assert not others, call.rest
    assert asked > 300


@pytest.mark.parametrize("name", sorted(n for n, reason in KNOWN.items() if reason != SHORT))
def test_what_is_known_to_differ_still_does(name: str) -> None:
    assert any(_differences(name, dtype) for dtype in (*DTYPES, "float64")), (
        f"take {name} off the list"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: flow.nn.functional.hardtanh(x, x, x),
        lambda x: flow.nn.functional.gelu(x, x),
        lambda x: flow.nan_to_num(x, x),
        lambda x: flow.logit(x, x),
    ],
)
def test_a_tensor_is_no_number_of_an_op(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="must be a number, got tensor"):
        call(flow.ones(3))
