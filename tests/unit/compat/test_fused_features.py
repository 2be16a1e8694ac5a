"""Functions of recommender models with every argument, in eager mode and in graphs: values and
gradients beside PyTorch's in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import oneflow as flow
from oneflow.core.errors import ArgumentError, ShapeError

C = flow._C
BATCH, SIZE = 3, 4
MODES = pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])


class _Once(flow.nn.Graph):
    """The results of a function of tensors, and the gradients of all of them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, weights: Any, *xs: Any) -> Any:
        return results(self.function, weights, *[x.detach().requires_grad_() for x in xs])


def results(function: Callable[..., Any], weights: Any, *xs: Any) -> list[Any]:
    out = function(*xs)
    (out * weights).sum().backward()
    return [out.detach(), *(x.grad for x in xs)]


def check(
    is_graph: bool, ours: Callable[..., Any], theirs: Callable[..., Any], *shapes: tuple[int, ...]
) -> None:
    """Compare results and gradients of a function of random tensors."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    xs = [torch.tensor(a, requires_grad=True) for a in arrays]
    weights = rng.normal(size=theirs(*xs).shape)
    wanted = results(theirs, torch.tensor(weights), *xs)
    given = [flow.tensor(a, requires_grad=True) for a in arrays]
    scale = flow.tensor(weights)
    found = _Once(ours)(scale, *given) if is_graph else results(ours, scale, *given)
    for w, f in zip(wanted, found, strict=True):
        np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=1e-9, atol=1e-12)


# ---- products of pairs ---------------------------------------------------------------------------


def pairs(
    features: list[Any], concat: Any, itself: bool, padding: int, pooling: str | None
) -> torch.Tensor:
    rows = torch.cat([f[:, None] if f.ndim == 2 else f for f in features], 1)
    which = [(i, j) for i in range(rows.shape[1]) for j in range(i + itself)]
    products = torch.stack([(rows[:, i] * rows[:, j]).sum(-1) for i, j in which], 1)
    if pooling == "sum":
        return products.sum(1, keepdim=True)
    parts = [] if concat is None else [concat]
    return torch.cat([*parts, products, torch.zeros(BATCH, padding)], 1)


@MODES
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("has_concat", [False, True])
@pytest.mark.parametrize("pooling", [None, "none"])
def test_features_interact_in_pairs(
    pooling: str | None, has_concat: bool, itself: bool, padding: int, is_graph: bool
) -> None:
    def ours(a: Any, b: Any, c: Any, concat: Any) -> Any:
        given = concat if has_concat else None
        told = {"output_concat": given, "self_interaction": itself, "output_padding": padding}
        out = C.fused_dot_feature_interaction([a, b, c], pooling=pooling, **told)
        return out if has_concat else out + 0 * concat.sum()

    def theirs(a: Any, b: Any, c: Any, concat: Any) -> Any:
        given = concat if has_concat else None
        out = pairs([a, b, c], given, itself, padding, pooling)
        return out if has_concat else out + 0 * concat.sum()

    check(is_graph, ours, theirs, (BATCH, SIZE), (BATCH, 2, SIZE), (BATCH, 1, SIZE), (BATCH, 5))


@MODES
def test_the_sum_over_pairs_is_one_number_of_a_sample(is_graph: bool) -> None:
    def ours(a: Any, b: Any) -> Any:
        return C.fused_dot_feature_interaction([a, b], pooling="sum")

    def theirs(a: Any, b: Any) -> Any:
        return pairs([a, b], None, False, 0, "sum")

    check(is_graph, ours, theirs, (BATCH, 3, SIZE), (BATCH, SIZE))


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16])
def test_sums_of_products_of_half_floats_are_rounded_once(dtype: Any) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 39, 16))
    x = flow.tensor(rows, dtype=dtype)
    held = x.to(flow.float64).numpy()
    wanted = ((held.sum(1) ** 2 - (held**2).sum(1)) / 2).sum(1, keepdims=True)
    found = C.fused_dot_feature_interaction([x], pooling="sum")
    assert found.dtype is dtype
    step = 2.0**-10 if dtype is flow.float16 else 2.0**-7
    np.testing.assert_allclose(found.to(flow.float64).numpy(), wanted, rtol=step, atol=1e-4)


def test_features_that_do_not_fit_are_refused() -> None:
    x, wide = flow.ones(BATCH, 2, SIZE), flow.ones(BATCH, 2, SIZE + 1)
    with pytest.raises(ArgumentError, match="pooling is 'none' or 'sum', not 'max'"):
        C.fused_dot_feature_interaction([x], pooling="max")
    with pytest.raises(ArgumentError, match="output_padding is -1"):
        C.fused_dot_feature_interaction([x], output_padding=-1)
    for more in ({"output_concat": x[:, 0]}, {"self_interaction": True}, {"output_padding": 1}):
        with pytest.raises(ArgumentError, match="takes neither output_concat nor"):
            C.fused_dot_feature_interaction([x], pooling="sum", **more)
    with pytest.raises(ShapeError):
        C.fused_dot_feature_interaction([x, wide])


# ---- cross networks ------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(("mode", "rows"), [("vector", 1), ("matrix", SIZE)])
def test_cross_layers(mode: str, rows: int, is_graph: bool) -> None:
    def ours(x: Any, weight: Any, x0: Any, bias: Any) -> Any:
        return C.fused_cross_feature_interaction(x, weight, x0, bias, mode)

    def theirs(x: Any, weight: Any, x0: Any, bias: Any) -> Any:
        product = x @ weight.t()
        return x0 * product + bias + x if mode == "vector" else x0 * (product + bias) + x

    check(is_graph, ours, theirs, (BATCH, SIZE), (rows, SIZE), (BATCH, SIZE), (SIZE,))


def test_cross_layers_of_no_mode_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'vector' or 'matrix', got 'tensor'"):
        C.fused_cross_feature_interaction(*[flow.ones(2, 2)] * 3, flow.ones(2), "tensor")


# ---- dense layers --------------------------------------------------------------------------------


def layers(x: Any, *parameters: Any, skips: bool) -> Any:
    pairs_of = list(zip(parameters[::2], parameters[1::2], strict=True))
    for number, (weight, bias) in enumerate(pairs_of):
        x = F.linear(x, weight, bias)
        x = x if skips and number + 1 == len(pairs_of) else x.relu()
    return x


@MODES
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("hidden", [[], [5], [5, 6]], ids=len)
def test_dense_layers_are_those_of_pytorch(hidden: list[int], skips: bool, is_graph: bool) -> None:
    sizes = [SIZE, *hidden, 2]
    shapes = [s for a, b in itertools.pairwise(sizes) for s in ((b, a), (b,))]

    def ours(x: Any, *parameters: Any) -> Any:
        return C.fused_mlp(x, parameters[::2], parameters[1::2], skips)

    def theirs(x: Any, *parameters: Any) -> Any:
        return layers(x, *parameters, skips=skips)

    check(is_graph, ours, theirs, (BATCH, 2, SIZE), *shapes)


@MODES
@pytest.mark.parametrize("skips", [False, True])
def test_gradients_pass_where_dropout_and_relu_let_numbers_pass(
    skips: bool, is_graph: bool
) -> None:
    """The numbers that were dropped are seen in the output of one layer."""
    seen: list[Any] = []

    def ours(x: Any, weight: Any, bias: Any) -> Any:
        return C.fused_matmul_bias_add_relu_dropout(
            x,
            [weight],
            [bias],
            skip_final_activation=skips,
            dropout_rate_list=[0.4],
            generator=flow.Generator().manual_seed(5) if not is_graph else None,
        )

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in ((60, SIZE), (5, SIZE), (5,))]
    weights = rng.normal(size=(60, 5))
    given = [flow.tensor(a, requires_grad=True) for a in arrays]
    scale = flow.tensor(weights)
    found = _Once(ours)(scale, *given) if is_graph else results(ours, scale, *given)
    kept = torch.tensor(found[0].numpy() != 0)
    xs = [torch.tensor(a, requires_grad=True) for a in arrays]

    def theirs(x: Any, weight: Any, bias: Any) -> Any:
        seen.append(layers(x, weight, bias, skips=skips))
        return seen[-1] * kept / 0.6

    wanted = results(theirs, torch.tensor(weights), *xs)
    for w, f in zip(wanted, found, strict=True):
        np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=1e-9, atol=1e-12)
    share = float(kept[seen[0] != 0].double().mean())
    assert 0.45 < share < 0.75  # 150 to 300 numbers, each kept with probability 0.6


def test_modules_of_dense_layers_drop_at_their_own_rates_in_training_alone() -> None:
    module = flow.nn.FusedMLP(4, [50, 60], 40, [1.0, 0.0], 0.5)
    assert module.dropout_rates == (1.0, 0.0, 0.5)
    x = flow.tensor(np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32))
    alike = module(x).numpy()  # of the first layer nothing is left
    biases = [b.detach().numpy() for b in module.biases()]
    weights = [w.detach().numpy() for w in module.weights()]
    last = np.maximum(np.maximum(biases[1], 0) @ weights[2].T + biases[2], 0)
    for row in alike:
        np.testing.assert_allclose(row[row != 0], 2 * last[row != 0], rtol=1e-5)
    module.eval()
    parameters = [torch.tensor(p.detach().numpy()) for p in module.parameters()]
    wanted = layers(torch.tensor(x.numpy()), *parameters, skips=False)
    np.testing.assert_allclose(module(x).detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="3 layers need as many dropout rates"):
        C.fused_matmul_bias_add_relu_dropout(
            x, module.weights(), module.biases(), dropout_rate_list=[0.1]
        )


# ---- area under the curve ------------------------------------------------------------------------


@pytest.mark.parametrize("label_type", ["int64", "int32", "float32", "float64"])
@pytest.mark.parametrize("pred_type", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(50,), (50, 1)], ids=["line", "column"])
def test_roc_auc_is_the_share_of_pairs_in_order(
    label_type: str, pred_type: str, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    label = rng.integers(0, 2, shape).astype(label_type)
    pred = (rng.integers(0, 8, shape) / 8).astype(pred_type)
    ups, downs = pred[label == 1], pred[label == 0]
    pairs_of = [(p > q) + (p == q) / 2 for p in ups for q in downs]
    got = flow.roc_auc_score(flow.tensor(label), flow.tensor(pred))
    assert got.shape == (1,) and got.dtype is flow.float32
    assert got.item() == pytest.approx(np.mean(pairs_of), abs=1e-6)


def test_roc_auc_at_its_ends_and_of_one_kind() -> None:
    label, pred = flow.tensor([0, 0, 1, 1]), flow.tensor([0.1, 0.2, 0.3, 0.4])
    assert flow.roc_auc_score(label, pred).item() == 1.0
    assert flow.roc_auc_score(1 - label, pred).item() == 0.0
    assert flow.roc_auc_score(label, flow.ones(4)).item() == 0.5
    assert np.isnan(flow.roc_auc_score(flow.ones(4), pred).item())
