"""Values and gradients against PyTorch, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.nn.functional as F
from tests.unit.ops.activation_samples import ACTIVATIONS

TF = torch.nn.functional


def r(rng: np.random.Generator, *shape: int) -> Any:
    return rng.random(shape) * 2 - 0.5


def same(ours: Any, theirs: Any) -> None:
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-8)


def check(
    rng: np.random.Generator, ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any
) -> None:
    """Same values, and the same gradients for the same random output gradient."""
    xs = [flow.tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, t = ours(*xs), theirs(*ts)
    same(y, t)
    weight = np.asarray(r(rng, *t.shape))
    y.backward(flow.tensor(weight))
    t.backward(torch.tensor(weight))
    for x, other in zip(xs, ts, strict=True):
        same(x.grad, other.grad)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        pytest.param(name, attrs, id=f"{name}-{attrs}" if attrs else name)
        for name, attrs, _ in ACTIVATIONS
        if hasattr(TF, name)
    ],
)
def test_activation(name: str, attrs: dict[str, Any], rng: np.random.Generator) -> None:
    theirs = lambda x: getattr(TF, name)(x, *attrs.values())  # noqa: E731
    if name == "gelu":
        theirs = lambda x: TF.gelu(x, **attrs)  # noqa: E731
    check(rng, lambda x: getattr(F, name)(x, *attrs.values()), theirs, r(rng, 3, 4) * 4 - 2)


LAYERS: dict[str, tuple[Any, ...]] = {
    "linear": (F.linear, TF.linear, (3, 4), (5, 4), (5,)),
    "linear_without_bias": (F.linear, TF.linear, (2, 3, 4), (5, 4)),
    "conv1d": (F.conv1d, TF.conv1d, (2, 3, 7), (4, 3, 3), (4,)),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, 2, 1),
        lambda x, w, b: TF.conv2d(x, w, b, 2, 1),
        (2, 3, 7, 7),
        (4, 3, 3, 3),
        (4,),
    ),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, 2, 1, 1),
        (2, 3, 5, 5),
        (3, 4, 3, 3),
        (4,),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), lambda x: TF.max_pool2d(x, 2), (2, 3, 6, 6)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), lambda x: TF.avg_pool2d(x, 2), (2, 3, 6, 6)),
    "adaptive": (
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: TF.adaptive_avg_pool2d(x, 3),
        (2, 3, 7, 5),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        lambda x, w, b: TF.layer_norm(x, (4,), w, b),
        (3, 4),
        (4,),
        (4,),
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: TF.group_norm(x, 2, w, b),
        (3, 4, 5),
        (4,),
        (4,),
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: TF.batch_norm(x, None, None, w, b, True),
        (3, 4, 5),
        (4,),
        (4,),
    ),
    "softmax": (lambda x: F.softmax(x, 1), lambda x: TF.softmax(x, 1), (3, 4, 2)),
    "normalize": (F.normalize, TF.normalize, (3, 4)),
    "cosine": (F.cosine_similarity, TF.cosine_similarity, (3, 4), (3, 4)),
    "mse": (F.mse_loss, TF.mse_loss, (3, 4), (3, 4)),
    "smooth_l1": (F.smooth_l1_loss, TF.smooth_l1_loss, (3, 4), (3, 4)),
    "sort_cumsum": (
        lambda x: x.sort(1)[0].cumsum(0),
        lambda x: x.sort(1)[0].cumsum(0),
        (3, 4),
    ),
    "max": (lambda x: x.max(1)[0], lambda x: x.max(1)[0], (3, 4)),
    "var": (lambda x: x.var(1), lambda x: x.var(1), (3, 4)),
    "norm": (lambda x: x.norm(), lambda x: x.norm(), (3, 4)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: x.logsumexp(-1), (3, 4)),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1), (3, 4)),
    "index": (
        lambda a, b: a[:, 1] * b[0] + a[:, [0, 2]].sum(1),
        lambda a, b: a[:, 1] * b[0] + a[:, [0, 2]].sum(1),
        (3, 4),
        (2, 3),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_and_its_gradients(name: str, rng: np.random.Generator) -> None:
    ours, theirs, *shapes = LAYERS[name]
    check(rng, ours, theirs, *(r(rng, *s) for s in shapes))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_with_an_ignored_label(
    smoothing: float, weighted: bool, reduction: str, rng: np.random.Generator
) -> None:
    labels, weight = np.array([0, 3, -100]), np.abs(r(rng, 4)) + 0.1
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    check(
        rng,
        lambda x: F.cross_entropy(
            x, flow.tensor(labels), flow.tensor(weight) if weighted else None, **options
        ),
        lambda x: TF.cross_entropy(
            x, torch.tensor(labels), torch.tensor(weight) if weighted else None, **options
        ),
        r(rng, 3, 4),
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad(mode: str, rng: np.random.Generator) -> None:
    check(
        rng,
        lambda x: F.pad(x, (1, 2, 2, 1), mode),
        lambda x: TF.pad(x, (1, 2, 2, 1), mode),
        r(rng, 2, 3, 5, 4),
    )


@pytest.mark.parametrize(
    "options",
    [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}],
)
@pytest.mark.parametrize("target", [{"scale_factor": 2}, {"size": (3, 9)}])
def test_interpolate(
    options: dict[str, Any], target: dict[str, Any], rng: np.random.Generator
) -> None:
    both = {**options, **target}
    check(
        rng,
        lambda x: F.interpolate(x, **both),
        lambda x: TF.interpolate(x, **both),
        r(rng, 2, 3, 5, 7),
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
        ("...ij,kj->...ik", ((2, 3, 4), (5, 4))),
        ("ii->i", ((3, 3),)),
        ("i,j->ij", ((3,), (4,))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
        ("ij->", ((2, 3),)),
        ("ij,jk", ((2, 3), (3, 4))),
    ],
)
def test_einsum(
    equation: str, shapes: tuple[tuple[int, ...], ...], rng: np.random.Generator
) -> None:
    check(
        rng,
        lambda *xs: flow.einsum(equation, *xs),
        lambda *xs: torch.einsum(equation, *xs),
        *(r(rng, *s) for s in shapes),
    )


def test_promotion_is_torchs() -> None:
    kinds = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")
    for a in kinds:
        for b in kinds:
            ours = flow.ones(2, dtype=getattr(flow, a)) + flow.ones(2, dtype=getattr(flow, b))
            theirs = torch.ones(2, dtype=getattr(torch, a)) + torch.ones(2, dtype=getattr(torch, b))
            assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        for number in (2, 2.5):
            ours = flow.ones(2, dtype=getattr(flow, a)) * number
            theirs = torch.ones(2, dtype=getattr(torch, a)) * number
            assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    "name", ["sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "all", "any", "var"]
)
def test_reductions_take_the_names_of_numpy(name: str, rng: np.random.Generator) -> None:
    x = r(rng, 3, 4)
    ours = getattr(flow.tensor(x), name)(axis=1, keepdims=True)
    theirs = getattr(torch.tensor(x), name)(dim=1, keepdim=True)
    if name in ("max", "min"):
        ours, theirs = ours.values, theirs.values
    same(ours, theirs)
    with pytest.raises(TypeError, match="dim and axis, which mean the same"):
        getattr(flow, name)(flow.tensor(x), dim=0, axis=0)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float64"])
@pytest.mark.parametrize(("start", "end"), [(-3.7, 50.2), (4.3, 1.9), (2, 2), (9, -9)])
@pytest.mark.parametrize("steps", [1, 2, 4, 50])
def test_ends_of_spaces_are_numbers_of_their_dtype(
    dtype: str, start: float, end: float, steps: int
) -> None:
    ours, theirs = getattr(flow, dtype), getattr(torch, dtype)
    got = flow.linspace(start, end, steps, dtype=ours).numpy()
    want = torch.linspace(start, end, steps, dtype=theirs).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float32" else 1e-13)
    got = flow.logspace(abs(start) / 10, end / 10, steps, 2.0, dtype=ours).numpy()
    want = torch.logspace(abs(start) / 10, end / 10, steps, 2.0, dtype=theirs).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float32" else 1e-13)
