"""The fused CPU kernels at sizes where they are taken: equal to the generic ones, and sound at the
edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oneflow.core.rng import Rng
from oneflow.kernels import registry
from oneflow.kernels.native.scatter import add_rows
from oneflow.kernels.registry import FUSED_LEAST as LEAST
from oneflow.kernels.threads import LEAST_SHARED

from .run_kernel import garbage, run, type_of

RANDOM = np.random.default_rng(0)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def generic(name: str) -> int:
    """The variant that is the plain NumPy kernel."""
    variants = registry.variants(name, "cpu")
    return next(i for i, v in enumerate(variants) if not v.min_elements and not v.dtypes)


X, D = normal(RANDOM, 40, 30, 20), normal(RANDOM, 40, 30, 20)
LABELS = RANDOM.integers(0, 37, 500)
LABELS[::7] = -100
_, MEAN, INV = run("layer_norm", X, begin_axis=1, eps=1e-5)
LOGITS = normal(RANDOM, 500, 37)
LSE = np.log(np.exp(LOGITS).sum(axis=1))
LR, STEP = np.array(0.1), np.array(3)
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("softmax", (X,), {}),
    ("softmax_grad", (D, np.abs(X)), {"scale": 0.5}),
    ("log_softmax", (X,), {}),
    ("log_softmax_grad", (D, -np.abs(X)), {}),
    ("causal_softmax", (normal(RANDOM, 6, 4, 30, 35),), {"scale": 0.3}),
    ("causal_softmax", (normal(RANDOM, 6, 130, 130),), {"scale": 0.3}),
    ("sparse_softmax_cross_entropy", (LOGITS, LABELS), {"label_smoothing": 0.1}),
    ("sparse_softmax_cross_entropy_grad", (normal(RANDOM, 500), LOGITS, LABELS, LSE), {}),
    (
        "layer_norm",
        (X, normal(RANDOM, 30, 20), normal(RANDOM, 30, 20)),
        {"begin_axis": 1, "eps": 1e-5},
    ),
    ("layer_norm_grad", (D, X, MEAN, INV, normal(RANDOM, 30, 20)), {"begin_axis": 1}),
    ("layer_norm_grad", (D, X, MEAN, INV), {"begin_axis": 1}),
    ("gelu", (X * 3,), {"approximate": "none"}),
    ("gelu_grad", (D, X * 3), {"approximate": "none"}),
    ("gelu", (X * 3,), {"approximate": "tanh"}),
    ("gelu_grad", (D, X * 3), {"approximate": "tanh"}),
    ("sgd_update", (X, D, LR), {"weight_decay": 0.1, "maximize": True}),
    ("momentum_update", (X, D, D * 2, LR), {"momentum": 0.9, "nesterov": True}),
    (
        "adam_update",
        (X, D, D * 2, D * D, LR, STEP),
        {
            "beta1": 0.9,
            "beta2": 0.99,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "decoupled": True,
            "do_bias_correction": True,
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_fused_equals_generic(case: Any) -> None:
    name, inputs, attrs = case
    assert max(x.size for x in inputs) >= LEAST
    fused = run(name, *(x.copy() for x in inputs), **attrs)
    plain = run(name, *(x.copy() for x in inputs), which=generic(name), **attrs)
    for got, want in zip(fused, plain, strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=5e-6)


def test_strided_inputs_give_the_same() -> None:
    strided = X.transpose(1, 0, 2)
    got = run("softmax", strided)[0]
    np.testing.assert_array_equal(got, run("softmax", np.ascontiguousarray(strided))[0])


def test_a_nan_spoils_its_row_and_no_other(rng: np.random.Generator) -> None:
    x = normal(rng, 1000, 30)
    x[3, 7] = np.nan
    for name in ("softmax", "log_softmax"):
        out = run(name, x)[0]
        assert np.isnan(out[3]).all()
        assert np.isfinite(np.delete(out, 3, axis=0)).all()
    loss, lse = run("sparse_softmax_cross_entropy", x, np.zeros(1000, np.int64))
    assert np.isnan(loss[3]) and np.isnan(lse[3]) and np.isfinite(np.delete(loss, 3)).all()


def test_masked_minus_infinity_gives_zero(rng: np.random.Generator) -> None:
    x = normal(rng, 1000, 30)
    x[:, 10:] = -np.inf
    out = run("softmax", x)[0]
    assert (out[:, 10:] == 0).all()
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=1e-5)


def test_a_future_nan_does_not_reach_the_past(rng: np.random.Generator) -> None:
    x = normal(rng, 20, 32, 32)
    x[:, :, 31] = np.nan
    out = run("causal_softmax", x, scale=1.0)[0]
    assert np.isfinite(out[:, :31]).all() and np.isnan(out[:, 31]).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30, -1e30])
def test_gelu_at_the_edges(value: float) -> None:
    x = np.full(LEAST, value, np.float32)
    with np.errstate(invalid="ignore"):
        out = run("gelu", x, approximate="tanh")[0]
    want = value if value > 0 or np.isnan(value) else (np.nan if np.isinf(value) else 0.0)
    np.testing.assert_array_equal(out, np.full(LEAST, want, np.float32))


def _dropout(x: Any, rng: Rng, which: int) -> Any:
    kernel = registry.variants("dropout", "cpu")[which]
    out = np.empty_like(x)
    types, attrs = (type_of(x),), {"p": 0.4, "seed": rng.seed}
    spare = [
        garbage(t.shape, t.dtype.np)
        for t in (kernel.workspace(types, attrs) if kernel.workspace else ())
    ]
    kernel.bound(types, attrs)(np, out, x, *spare, **attrs, rng=rng)
    return out


@pytest.mark.parametrize(
    "shape, starts, whole",
    [
        ((200, 130), (0, 0), (200, 130)),
        ((100, 130), (100, 0), (200, 130)),
        ((200, 65), (0, 65), (200, 130)),
        ((7, 1, 50, 60), (0, 3, 5, 0), (7, 4, 60, 61)),
        ((20000,), (7,), (30000,)),
    ],
)
def test_dropout_masks_are_bit_identical_to_numpy(
    shape: Any, starts: Any, whole: Any, rng: np.random.Generator
) -> None:
    x = normal(rng, *shape)
    rng = Rng(0x1234567890ABCDEF, whole, starts)
    plain = generic("dropout")
    np.testing.assert_array_equal(_dropout(x, rng, 1 - plain), _dropout(x, rng, plain))


def norm_gradients(d: Any, x: Any, gamma: Any) -> tuple[list[Any], list[Any]]:
    """The compiled gradients of layer norm, and NumPy's in float64."""
    mean, inv = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    found = run("layer_norm_grad", d, x, mean, inv, gamma, begin_axis=1)
    d, x, gamma, mean, inv = (a.astype(np.float64) for a in (d, x, gamma, mean, inv))
    hat = (x - mean[:, None]) * inv[:, None]
    g = d * gamma
    along = (g * hat).mean(1, keepdims=True)
    d_x = (g - g.mean(1, keepdims=True) - hat * along) * inv[:, None]
    return list(found), [d_x, (d * hat).sum(0), d.sum(0)]


