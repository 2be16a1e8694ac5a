"""Products of matrices by our programs and by libraries, against float64."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator
from itertools import product as pairs
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneflow.core.config import current_config, set_config
from oneflow.core.disk_cache import DiskCache
from oneflow.core.errors import ConfigError
from oneflow.kernels import cpu_products, threads
from oneflow.kernels.array import Array
from oneflow.kernels.native import gemm, gemm_bfloat16
from oneflow.kernels.native.machine_code import machine
from oneflow.kernels.native.product import BLOCK, MOST_ROWS
from oneflow.kernels.native.program import function_of

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LAYOUTS = ("rows", "columns", "gaps", "reversed")
SIZES = [
    (1, 1, 1), (1, 700, 96), (2, 33, 65), (3, 512, 31), (5, 300, 130), (7, 70, 1), (9, 48, 300),
    (MOST_ROWS, 16, BLOCK), (13, 7, 9),
    (33, 256, 130), (64, 64, 64), (200, 700, 130), (300, 330, 65), (600, 40, 200),
]  # fmt: skip


def laid_out(x: Array, layout: str) -> Array:
    """The same matrices, lying otherwise."""
    if layout == "columns":
        turned: Array = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        return turned
    if layout == "gaps":
        wide = np.full((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), np.nan, x.dtype)
        wide[..., ::2, ::3] = x
        return wide[..., ::2, ::3]
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
    return np.ascontiguousarray(x)


def check(out: Array, a: Array, b: Array, bias: Array | None = None) -> None:
    exact = a.astype(np.float64) @ b.astype(np.float64) + (0 if bias is None else bias)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + 1
    assert np.max(np.abs(out - exact) / scale) < 1e-6


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "layouts", [("rows", x) for x in LAYOUTS] + [("columns", "columns"), ("gaps", "rows")]
)
def test_products_of_any_strides(
    rng: np.random.Generator, size: tuple[int, int, int], layouts: tuple[str, str]
) -> None:
    m, k, n = size
    a = laid_out(rng.standard_normal((m, k), np.float32), layouts[0])
    b = laid_out(rng.standard_normal((k, n), np.float32), layouts[1])
    bias = rng.standard_normal(n, np.float32)
    around = np.full((m + 2, n + 20), 7.0, np.float32)
    for added in (None, bias):
        out = around[1:-1, 3 : 3 + n]
        out[...] = np.nan
        assert gemm.multiply(a, b, out, added)
        check(out, a, b, added)
    out[...] = 7  # nothing else was written
    assert (around == 7).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 1, 40, 64), (5, 3, 64, 40)),
        ((2, 3, 50, 20), (20, 33)),
        ((4, 1, 70), (4, 70, 50)),
        ((7, 300, 9), (1, 9, 80)),
    ],
)
def test_stacks_of_matrices(
    rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    left, right = rng.standard_normal(a, np.float32), rng.standard_normal(b, np.float32)
    for layout in LAYOUTS:
        for x, y in ((left, laid_out(right, layout)), (laid_out(left, layout), right)):
            out = np.full(np.matmul(x, y).shape, np.nan, np.float32)
            assert gemm.multiply(x, y, out)
            check(out, x, y)


def test_heads_are_read_where_they_lie(rng: np.random.Generator) -> None:
    """Batch and heads of (batch, time, heads, dim), which no copy joins."""
    q, k = (rng.standard_normal((3, 50, 4, 16), np.float32).swapaxes(1, 2) for _ in range(2))
    out = np.empty((3, 4, 50, 50), np.float32)
    assert gemm.multiply(q, k.swapaxes(-1, -2), out)
    check(out, q, k.swapaxes(-1, -2))


def test_infinities_and_nans_stay_in_their_rows_and_columns() -> None:
    a, b = np.ones((20, 40), np.float32), np.ones((40, BLOCK + 3), np.float32)
    a[3, 5], b[7, BLOCK + 2] = np.nan, np.inf
    out = np.empty((20, BLOCK + 3), np.float32)
    assert gemm.multiply(a, b, out)
    assert np.isnan(out[3]).all() and np.isinf(np.delete(out[:, -1], 3)).all()
    assert (np.delete(out, 3, 0)[:, :-1] == 40).all()


def test_what_is_no_product_of_floats_in_memory_is_left_to_numpy(
    rng: np.random.Generator,
) -> None:
    empty = np.empty((3, 4), np.float32)
    assert not gemm.multiply(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), empty)
    cpu_products.multiply(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), empty)
    assert (empty == 0).all()
    doubles = rng.standard_normal((2, 30, 40)), rng.standard_normal((40, 30))
    out = np.empty((2, 30, 30))
    cpu_products.multiply(*doubles, out)
    assert np.array_equal(out, np.matmul(*doubles))
    many = rng.standard_normal((2, 3, 2, 40, 40), np.float32).transpose(2, 0, 1, 3, 4)[:, ::-1]
    other = np.broadcast_to(rng.standard_normal((3, 40, 40), np.float32), many.shape)
    out = np.empty(many.shape, np.float32)
    cpu_products.multiply(many, other, out)
    check(out, many, other)


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    yield lambda count: setattr(threads, "_limit", count)
    threads._limit = None


@pytest.mark.parametrize("size", [(1, 3000, 4000), (40, 1000, 2000), (700, 600, 500)])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_threads_change_no_bit(
    rng: np.random.Generator,
    limit: Callable[[int], None],
    size: tuple[int, int, int],
    layout: str,
) -> None:
    m, k, n = size
    a = rng.standard_normal((m, k), np.float32)
    b = laid_out(rng.standard_normal((k, n), np.float32), layout)
    found = []
    libraries = cpu_products.found_libraries()
    for count in (1, 2, 3):
        limit(count)
        before = threads.handed_out()
        outs = [np.empty((m, n), np.float32) for _ in range(1 + len(libraries))]
        assert gemm.multiply(a, b, outs[0])
        assert count > 1 or threads.handed_out() == before  # more may stay alone on busy cores
        for library, out in zip(libraries, outs[1:], strict=True):
            assert library.multiply(a, b, out)
            check(out, a, b)
        outs.append(np.empty((m, n), BFLOAT16))
        assert gemm_bfloat16.multiply(a.astype(BFLOAT16), b.astype(BFLOAT16), outs[-1])
        found.append(outs)
    for outs in found[1:]:
        assert all(np.array_equal(x, y) for x, y in zip(found[0], outs, strict=True))


# ---- bfloat16 ------------------------------------------------------------------------------------


def check_half(out: Array, a: Array, b: Array, bias: Array | None = None) -> None:
    """Sums that are rounded once: half a unit of the last bit, and the rounding of float32."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact = left @ right + (0 if bias is None else bias.astype(np.float64))
    allowed = np.abs(exact) * 2.0**-8 * 1.001 + (np.abs(left) @ np.abs(right) + 1) * 1e-6
    assert out.dtype == BFLOAT16
    assert (np.abs(out.astype(np.float64) - exact) <= allowed).all()


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    made: Array = rng.standard_normal(shape).astype(BFLOAT16)
    return made


