"""Softmax, norms and cross entropy from their formulas: every variant beside PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oneflow.kernels import registry

from .run_kernel import run

SHAPES = [(3000, 1), (700, 3), (200, 17), (65, 64), (33, 100), (5, 5000), (1, 4099), (0, 5), (4, 0)]
TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}


def wide(x: Any) -> Any:
    return torch.from_numpy(np.asarray(x)).double()


def variants(name: str) -> range:
    return range(len(registry.variants(name, "cpu")))


def close(got: Any, want: Any, dtype: str) -> None:
    limit = TOLERANCES[dtype]
    np.testing.assert_allclose(got, want.numpy(), rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_its_gradient(
    shape: tuple[int, int], dtype: str, rng: np.random.Generator
) -> None:
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    d = rng.standard_normal(shape).astype(dtype)
    for name, function in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        there = wide(x).requires_grad_()
        want = function(there, -1)
        want.backward(wide(d))
        assert there.grad is not None
        for which in variants(name):
            (out,) = run(name, x, which=which)
            close(out, want.detach(), dtype)
            (d_x,) = run(f"{name}_grad", d, out, which=which)
            if dtype != "float16":  # half the digits of `out` are gone already
                close(d_x, there.grad, dtype)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows_without_a_finite_largest_are_nan_and_no_others(
    name: str, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((300, 37)).astype(np.float32)
    x[3], x[5, 7], x[8, 9] = -np.inf, np.inf, np.nan
    x[11, 4:] = -np.inf
    want = getattr(torch, name)(torch.from_numpy(x), -1).numpy()
    for which in variants(name):
        with np.errstate(invalid="ignore", divide="ignore"):
            (out,) = run(name, x, which=which)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("begin_axis", [1, 2, 3])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_norms_over_any_number_of_dims(
    begin_axis: int, dtype: str, rng: np.random.Generator
) -> None:
    x = (rng.standard_normal((4, 5, 6, 30)) * 2 + 1).astype(dtype)
    own = x.shape[begin_axis:]
    gamma, beta = (rng.standard_normal(own).astype(dtype) for _ in range(2))
    weights = [(), (gamma,), (gamma, beta)]
    for affine in weights:
        want = F.layer_norm(wide(x), own, *map(wide, affine), eps=1e-5)
        for which in variants("layer_norm"):
            made = run("layer_norm", x, *affine, begin_axis=begin_axis, eps=1e-5, which=which)
            close(made[0], want, dtype)
            dims = tuple(range(begin_axis, 4))
            close(made[1], wide(x).mean(dims), dtype)
            assert made[1].dtype == (np.float64 if dtype == "float64" else np.float32)
    for affine in weights[:2]:
        want = F.rms_norm(wide(x), own, *map(wide, affine), eps=1e-6)
        for which in variants("rms_norm"):
            y, _ = run("rms_norm", x, *affine, begin_axis=begin_axis, eps=1e-6, which=which)
            close(y, want, dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("labels_dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_cross_entropy_and_its_gradient(
    dtype: str, labels_dtype: str, smoothing: float, rng: np.random.Generator
) -> None:
    logits = (rng.standard_normal((150, 37)) * 3).astype(dtype)
    labels = rng.integers(0, 37, 150).astype(labels_dtype)
    labels[::7] = 5
    d = rng.standard_normal(150).astype(dtype)
    attrs = {"ignore_index": 5, "label_smoothing": smoothing}
    there = wide(logits).requires_grad_()
    targets = torch.from_numpy(labels.astype(np.int64))
    want = F.cross_entropy(there, targets, reduction="none", **attrs)  # type: ignore[arg-type]
    want.backward(wide(d))
    assert there.grad is not None
    for which in variants("sparse_softmax_cross_entropy"):
        loss, lse = run("sparse_softmax_cross_entropy", logits, labels, which=which, **attrs)
        close(loss, want.detach(), dtype)
        (d_x,) = run("sparse_softmax_cross_entropy_grad", d, logits, labels, lse, **attrs)
        assert (d_x[::7] == 0).all()
        if dtype != "float16":
            close(d_x, there.grad, dtype)


def test_rows_that_are_not_contiguous(rng: np.random.Generator) -> None:
    whole = rng.standard_normal((8, 40, 90)).astype(np.float32)
    for x in (whole.transpose(1, 0, 2), whole[:, ::2], whole[..., ::3], whole.transpose(0, 2, 1)):
        want = F.softmax(wide(x.copy()), -1)
        for which in variants("softmax"):
            close(run("softmax", x, which=which)[0], want, "float32")
        made = run("layer_norm", x, begin_axis=1, eps=1e-5)
        close(made[0], F.layer_norm(wide(x.copy()), x.shape[1:]), "float32")


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4)])
def test_sums_over_rows_of_an_operand_with_fewer_dims(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal(shape)
    for variant in variants("map"):
        (out,) = run("map", a, b, which=variant, expression="total(b * 0.5) * a + b")
        want = (b * 0.5).sum(-1, keepdims=True) * a + b
        np.testing.assert_allclose(out, want, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4, 40, 40), (2, 9, 70), (2, 1, 300), (1, 50, 50), (5, 6, 6)])
def test_causal_softmax_sees_what_came_before(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    whole = rng.standard_normal((2, *shape)).astype(np.float32)
    rows, columns = shape[-2:]
    future = torch.ones(rows, columns).triu(columns - rows + 1).bool()
    for x in (whole[0], whole[:, ..., ::1][1], whole.swapaxes(0, -3)):
        want = (wide(x.copy()) * 0.3).masked_fill(future, -torch.inf).softmax(-1)
        for which in variants("causal_softmax"):
            close(run("causal_softmax", x, which=which, scale=0.3)[0], want, "float32")
