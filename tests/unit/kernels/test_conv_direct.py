"""Convolutions that gather no windows, against sums over windows in float64: sizes on both sides of
where the loops are cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np
import pytest

from oneflow.core.config import current_config
from oneflow.kernels import conv_direct as ways
from oneflow.kernels import registry
from oneflow.kernels.array import at
from oneflow.kernels.threads import handed_out
from oneflow.ops.conv import Geometry

from .run_kernel import run

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# x, w, groups, and what differs from stride 1, no padding and dilation 1
DENSE: list[tuple[Shape, Shape, int, dict[str, Any]]] = [
    ((2, 16, 13, 15), (33, 16, 3, 3), 1, {"padding": (1, 1)}),
    ((1, 16, 20, 31), (32, 16, 7, 7), 1, {"stride": (2, 2), "padding": (3, 3)}),
    ((3, 17, 9, 14), (31, 17, 3, 2), 1, {"stride": (2, 1), "padding": (1, 0)}),
    ((2, 16, 26, 26), (16, 16, 3, 3), 1, {"padding": (1, 1)}),  # rows in two chunks
    ((9, 16, 5, 4), (24, 16, 3, 3), 1, {"padding": (1, 1)}),  # several samples in a product
    ((1, 180, 6, 7), (40, 180, 3, 3), 1, {"padding": (1, 1)}),  # a window in parts
    ((2, 16, 12, 13), (20, 16, 3, 3), 1, {"padding": (2, 2), "dilation": (2, 2)}),
    ((2, 48, 9, 9), (99, 16, 3, 3), 3, {"padding": (1, 1)}),
    ((1, 400, 5, 5), (32, 200, 3, 3), 2, {"padding": (1, 1)}),
    ((2, 16, 6, 6), (16, 16, 1, 1), 1, {"padding": (2, 1)}),
    ((2, 20, 9, 10), (24, 20, 1, 1), 1, {"stride": (2, 2)}),
    ((2, 16, 14, 14), (16, 16, 2, 2), 1, {"stride": (3, 3)}),  # elements that meet no window
    ((2, 16, 8, 8), (16, 16, 3, 3), 1, {"padding": (3, 4)}),  # windows in the padding alone
    ((1, 16, 32, 32), (16, 16, 4, 4), 1, {"stride": (4, 4)}),
]
DENSE_WITH_FEW_CHANNELS = [
    ((2, 3, 21, 30), (35, 3, 7, 7), 1, {"stride": (2, 2), "padding": (3, 3)}),
    ((2, 1, 8, 8), (5, 1, 3, 3), 1, {"padding": (1, 1)}),
]
TURNED = [
    ((4, 32, 6, 8), (40, 32, 3, 3), 1, {"padding": (1, 1)}),
    ((9, 32, 7, 5), (33, 32, 3, 3), 1, {"padding": (1, 1)}),  # tiles over the edge
    ((2, 64, 12, 60), (32, 64, 3, 3), 1, {"padding": (0, 0)}),  # tiles in chunks
    ((1, 32, 4, 260), (64, 32, 3, 3), 1, {"padding": (1, 0)}),
    ((2, 96, 9, 10), (128, 96, 3, 3), 1, {"padding": (2, 2)}),  # blocks in parts
    ((1, 256, 4, 513), (33, 256, 3, 3), 1, {"padding": (1, 1)}),  # rows in segments
]
DEPTHWISE = [
    ((2, 5, 9, 11), (5, 1, 3, 3), 5, {"padding": (1, 1)}),
    ((3, 4, 8, 7), (4, 1, 5, 5), 4, {"stride": (2, 2), "padding": (2, 2)}),
    ((2, 4, 12, 13), (8, 1, 3, 3), 4, {"stride": (3, 2), "padding": (0, 1)}),
    ((1, 70, 6, 6), (70, 1, 3, 2), 70, {"padding": (2, 1), "dilation": (2, 2)}),
    ((2, 3, 5, 5), (3, 1, 5, 5), 3, {}),
    ((1, 2, 9, 40), (4, 1, 3, 3), 2, {"padding": (1, 1)}),  # rows of several vectors
    ((1, 2, 5, 37), (2, 1, 3, 3), 2, {"stride": (2, 2), "padding": (1, 1)}),
    ((2, 2, 7, 20), (2, 1, 3, 4), 2, {"stride": (1, 3), "padding": (1, 2)}),
]
GROUPED = [
    ((2, 16, 7, 7), (16, 1, 7, 7), 16, {"padding": (3, 3)}),  # rows shorter than a tile
    ((2, 24, 14, 31), (24, 1, 5, 3), 24, {"stride": (2, 2), "padding": (2, 1)}),  # shared blocks
    ((1, 64, 63, 65), (64, 1, 3, 3), 64, {"padding": (1, 1)}),  # bands of rows
    ((1, 32, 90, 70), (32, 2, 5, 5), 16, {"stride": (2, 2), "padding": (2, 2)}),
    ((3, 20, 9, 10), (20, 2, 3, 3), 10, {"padding": (1, 1)}),
    ((2, 64, 28, 28), (64, 4, 3, 3), 16, {"padding": (1, 1)}),
    ((2, 36, 11, 18), (36, 4, 3, 2), 9, {"stride": (1, 2), "padding": (0, 1)}),
    ((2, 40, 13, 9), (40, 8, 3, 3), 5, {"stride": (2, 2), "padding": (1, 1)}),
    ((1, 64, 6, 8), (64, 16, 3, 3), 4, {"padding": (1, 1)}),
    ((2, 48, 12, 13), (48, 8, 3, 3), 6, {"padding": (2, 2), "dilation": (2, 2)}),
    ((2, 32, 9, 9), (32, 4, 1, 1), 8, {"stride": (2, 2)}),  # elements that meet no window
    ((2, 32, 40, 40), (32, 4, 1, 1), 8, {"stride": (2, 2)}),
    ((2, 32, 3, 2), (32, 4, 5, 5), 8, {"padding": (2, 2)}),  # windows larger than the image
    ((2, 16, 1, 1), (16, 8, 3, 3), 2, {"padding": (1, 1)}),
    ((1, 32, 8, 8), (32, 4, 3, 3), 8, {"padding": (4, 3)}),  # windows in the padding alone
    ((1, 48, 17, 17), (48, 1, 4, 4), 48, {"stride": (3, 3), "padding": (1, 0)}),
]
POINTWISE: list[tuple[Shape, Shape, int, dict[str, Any]]] = [
    ((3, 7, 4, 5), (9, 7, 1, 1), 1, {}),
    ((2, 5, 33), (4, 5, 1), 1, {}),
    ((2, 1, 33), (4, 1, 1), 1, {}),
    ((2, 5, 3, 2, 4), (4, 5, 1, 1, 1), 1, {}),
    ((2, 270, 7, 7), (23, 270, 1, 1), 1, {}),  # sums in two parts, panels over two samples
    ((40, 17, 1, 1), (70, 17, 1, 1), 1, {}),  # panels over many samples
    ((1, 90, 1), (200, 90, 1), 1, {}),  # one position of one sample
    ((8, 64, 3, 3), (24, 64, 1, 1), 1, {"stride": (3, 3)}),  # one position is left
    ((2, 64, 8, 32), (32, 64, 1, 1), 1, {}),  # whole panels alone
    ((5, 150, 40, 1), (33, 150, 1, 1), 1, {"stride": (2, 1)}),
]


def _geometry(x: Shape, groups: int, given: dict[str, Any]) -> dict[str, Any]:
    ones = (1,) * (len(x) - 2)
    plain = {"stride": ones, "padding": tuple(0 for _ in ones), "dilation": ones}
    return {**plain, "groups": groups, **given}


def _cuts(offset: Shape, positions: Shape, attrs: dict[str, Any]) -> tuple[Any, ...]:
    each = zip(offset, positions, attrs["stride"], attrs["dilation"], strict=True)
    return (..., *[slice(o * d, o * d + (n - 1) * s + 1, s) for o, n, s, d in each])


class Expected:
    """The three results in float64, summed window by window."""

    def __init__(self, x: Array, w: Array, groups: int, attrs: dict[str, Any]) -> None:
        n, channels, *spatial = x.shape
        self.attrs, self.kernel, self.groups = attrs, w.shape[2:], groups
        self.w = w.astype(np.float64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
        sides = [(p, p) for p in attrs["padding"]]
        self.inside = tuple(slice(p, p + s) for p, s in zip(attrs["padding"], spatial, strict=True))
        self.x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *sides])
        self.x = self.x.reshape(n, groups, channels // groups, *self.x.shape[2:])
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, attrs["dilation"], strict=True)]
        self.positions = tuple(
            (size - r) // s + 1
            for size, r, s in zip(self.x.shape[3:], reach, attrs["stride"], strict=True)
        )

    def _offsets(self) -> Any:
        for offset in product(*map(range, self.kernel)):
            yield offset, _cuts(offset, self.positions, self.attrs)

    def out(self) -> Array:
        parts = [
            np.einsum("ngc...,goc->ngo...", self.x[cuts], self.w[at(..., *offset)])
            for offset, cuts in self._offsets()
        ]
        total: Array = sum(parts)
        return total.reshape(total.shape[0], -1, *self.positions)

    def d_x(self, d: Array) -> Array:
        d = d.astype(np.float64).reshape(d.shape[0], self.groups, -1, *self.positions)
        found = np.zeros_like(self.x)
        for offset, cuts in self._offsets():
            found[cuts] += np.einsum("ngo...,goc->ngc...", d, self.w[at(..., *offset)])
        whole = found.reshape(found.shape[0], -1, *found.shape[3:])
        return whole[at(..., *self.inside)]

    def d_w(self, d: Array) -> Array:
        d = d.astype(np.float64)
        d = d.reshape(d.shape[0], self.groups, d.shape[1] // self.groups, prod(self.positions))
        found = np.zeros_like(self.w)
        for offset, cuts in self._offsets():
            met = self.x[cuts].reshape(*self.x.shape[:3], -1)
            found[at(..., *offset)] = np.einsum("ngop,ngcp->goc", d, met)
        return found.reshape(-1, *found.shape[2:])


def _compiled(name: str, *inputs: Array, **attrs: Any) -> Array:
    """The first output of the kernel for large float32 arrays on a CPU."""
    kernels = registry.variants(name, "cpu")
    which = next(i for i, kernel in enumerate(kernels) if "float32" in kernel.dtypes)
    return run(name, *inputs, which=which, **attrs)[0]


def _close(got: Array, want: Array) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize(
    "case",
    [*DENSE, *DENSE_WITH_FEW_CHANNELS, *TURNED, *DEPTHWISE, *GROUPED, *POINTWISE],
    ids=str,
)
@pytest.mark.parametrize("is_strided", [False, True])
def test_convolution_and_its_gradients(
    case: Any, is_strided: bool, rng: np.random.Generator
) -> None:
    x_shape, w_shape, groups, given = case
    attrs = _geometry(x_shape, groups, given)

    def normal(shape: Shape) -> Array:
        made = rng.standard_normal(shape[::-1] if is_strided else shape).astype(np.float32)
        return made.T if is_strided else made

    x, w = normal(x_shape), normal(w_shape)
    expected = Expected(x, w, groups, attrs)
    out = expected.out()
    d = normal(out.shape)
    call = ways.call_of(x, w, out, cast("Geometry", attrs))
    assert ways.conv_work(call) is not None
    assert call.is_turned or case not in TURNED
    _close(_compiled("conv", x, w, **attrs), out)
    if case not in DENSE_WITH_FEW_CHANNELS:
        assert ways.data_grad_work(call) is not None
    got = _compiled("conv_data_grad", d, w, spatial=x_shape[2:], **attrs)
    _close(got, expected.d_x(d))
    assert ways.filter_grad_work(call) is not None
    got = _compiled("conv_filter_grad", d, x, kernel=w_shape[2:], **attrs)
    _close(got, expected.d_w(d))


@pytest.mark.parametrize(
    "case", [DENSE[2], TURNED[4], DEPTHWISE[0], GROUPED[5], POINTWISE[-1]], ids=str
)
def test_threads_share_a_convolution(
    case: Any, rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    use_threads(3, least=1)
    before = handed_out()
    test_convolution_and_its_gradients(case, False, rng)
    assert handed_out() > before


SHARED: list[tuple[Shape, Shape, int, dict[str, Any]]] = [
    ((2, 3, 32, 33), (8, 3, 3, 3), 1, {"stride": (2, 2), "padding": (1, 1)}),  # one block, 3 rows
    ((1, 32, 20, 21), (40, 16, 3, 2), 2, {"padding": (1, 0)}),  # blocks and taps of two groups
    ((2, 40, 14, 14), (40, 1, 3, 3), 40, {"padding": (1, 1)}),
    ((2, 12, 14, 14), (24, 1, 3, 3), 12, {"padding": (1, 1)}),
    ((2, 72, 64, 64), (72, 4, 3, 3), 18, {"stride": (2, 2), "padding": (1, 1)}),
    ((8, 200, 1, 1), (96, 200, 1, 1), 1, {}),
    TURNED[2],
    TURNED[4],
]


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("case", SHARED, ids=str)
def test_results_are_the_same_on_any_number_of_threads(
    case: Any, threads: int, rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    x_shape, w_shape, groups, given = case
    attrs = _geometry(x_shape, groups, given)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape))
    out_shape: Shape = _compiled("conv", x, w, **attrs).shape
    d = rng.standard_normal(out_shape).astype(np.float32)

    def results() -> list[Array]:
        return [
            _compiled("conv", x, w, **attrs),
            _compiled("conv_data_grad", d, w, spatial=x_shape[2:], **attrs),
            _compiled("conv_filter_grad", d, x, kernel=w_shape[2:], **attrs),
        ]

    use_threads(1, least=1)
    expected = results()
    use_threads(threads, least=1)
    for got, one in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(got, one)


def test_small_planes_are_shared(
    rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    """Windows over planes of 14 x 14 take ten times as long as a loop over their elements."""
    use_threads(2)
    x = rng.standard_normal((2, 200, 14, 14)).astype(np.float32)
    w = rng.standard_normal((200, 1, 3, 3)).astype(np.float32)
    attrs = _geometry(x.shape, 200, {"padding": (1, 1)})
    for name, other, sizes in (
        ("conv", (x, w), {}),
        ("conv_data_grad", (x, w), {"spatial": (14, 14)}),
        ("conv_filter_grad", (x, x), {"kernel": (3, 3)}),
    ):
        before = handed_out()
        _compiled(name, *other, **sizes, **attrs)
        assert handed_out() > before, name


@pytest.mark.parametrize("case", [DENSE[0], DEPTHWISE[0], GROUPED[5], POINTWISE[0]], ids=str)
def test_no_samples(case: Any) -> None:
    x_shape, w_shape, groups, given = case
    attrs = _geometry(x_shape, groups, given)
    x, w = np.ones((0, *x_shape[1:]), np.float32), np.ones(w_shape, np.float32)
    d = _compiled("conv", x, w, **attrs)
    assert d.shape[:2] == (0, w_shape[0])
    assert _compiled("conv_data_grad", d, w, spatial=x_shape[2:], **attrs).shape == x.shape
    got = _compiled("conv_filter_grad", d, x, kernel=w_shape[2:], **attrs)
    np.testing.assert_array_equal(got, np.zeros(w_shape))


def test_infinity_and_nan_stay_where_they_are(rng: np.random.Generator) -> None:
    """Zeros of the padding and of unused lanes never meet them."""
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 16, 9, 9), (17, 16, 3, 3)))
    x[0, 3, 0, 0], w[16] = np.nan, np.inf
    attrs = _geometry(x.shape, 1, {"padding": (1, 1)})
    got = _compiled("conv", x, w, **attrs)
    assert np.isnan(got[0, :, :2, :2]).all()
    assert np.isfinite(got[0, :16, 2:]).all() and not np.isfinite(got[0, 16]).any()


def test_a_nan_stays_in_its_group(rng: np.random.Generator) -> None:
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 40, 9, 9), (40, 4, 3, 3)))
    x[1, 6, 0, 0] = np.nan
    got = _compiled("conv", x, w, **_geometry(x.shape, 10, {"padding": (1, 1)}))
    is_there = np.zeros(got.shape, bool)
    is_there[1, 4:8, :2, :2] = True
    np.testing.assert_array_equal(np.isnan(got), is_there)


def test_infinity_and_nan_stay_in_their_panel_of_a_pointwise_convolution(
    rng: np.random.Generator,
) -> None:
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 9, 5, 7), (8, 9, 1, 1)))
    x[1, 4, 2, 3], w[7] = np.nan, np.inf
    got = _compiled("conv", x, w, **_geometry(x.shape, 1, {}))
    is_there = np.zeros(got.shape, bool)
    is_there[1, :, 2, 3] = is_there[:, 7] = True
    np.testing.assert_array_equal(~np.isfinite(got), is_there)


def test_what_is_not_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows with gaps, steps or groups, few channels, and all of them if that is asked for."""
    x_shape, w_shape = (4, 32, 12, 16), (64, 32, 3, 3)
    attrs = _geometry(x_shape, 1, {"padding": (1, 1)})

    def call(x: Shape, w: Shape, **changes: Any) -> ways.Call:
        out = np.empty((x[0], w[0], *x[2:]), np.float32)
        own = cast("Geometry", attrs | changes)
        return ways.call_of(np.empty(x, np.float32), np.empty(w, np.float32), out, own)

    assert call(x_shape, w_shape).is_turned and call(x_shape, w_shape).is_turned_back
    for changes in ({"stride": (2, 1)}, {"dilation": (1, 2)}, {"groups": 2}):
        other = call(x_shape, w_shape, **changes)
        assert not other.is_turned and not other.is_turned_back
    assert not call((4, 3, 12, 16), (64, 3, 3, 3)).is_turned
    assert not call((1, 512, 3, 3), (512, 512, 3, 3)).is_turned  # turning weights would take longer
    assert not call(x_shape, (64, 32, 3, 5)).is_turned
    config = dataclasses.replace(current_config(), convolutions="direct")
    monkeypatch.setattr(ways, "current_config", lambda: config)
    assert not call(x_shape, w_shape).is_turned and not call(x_shape, w_shape).is_turned_back


def test_an_infinite_pixel_reaches_its_own_tiles_alone(rng: np.random.Generator) -> None:
    x_shape, w_shape, groups, given = TURNED[0]
    attrs = _geometry(x_shape, groups, given)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape))
    want = _compiled("conv", x, w, **attrs)
    x[1, 5, 2, 2] = np.inf
    got = _compiled("conv", x, w, **attrs)
    assert not np.isfinite(got[1, :, 1:4, 1:4]).any()
    got[1, :, :4, :4] = want[1, :, :4, :4]
    np.testing.assert_array_equal(got, want)
