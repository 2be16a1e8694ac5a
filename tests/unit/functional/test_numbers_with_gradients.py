"""Tensors that require a gradient where numbers are wanted: refused, as by PyTorch, or derived."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import CallError, OneFlowError
from tests.parity.spoiled import Sample, samples

NO_NUMBERS = {
    "_check_is_size": "a condition",
    "_foreach_lerp_": "returns nothing: what it writes has the gradient",
    "as_strided_copy": "places in memory, in the arguments of as_strided",
    "unfold_copy": "the same, of unfold",
    "normal": "the third is a size",
    "sym_float": "gives the number",
    "sym_int": "gives the number",
    "sym_ite": "gives one of two things",
    "sym_max": "compares two numbers",
    "sym_min": "compares two numbers",
    "tensor": "copies data, as in PyTorch",
    "tensordot": "takes positions in a tensor",
}
"""Functions that may drop the gradient of a tensor given for a number, each with the reason."""


def places_of(sample: Sample) -> Iterator[tuple[int | str, float]]:
    """Yield the places where a call has numbers, or could have others than the defaults."""
    yield from ((i, v) for i, v in enumerate(sample.args) if type(v) in (int, float))
    yield from ((k, v) for k, v in sample.keywords.items() if type(v) in (int, float))
    parameters = inspect.signature(sample.function).parameters
    given = {*sample.keywords, *list(parameters)[: len(sample.args)]}
    for name, p in parameters.items():
        if name not in given and type(p.default) in (int, float):
            yield name, p.default


def tensors_in(value: Any) -> list[Any]:
    if isinstance(value, flow.Tensor):
        return [value]
    return [x for v in value for x in tensors_in(v)] if isinstance(value, (list, tuple)) else []


def is_dropped(sample: Sample, place: int | str, number: flow.Tensor) -> bool:
    """Whether a call takes the number of a tensor and gives it no gradient."""
    args, keywords = sample.args, sample.keywords
    if isinstance(place, int):
        args = (*args[:place], number, *args[place + 1 :])
    else:
        keywords = {**keywords, place: number}
    try:
        made = sample.function(*args, **keywords)
    except (OneFlowError, TypeError, ValueError, RuntimeError, IndexError):
        return False
    results = [x for x in tensors_in(made) if x.requires_grad]
    if not results:
        return True
    found = flow.autograd.grad(
        results, [number], [flow.ones_like(x) for x in results], allow_unused=True
    )
    return found[0] is None


def test_no_function_drops_the_gradient_of_a_number() -> None:
    dropped, asked = set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, sample in samples().items():
            for place, value in places_of(sample):
                for one in (float(value), 2.5):  # a default may be left out, as alpha=1 is
                    asked += 1
                    if is_dropped(sample, place, flow.tensor(one).requires_grad_()):
                        dropped.add(name)
    assert dropped <= set(NO_NUMBERS)
    assert asked > 600


X = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)

DERIVED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "normalize": lambda m, x, n: m.nn.functional.normalize(x, dim=1, eps=n * 100),
    "alpha": lambda m, x, n: m.nn.functional.local_response_norm(x, 2, alpha=n),
    "beta": lambda m, x, n: m.nn.functional.local_response_norm(x, 2, alpha=1.0, beta=n),
    "k": lambda m, x, n: m.nn.functional.local_response_norm(x, 2, k=n),
    "lp_pool1d": lambda m, x, n: m.nn.functional.lp_pool1d(x.abs() + 1, n, 2),
    "masked_fill": lambda m, x, n: x.masked_fill(x > 0, n),
    "index_fill": lambda m, x, n: x.index_fill(1, m.tensor([0, 2]), n),
    "lerp": lambda m, x, n: m.lerp(x, x * 2, n),
    "clamp": lambda m, x, n: m.clamp(x, max=n),
    "where": lambda m, x, n: m.where(x > 0, x, n),
    "LocalResponseNorm": lambda m, x, n: m.nn.LocalResponseNorm(2, k=n)(x),
}


@pytest.mark.parametrize("name", DERIVED)
def test_gradients_reach_tensors_that_pytorch_takes(name: str) -> None:
    function = DERIVED[name]

    class Program(nn.Graph):
        def build(self, x: Any, n: Any) -> Any:
            n = n.detach().requires_grad_()
            return flow.autograd.grad(function(flow, x, n).square().sum(), n)[0]

    n = torch.tensor(0.75, requires_grad=True)
    x = torch.tensor(X)
    (wanted,) = torch.autograd.grad(function(torch, x, n).square().sum(), n)
    mine = flow.tensor(0.75).requires_grad_()
    x = flow.tensor(X)
    (got,) = flow.autograd.grad(function(flow, x, mine).square().sum(), mine)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), 1e-4)
    np.testing.assert_allclose(Program()(x, flow.tensor(0.75)).numpy(), wanted.numpy(), 1e-4)


REFUSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, x, n: m.add(x, x, alpha=n),
    "add_": lambda m, x, n: (x * 1).add_(x, alpha=n),
    "sub": lambda m, x, n: x.sub(x, alpha=n),
    "addcmul": lambda m, x, n: x.addcmul(x, x, value=n),
    "addcdiv": lambda m, x, n: m.addcdiv(x, x, x, value=n),
    "addmm": lambda m, x, n: m.addmm(x[0], x[0] @ x[0].T, x[0], alpha=n),
    "addmm beta": lambda m, x, n: m.addmm(x[0], x[0] @ x[0].T, x[0], beta=n),
    "huber_loss": lambda m, x, n: m.nn.functional.huber_loss(x, x * 2, delta=n),
    "smooth_l1_loss": lambda m, x, n: m.nn.functional.smooth_l1_loss(x, x * 2, beta=n),
    "leaky_relu": lambda m, x, n: m.nn.functional.leaky_relu(x, n),
    "elu": lambda m, x, n: m.nn.functional.elu(x, n),
    "softplus": lambda m, x, n: m.nn.functional.softplus(x, n),
    "full": lambda m, x, n: m.full((2,), n),
    "full_like": lambda m, x, n: m.full_like(x, n),
    "arange": lambda m, x, n: m.arange(0, n),
    "pad": lambda m, x, n: m.nn.functional.pad(x, (1, 1), value=n),
    "dropout": lambda m, x, n: m.nn.functional.dropout(x, n),
    "norm": lambda m, x, n: m.norm(x, n),
    "vector_norm": lambda m, x, n: m.linalg.vector_norm(x, n),
    "cdist": lambda m, x, n: m.cdist(x, x, p=n),
    "pairwise_distance": lambda m, x, n: m.nn.functional.pairwise_distance(x, x, p=n),
    "layer_norm": lambda m, x, n: m.nn.functional.layer_norm(x, (5,), eps=n),
    "group_norm": lambda m, x, n: m.nn.functional.group_norm(x, 2, eps=n),
    "margin_ranking_loss": lambda m, x, n: m.nn.functional.margin_ranking_loss(
        x[0], x[1], x[0].sign(), margin=n
    ),
    "std": lambda m, x, n: m.std(x, 0, correction=n),
    "topk": lambda m, x, n: m.topk(x, n),
    "Dropout": lambda m, x, n: m.nn.Dropout(n)(x),
    "HuberLoss": lambda m, x, n: m.nn.HuberLoss(delta=n)(x, x * 2),
    "LayerNorm": lambda m, x, n: m.nn.LayerNorm(5, eps=n)(x),
    "LeakyReLU": lambda m, x, n: m.nn.LeakyReLU(n)(x),
    "TripletMarginLoss": lambda m, x, n: m.nn.TripletMarginLoss(margin=n)(x[0], x[1], x[0] * 2),
    "Threshold": lambda m, x, n: m.nn.Threshold(n, 2.0)(x),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("number", [0.5, 1.0])
def test_numbers_may_not_require_gradients(name: str, number: float) -> None:
    function = REFUSED[name]

    class Program(nn.Graph):
        def build(self, x: Any, n: Any) -> Any:
            return function(flow, x, n.detach().requires_grad_())

    with pytest.raises(TypeError):
        function(torch, torch.tensor(X), torch.tensor(number, requires_grad=True))
    with pytest.raises(CallError, match="must be a number, not a tensor that requires a gradient"):
        function(flow, flow.tensor(X), flow.tensor(number, requires_grad=True))
    with pytest.raises(OneFlowError, match=r"requires a gradient|a condition needs"):
        Program()(flow.tensor(X), flow.tensor(number))


@pytest.mark.parametrize("name", [n for n in REFUSED if n not in ("topk", "Dropout", "dropout")])
def test_tensors_without_a_gradient_count_as_numbers(name: str) -> None:
    function = REFUSED[name]
    number = 1.0 if name == "std" else 0.5
    wanted = function(flow, flow.tensor(X), number)
    got = function(flow, flow.tensor(X), flow.tensor(number))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.numpy(), wanted.numpy())
