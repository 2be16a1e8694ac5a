"""Every public name with a counterpart in PyTorch is compared with it, edges included."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.api import FLOAT, INTEGER, KEEP, ROWS, SAME_TYPE, Row

from .public_samples import NOT_COMPARED, SAMPLES, Sample
from .values import compare, to_flow

INF, NAN = float("inf"), float("nan")


def covered_by_torch() -> set[str]:
    """Names for which PyTorch's own tables have samples; `operators.py` and its like run them."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    names: set[str] = set()
    for entry in op_db:
        names |= {entry.name.split(".")[-1], *(alias.name for alias in entry.aliases)}
    names |= {entry.module_cls.__name__ for entry in module_db}
    return names | {entry.optim_cls.__name__ for entry in optim_db}


def test_every_public_name_is_compared_or_says_why_not() -> None:
    known = covered_by_torch() | SAMPLES.keys() | NOT_COMPARED.keys()
    lacking = [
        row.names[0]
        for row in ROWS
        if row.torch is not None
        and not any(name in known or name.rstrip("_") in known for name in row.names)
    ]
    assert not lacking, f"no sample compares these with PyTorch: {lacking}"
    offered = {name for row in ROWS for name in row.names}
    assert offered >= SAMPLES.keys() | NOT_COMPARED.keys(), "samples of names that are gone"


@pytest.mark.parametrize(
    "sample",
    [pytest.param(s, id=f"{n}-{i}") for n, found in SAMPLES.items() for i, s in enumerate(found)],
)
def test_a_name_does_what_it_does_in_torch(sample: Sample) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = sample(torch)
    got = sample(flow)
    compare(wanted, got)
    if isinstance(wanted, str):
        assert wanted == got


# ---- elementwise functions at their edges --------------------------------------------------------

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 1e-40, 1e30, INF, -INF, NAN]


def unary_inputs(row: Row) -> Iterator[torch.Tensor]:
    """Shapes with 0, 1 and odd sizes, other layouts in memory, all kinds of dtypes, edges."""
    draw = np.random.default_rng(sum(map(ord, row.names[0])))
    if row.names[0] not in ("bitwise_not",):
        for dtype in (torch.float32, torch.float64):
            yield torch.tensor(EDGES, dtype=dtype)
            yield torch.tensor(0.3, dtype=dtype)
            yield torch.zeros((0, 3), dtype=dtype)
            numbers = torch.from_numpy(draw.uniform(-0.9, 0.9, (3, 1, 5))).to(dtype)
            yield numbers
            yield numbers.transpose(0, 2)
            yield numbers[::2, :, 1::2]
            yield torch.full((7,), 0.25, dtype=dtype)
        yield torch.from_numpy(draw.uniform(-0.9, 0.9, (4, 3))).half()
    for dtype in (torch.int64, torch.int32, torch.uint8):
        yield torch.tensor([[0, 1, 2], [3, 100, 7]], dtype=dtype)
    yield torch.tensor([True, False])


def both(theirs: Callable[..., Any], ours: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Values, dtypes, shapes and gradients of both; where PyTorch refuses, so must we."""
    copies = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]
    watched = [t.requires_grad_() if t.is_floating_point() else t for t in copies]
    mine = to_flow(list(watched))
    try:
        wanted = theirs(*watched)
    except (RuntimeError, TypeError):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            ours(*mine)
        return
    got = ours(*mine)
    compare(wanted, got, where="value")
    if wanted.requires_grad:
        assert got.requires_grad
        wanted.sum().backward()
        got.sum().backward()
        for a, b in zip(watched, mine, strict=True):
            compare(a.grad, b.grad, where="gradient")


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(r, id=r.names[0]) for r in ROWS if r.promote in kinds and r.torch]


def of_surfaces(row: Row) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """PyTorch's function and ours, from every surface that both have."""
    theirs = {"flow": torch, "tensor": torch.Tensor, "F": torch.nn.functional}
    for surface in row.surfaces:
        found = getattr(theirs.get(surface), row.names[0], None)
        if found is not None:
            yield found, surfaces.find(surface, row.names[0])


NEEDED = {"threshold": (0.5, -1.0)}
"""Arguments besides the tensor, of functions that have no defaults for them."""


FINITE_ONLY = {"gelu", "hardswish", "mish"}
"""Functions for which PyTorch says nan at an infinity that has a limit."""

NUMBERS_ONLY = {"elu", "celu", "selu", "relu6", "hardshrink", "hardtanh", "softshrink"}
"""Functions whose gradient at NaN depends, in PyTorch, on the length of the vector."""

TAKES_BOOL = {"softsign", "tanhshrink"}
"""Functions that take bools here, and not in PyTorch."""


@pytest.mark.parametrize("row", of_kind(FLOAT, INTEGER, KEEP))
def test_a_function_of_one_operand_equals_torch(row: Row) -> None:
    more = NEEDED.get(row.names[0], ())
    for theirs, ours in of_surfaces(row):
        for x in unary_inputs(row):
            if row.names[0] in FINITE_ONLY and x.isinf().any():
                x = x[x.isfinite()]
            if row.names[0] in NUMBERS_ONLY and x.isnan().any():
                x = x[~x.isnan()]
            if row.names[0] == "logit":  # nor does it agree with itself on the slope at -0.0
                x = x[x != 0] if x.is_floating_point() else x
            if row.names[0] in TAKES_BOOL and x.dtype is torch.bool:
                continue
            both(lambda x, f=theirs: f(x, *more), lambda x, f=ours: f(x, *more), x)


@pytest.mark.parametrize("row", of_kind(SAME_TYPE))
def test_a_function_of_two_operands_equals_torch(row: Row) -> None:
    name = row.names[0]
    ours, theirs = surfaces.find("flow", name), getattr(torch, name)
    kinds = [torch.tensor([[0, 1, 5], [2, 7, 3]]), torch.tensor([True, False, True])]
    if not name.startswith("bitwise"):
        kinds += [torch.tensor(EDGES), torch.tensor(EDGES, dtype=torch.float64).flip(0)]
        kinds += [torch.tensor([[1.0], [2.0]]), torch.tensor(2.0), torch.zeros(0, 3)]
    for a in kinds:
        for b in kinds:
            try:
                torch.broadcast_shapes(a.shape, b.shape)
            except RuntimeError:
                continue
            both(theirs, ours, a, b)