@pytest.fixture(params=[True, False], ids=["native", "emulated"])
def with_pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs with and without the processor's instruction for pairs."""
    if request.param and not machine().has_bfloat16_pairs:
        pytest.skip("this processor has no AVX512_BF16")
    function_of.cache_clear()
    gemm._plan.cache_clear()
    monkeypatch.setattr(machine(), "has_bfloat16_pairs", request.param)
    yield
    function_of.cache_clear()
    gemm._plan.cache_clear()


@pytest.mark.usefixtures("with_pairs")
@pytest.mark.parametrize("size", SIZES)
def test_products_of_bfloat16(rng: np.random.Generator, size: tuple[int, int, int]) -> None:
    m, k, n = size
    a, b, bias = halves(rng, (m, k)), halves(rng, (k, n)), halves(rng, (n,))
    around = np.full((m + 2, n + 20), 7.0, BFLOAT16)
    for left, right in [*pairs(LAYOUTS, LAYOUTS[:2]), ("rows", "gaps")]:
        x, y = laid_out(a, left), laid_out(b, right)
        for added in (None, bias):
            out = around[1:-1, 3 : 3 + n]
            out[...] = np.nan
            assert gemm_bfloat16.multiply(x, y, out, added)
            check_half(out, x, y, added)
        out[...] = 7  # nothing else was written
        assert (around == 7).all()