@pytest.mark.parametrize("shape", [(40, 33), (1100, 500)])
def test_sums_over_rows_are_right_and_do_not_depend_on_threads(
    shape: tuple[int, int], rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    d, x, gamma = normal(rng, *shape), normal(rng, *shape), normal(rng, shape[1])
    results = []
    for threads in (1, 2, 3):
        use_threads(threads)
        found, wanted = norm_gradients(d, x, gamma)
        results.append(found)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("beyond", [16, 7])
def test_threads_share_a_long_row_in_whole_vectors(
    beyond: int, rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    x = normal(rng, LEAST_SHARED + beyond)
    use_threads(3)
    np.testing.assert_allclose(run("silu", x)[0], x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 33), (1100, 500)])
def test_sums_over_rows_of_arrays_that_are_not_contiguous(
    shape: tuple[int, int], rng: np.random.Generator
) -> None:
    d, x = normal(rng, shape[0] * 2, shape[1]), normal(rng, *reversed(shape))
    found, wanted = norm_gradients(d[::2], x.T, normal(rng, shape[1]))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_sums_over_rows_of_half_precision_are_added_in_float32(rng: np.random.Generator) -> None:
    d, x = (normal(rng, 3000, 4).astype(np.float16) for _ in range(2))
    found, wanted = norm_gradients(d + np.float16(1), x, normal(rng, 4).astype(np.float16))
    assert found[2].dtype == np.float16
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("before", "after"), [(1, 37), (3, 1), (2, 40)])
def test_rows_at_indices_are_added_in_threads_too(
    dtype: Any, before: int, after: int, rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    use_threads(2, least=1)
    d = rng.standard_normal((before, 50, after)).astype(dtype)
    index = rng.integers(-3, 12, 50)
    got = rng.standard_normal((before, 7, after)).astype(dtype)
    want = got.copy()
    add_rows(got, d, index, 2)
    for k, row in enumerate(index - 2):
        if 0 <= row < 7:
            want[:, row] += d[:, k]
    np.testing.assert_array_equal(got, want)
