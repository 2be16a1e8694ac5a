"""Calls that depend on strides and on places in memory, in every mode, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import GraphError, ShapeError

DATA = np.arange(1, 31, dtype=np.float32).reshape(5, 6)
Function = Callable[[Any], Any]

LAYOUTS: dict[str, Function] = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(1, 0),
    "sliced": lambda x: x[1:4, 2:5],
    "rows": lambda x: x[1:],
    "stepped": lambda x: x[::2, 1::2].t(),
    "expanded": lambda x: x[:1].expand(4, 6),
    "selected": lambda x: x[2].unsqueeze(0).expand(3, 6),
    "flipped": lambda x: x.flip(0),
    "indexed": lambda x: x[[4, 3, 2, 1, 0]],
    "copied": lambda x: x.t().reshape(5, 6),
    "detached": lambda x: x.t().detach()[1:],
    "detached part": lambda x: x[1:4, 2:5].detach(),
}
REORDERED = ("permuted", "sliced", "stepped", "expanded", "selected", "detached", "detached part")
"""Layouts that a graph, whose arguments come in row-major order, cannot know."""


def _package(x: Any) -> Any:
    return flow if isinstance(x, flow.Tensor) else torch


def _complex(x: Any) -> Any:
    pairs = x[:, :2].contiguous()
    return _package(x).view_as_real(_package(x).view_as_complex(pairs).as_strided((2,), (1,), 1))


CALLS: dict[str, Function] = {
    "as_strided": lambda x: x.as_strided((2, 2), (2, 1)),
    "as_strided from": lambda x: x.as_strided((2, 2), (2, 1), 3),
    "as_strided by stride": lambda x: x.as_strided((2, 2), x.stride()),
    "as_strided twice": lambda x: x.as_strided((2, 3), (3, 1)).t().as_strided((2, 2), (2, 1)),
    "as_strided_": lambda x: x.view_as(x).as_strided_((2, 2), (2, 1)),
    "as_strided_copy": lambda x: _package(x).as_strided_copy(x, (2, 2), (2, 1)),
    "as_strided_scatter": lambda x: _package(x).as_strided_scatter(
        x, x.new_zeros(2, 2), (2, 2), (2, 1)
    ),
    "as_strided_scatter from": lambda x: _package(x).as_strided_scatter(
        x, x.new_zeros(2, 2), (2, 2), (2, 1), 1
    ),
    "storage_offset": lambda x: x.sum() * 0 + x.storage_offset(),
    "stride": lambda x: x.sum() * 0 + x.stride(0) * 100 + x.stride(1),
    "is_contiguous": lambda x: x.sum() * 0 + float(x.is_contiguous()),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "complex": _complex,
}
TELLING = ("stride", "is_contiguous")
"""Calls that in a graph tell of its own row-major copies of the arguments."""
ANYWHERE = ("unfold", "complex")
"""Calls that give the same for all layouts."""


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _expected(name: str, layout: str) -> Any:
    return CALLS[name](LAYOUTS[layout](torch.tensor(DATA))).numpy()


def _graph(function: Function) -> flow.nn.Graph:
    return flow.nn.Graph.trace(function)


def test_eager(name: str, layout: str) -> None:
    found = CALLS[name](LAYOUTS[layout](flow.tensor(DATA)))
    np.testing.assert_array_equal(found.numpy(), _expected(name, layout))


def test_in_a_graph(name: str, layout: str) -> None:
    found = _graph(lambda x: CALLS[name](LAYOUTS[layout](x)))(flow.tensor(DATA))
    np.testing.assert_array_equal(found.numpy(), _expected(name, layout))


def test_of_a_global_tensor(name: str, layout: str) -> None:
    x = flow.tensor(DATA).to_global(flow.placement("cpu", [0]), flow.sbp.split(0))
    found = CALLS[name](LAYOUTS[layout](x)).to_local()
    np.testing.assert_array_equal(found.numpy(), _expected(name, layout))


def test_of_an_argument_of_a_graph(name: str, layout: str) -> None:
    graph, x = _graph(CALLS[name]), LAYOUTS[layout](flow.tensor(DATA))
    if name in TELLING:
        expected = CALLS[name](x.contiguous()).numpy()
        np.testing.assert_array_equal(graph(x).numpy(), expected)
    elif name not in ANYWHERE and (
        layout in REORDERED or (layout == "rows" and ("from" in name or "offset" in name))
    ):
        asked = name.split()[0].removesuffix("_").removesuffix("_copy")
        with pytest.raises(GraphError, match=rf"{asked} at .*test_strides.py:\d+ counts"):
            graph(x)
    else:
        np.testing.assert_array_equal(graph(x).numpy(), _expected(name, layout))


def test_a_later_argument_of_another_layout_is_refused() -> None:
    graph = _graph(lambda x: x.as_strided((2, 2), (2, 1)))
    square = flow.tensor(DATA[:, :5].copy())
    assert graph(square).numpy().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(GraphError, match=r"as_strided at .* argument 0 .* not contiguous"):
        graph(square.t())
    assert graph(square.t().contiguous()).numpy().tolist() == [[1, 7], [13, 19]]


def test_as_strided_of_an_array_by_columns() -> None:
    by_columns = flow.from_numpy(np.asfortranarray(DATA))
    expected = torch.from_numpy(np.asfortranarray(DATA))
    for call in ("as_strided", "as_strided from", "as_strided by stride"):
        np.testing.assert_array_equal(CALLS[call](by_columns).numpy(), CALLS[call](expected))


def test_as_strided_of_memory_with_gaps() -> None:
    with pytest.raises(ShapeError, match=r"as_strided: the memory of .* has gaps"):
        flow.from_numpy(DATA[:, ::2]).as_strided((2, 2), (2, 1))


@pytest.mark.parametrize("call", ["as_strided", "as_strided by stride", "as_strided twice"])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "indexed"])
def test_gradients_in_a_graph(call: str, layout: str) -> None:
    def gradient(x: Any) -> Any:
        x.requires_grad_()
        (CALLS[call](LAYOUTS[layout](x)) ** 2).sum().backward()
        return x.grad

    def build(x: Any) -> Any:
        y = LAYOUTS[layout](x)
        return flow.autograd.grad((CALLS[call](y) ** 2).sum(), x)[0]

    expected = gradient(torch.tensor(DATA)).numpy()
    np.testing.assert_array_equal(gradient(flow.tensor(DATA)).numpy(), expected)
    given = flow.tensor(DATA, requires_grad=True)
    np.testing.assert_array_equal(_graph(build)(given).numpy(), expected)


DETACHED = {
    "reshaped": lambda x: x.reshape(3, 4).detach(),
    "permuted": lambda x: x.reshape(3, 4).t().detach(),
    "part": lambda x: x[2:].detach(),
    "rows": lambda x: x.reshape(3, 4)[1:].detach(),
}


@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.parametrize("from_start", [False, True])
def test_detached_parts_get_gradients_of_their_own(name: str, from_start: bool) -> None:
    found = []
    for library in (flow, torch):
        x = library.arange(12, dtype=library.float32)
        leaf = DETACHED[name](x).requires_grad_()
        offset = (leaf.storage_offset() + 1,) if from_start else ()
        out = leaf.as_strided((2, 2), (2, 1), *offset)
        (out * library.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        found.append((out.detach().numpy(), leaf.grad.numpy()))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