@pytest.mark.usefixtures("with_pairs")
def test_stacks_of_bfloat16(rng: np.random.Generator) -> None:
    heads = halves(rng, (3, 50, 4, 16)).swapaxes(1, 2), halves(rng, (3, 50, 4, 16)).swapaxes(1, 2)
    stacks = [
        (heads[0], heads[1].swapaxes(-1, -2)),
        (halves(rng, (3, 4, 50, 33)), halves(rng, (3, 33, 4, 20)).swapaxes(1, 2)),
        (halves(rng, (2, 1, 9, 6)), halves(rng, (5, 6, 70))),
    ]
    for a, b in stacks:
        out = np.full(np.matmul(a.astype(np.float32), b.astype(np.float32)).shape, np.nan, BFLOAT16)
        cpu_products.multiply(a, b, out)
        check_half(out, a, b)


def test_a_deep_product_of_bfloat16_and_nans(rng: np.random.Generator) -> None:
    a, b = halves(rng, (5, 9001)), halves(rng, (9001, 40))
    out = np.empty((5, 40), BFLOAT16)
    cpu_products.multiply(a, b, out)
    check_half(out, a, b)
    a, b = np.ones((20, 41), BFLOAT16), np.ones((41, BLOCK + 3), BFLOAT16)
    a[3, 40], b[40, 5] = np.nan, np.inf
    out = np.empty((20, BLOCK + 3), BFLOAT16)
    cpu_products.multiply(a, b, out)
    wide = out.astype(np.float32)
    assert np.isnan(wide[3]).all() and np.isposinf(np.delete(wide, 3, 0)[:, 5]).all()
    assert (np.delete(np.delete(wide, 3, 0), 5, 1) == 41).all()


# ---- the choice ----------------------------------------------------------------------------------


@pytest.fixture
def chosen_anew(tmp_path: Path) -> Iterator[Callable[..., None]]:
    config = current_config()

    def clear() -> None:
        cpu_products.chosen.cache_clear()
        cpu_products.measured.cache_clear()

    def begin(**changes: Any) -> None:
        set_config(dataclasses.replace(config, **changes))
        clear()

    yield begin
    set_config(config)
    clear()


def test_a_library_is_taken_where_it_is_faster_by_a_twentieth(
    chosen_anew: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cpu_products.found_libraries():
        pytest.skip("NumPy brings no OpenBLAS here")
    chosen_anew(products="auto")
    rates = {"nn": {"oneflow": 50.0, "openblas": 52.0}, "nt": {"oneflow": 50.0, "openblas": 53.0}}
    monkeypatch.setattr(cpu_products, "measured", lambda: rates)
    assert {kind: x.name for kind, x in cpu_products.chosen().items()} == {"nt": "openblas"}
    a, b = np.ones((128, 256), np.float32), np.ones((64, 256), np.float32)
    library = cpu_products._library(a, b.T)
    assert library is not None and library.name == "openblas"
    assert cpu_products._library(a, b.T.copy()) is None
    assert cpu_products._library(a[:4], b.T) is None
    out = np.empty((128, 64), np.float32)
    cpu_products.multiply(a, b.T, out, np.ones(64, np.float32))
    assert (out == 257).all()


def test_a_library_that_is_asked_for_and_not_there_is_named(
    chosen_anew: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_products, "found_libraries", list)
    chosen_anew(products="mkl")
    with pytest.raises(ConfigError, match=r"ONEFLOW_PRODUCTS=mkl: .* found: oneflow"):
        cpu_products.chosen()


def test_every_kind_is_measured(
    chosen_anew: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, bytes] = {}

    class Kept:
        def decided(self, digest: str, make: Callable[[], bytes]) -> bytes:
            return kept.setdefault(digest, make())

    monkeypatch.setattr(cpu_products, "stored", Kept)
    monkeypatch.setattr(cpu_products, "_ROUNDS", 1)
    chosen_anew(products="auto")
    found = cpu_products.measured()
    assert found.keys() == cpu_products._SHAPES.keys()
    names = {"oneflow", *(x.name for x in cpu_products.found_libraries())}
    assert all(set(rates) == names and min(rates.values()) > 0 for rates in found.values())
    (entry,) = kept.values()
    assert json.loads(entry) == found


def _decide(folder: Path, barrier: object, number: int) -> bytes:
    cache = DiskCache(folder, ".o", 1 << 20, "choices", "NOWHERE")
    barrier.wait()  # type: ignore[attr-defined]
    return cache.decided("d" * 64, lambda: bytes([number]))


def test_processes_that_decide_at_once_decide_alike(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        barrier = manager.Barrier(4)
        with context.Pool(4) as pool:
            found = pool.starmap(_decide, [(tmp_path, barrier, i) for i in range(4)])
    assert len(set(found)) == 1
