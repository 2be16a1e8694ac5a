"""`scaled_dot_product_attention`, as one op and as several, gives PyTorch's values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.config import current_config, set_config

SHAPES = [(2, 4, 5, 3), (2, 4, 6, 3), (2, 4, 6, 2)]
SHARED = [(2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2)]
SEEN = np.random.default_rng(0).random((5, 6)) < 0.6
SEEN[2] = False
SUMMAND = np.where(SEEN, np.random.default_rng(1).normal(size=(5, 6)), -np.inf)
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "plain": (SHAPES, {}),
    "scaled": (SHAPES, {"scale": 0.3}),
    "causal": (SHAPES, {"is_causal": True}),
    "shared heads": (SHARED, {"is_causal": True, "enable_gqa": True}),
    "bools": (SHAPES, {"attn_mask": SEEN}),
    "summands": (SHAPES, {"attn_mask": SUMMAND}),
    "one row of bools": (SHARED, {"attn_mask": SEEN[:1], "enable_gqa": True}),
    "matrices": ([s[-2:] for s in SHAPES], {"is_causal": True}),
    "values broadcast": ([(2, 4, 5, 3), (1, 4, 6, 3), (1, 4, 6, 2)], {}),
}


@pytest.fixture(params=["fused", "scores"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Attention as one op, or as several."""
    before = current_config()
    set_config(replace(before, attention=request.param))
    yield request.param
    set_config(before)


def _run(library: Any, case: str) -> tuple[Any, list[Any]]:
    shapes, options = CASES[case]
    given = [
        library.tensor(np.random.default_rng(i).normal(size=s), requires_grad=True)
        for i, s in enumerate(shapes)
    ]
    made = {k: library.tensor(x) if isinstance(x, np.ndarray) else x for k, x in options.items()}
    return library.nn.functional.scaled_dot_product_attention(*given, **made), given


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_torch(case: str, way: str) -> None:
    found = []
    for library in (flow, torch):
        out, given = _run(library, case)
        (out * out).sum().backward()
        found.append([x.detach().numpy() for x in (out, *(g.grad for g in given))])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("case", ["causal", "bools", "summands", "shared heads"])
def test_second_derivatives_are_those_of_torch(case: str, way: str) -> None:
    found = []
    for library in (flow, torch):
        out, given = _run(library, case)
        first = library.autograd.grad((out * out).sum(), given, create_graph=True)
        sum((g * g).sum() for g in first).backward()
        found.append([g.grad.numpy() for g in given])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-10)


def test_gradient_of_a_summand(way: str) -> None:
    found = []
    for library in (flow, torch):
        q, k, v = (library.tensor(np.random.default_rng(i).normal(size=s)) for i, s in
                   enumerate(SHAPES))  # fmt: skip
        mask = library.tensor(np.random.default_rng(9).normal(size=(4, 1, 6)), requires_grad=True)
        attend = library.nn.functional.scaled_dot_product_attention
        (attend(q, k, v, mask) ** 2).sum().backward()
        found.append(mask.grad.numpy())
    np.testing.assert_allclose(*found, atol=1e-12)


def _ops_of_a_step(case: str) -> list[str]:
    class Step(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def build(self, q: Any, k: Any, v: Any) -> Any:
            attend = flow.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, **CASES[case][1])

    step = Step()
    step(*(flow.ones(*s) for s in CASES[case][0]))
    return [n.op for n in step._spec.plans.now.job.bound.plan.graph]


def test_a_graph_takes_the_way_that_is_asked_for(way: str) -> None:
    ops = _ops_of_a_step("causal")
    assert ("attention" in ops) == (way == "fused") == ("matmul" not in ops)
