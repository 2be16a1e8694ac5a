"""Indices and labels of nothing raise IndexError in every mode, and wrap where PyTorch's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import PositionError

ONE = flow.placement("cpu", [0])
ROWS, COLUMNS = 3, 4

Call = Callable[[Any, Any, Any], Any]
"""A call of the framework, a float32[3, 4] and an int64[2] into its rows; the last is tried."""

READS: dict[str, Call] = {
    "x[i]": lambda f, x, i: x[i],
    "x[i, j]": lambda f, x, i: x[i, _like(f, i, [0, 1])],
    "x[j, i] transposed": lambda f, x, i: x.T[_like(f, i, [0, 1]), i],
    "x[:, i, j]": lambda f, x, i: x.reshape(2, 3, 2).permute(0, 1, 2)[:, i, _like(f, i, [0, 1])],
    "x[i, :, j]": lambda f, x, i: x.reshape(3, 2, 2)[i, :, _like(f, i, [0, 1])],
    "index_select": lambda f, x, i: f.index_select(x, 0, i),
    "gather": lambda f, x, i: f.gather(x, 0, i.reshape(1, 2)),
    "take": lambda f, x, i: f.take(x.reshape(-1)[:3], i),
    "take_along_dim": lambda f, x, i: f.take_along_dim(x[:, :2], i.reshape(1, 2), 0),
    "embedding": lambda f, x, i: f.nn.functional.embedding(i, x),
    "embedding of max_norm": lambda f, x, i: f.nn.functional.embedding(i, x.clone(), max_norm=1.0),
    "embedding_bag": lambda f, x, i: f.nn.functional.embedding_bag(i.reshape(1, 2), x),
    "offsets of bags": lambda f, x, i: f.nn.functional.embedding_bag(
        _like(f, i, [0, 1]), x, i, mode="sum"
    ),
    "searchsorted sorter": lambda f, x, i: f.searchsorted(
        x[0, :3].contiguous(), x[0, :1].contiguous(), sorter=f.cat([i[:1] * 0 + 1, i])
    ),
}

WRITES: dict[str, Call] = {
    "x[i] = 1": lambda f, x, i: _written(x, lambda y: y.__setitem__(i, 1.0)),
    "x[i, j] = 1": lambda f, x, i: _written(
        x, lambda y: y.__setitem__((i, _like(f, i, [0, 1])), 1.0)
    ),
    "scatter": lambda f, x, i: f.scatter(x, 0, i.reshape(1, 2), x),
    "scatter of a number": lambda f, x, i: f.scatter(x, 0, i.reshape(1, 2), 1.0),
    "scatter of factors": lambda f, x, i: f.scatter(
        x, 0, i.reshape(1, 2), x.detach(), reduce="multiply"
    ),
    "scatter of a factor": lambda f, x, i: f.scatter(x, 0, i.reshape(1, 2), 2.0, reduce="multiply"),
    "scatter_add": lambda f, x, i: f.scatter_add(x, 0, i.reshape(1, 2), x),
    **{
        f"scatter_reduce {kind}": lambda f, x, i, kind=kind: f.scatter_reduce(
            x, 0, i.reshape(1, 2), x, kind
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"index_reduce {kind}": lambda f, x, i, kind=kind: x.index_reduce(0, i, x[:2], kind)
        for kind in ("prod", "mean", "amax", "amin")
    },
    "index_add": lambda f, x, i: f.index_add(x, 0, i, x[:2]),
    "index_copy": lambda f, x, i: f.index_copy(x, 0, i, x[:2]),
    "index_fill": lambda f, x, i: f.index_fill(x, 0, i, 1.0),
    "index_put": lambda f, x, i: f.index_put(x, (i, _like(f, i, [0, 1])), x[0, :2]),
    "index_put adding": lambda f, x, i: f.index_put(
        x, (i, _like(f, i, [0, 1])), x[0, :2], accumulate=True
    ),
    "put": lambda f, x, i: x.reshape(-1)[:3].put(i, x[0, :2]),
    "put adding": lambda f, x, i: x.reshape(-1)[:3].put(i, x[0, :2], accumulate=True),
    "max_unpool1d": lambda f, x, i: f.nn.functional.max_unpool1d(
        x[:1, :1].reshape(1, 1, 1), i[1:].reshape(1, 1, 1), 3
    ),
}

LABELS: dict[str, Call] = {
    "cross_entropy": lambda f, x, i: f.nn.functional.cross_entropy(x.T[:2], i),
    "weighted cross_entropy": lambda f, x, i: f.nn.functional.cross_entropy(
        x.T[:2], i, weight=x[:, 0]
    ),
    "smoothed cross_entropy": lambda f, x, i: f.nn.functional.cross_entropy(
        x.T[:2], i, label_smoothing=0.1
    ),
    "nll_loss": lambda f, x, i: f.nn.functional.nll_loss(x.T[:2], i),
    "nll_loss of images": lambda f, x, i: f.nn.functional.nll_loss(
        x[:, :2].reshape(1, 3, 1, 2), i.reshape(1, 1, 2)
    ),
    "multi_margin_loss": lambda f, x, i: f.nn.functional.multi_margin_loss(x.T[:2], i),
    "one_hot": lambda f, x, i: f.nn.functional.one_hot(i, 3),
}

UPSTREAM: dict[str, Call] = {
    "gather_nd": lambda f, x, i: f.gather_nd(x, f.stack([i, _like(f, i, [0, 1])], -1)),
    "scatter_nd": lambda f, x, i: f.scatter_nd(
        f.stack([i, _like(f, i, [0, 1])], -1), x[0, :2], (3, 4)
    ),
    "tensor_scatter_nd_update": lambda f, x, i: f.tensor_scatter_nd_update(
        x, f.stack([i, _like(f, i, [0, 1])], -1), x[0, :2]
    ),
    "batch_gather": lambda f, x, i: f.batch_gather(x[:1, :3], i.reshape(1, 2)),
    "sparse_softmax_cross_entropy": lambda f, x, i: f._C.sparse_softmax_cross_entropy(x.T[:2], i),
    "ctc_loss": lambda f, x, i: f.nn.functional.ctc_loss(
        f.log_softmax(x.reshape(4, 1, 3), -1), i.reshape(1, 2), [4], [2]
    ),
}


def _like(f: Any, i: Any, values: list[int]) -> Any:
    return i.new_tensor(values)


def _written(x: Any, write: Callable[[Any], None]) -> Any:
    y = x.clone()
    write(y)
    return y


class Run(nn.Graph):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def build(self, *inputs: Any) -> Any:
        return self.call(*inputs)


def _eager(call: Call, x: Any, i: Any) -> Any:
    return call(flow, flow.tensor(x), flow.tensor(i)).numpy()


def _graph(call: Call, x: Any, i: Any) -> Any:
    return Run(lambda x, i: call(flow, x, i))(flow.tensor(x), flow.tensor(i)).numpy()


def _global(call: Call, x: Any, i: Any) -> Any:
    put = [flow.tensor(v).to_global(ONE, flow.sbp.split(0)) for v in (x, i)]
    return call(flow, *put).numpy()


MODES = {"eager": _eager, "graph": _graph, "global": _global}
ALL = {**READS, **WRITES, **LABELS, **UPSTREAM}
WRAPPING = {
    *("x[i]", "x[i, j]", "x[j, i] transposed", "x[:, i, j]", "x[i, :, j]", "x[i] = 1"),
    *(
        "x[i, j] = 1",
        "take",
        "take_along_dim",
        "index_fill",
        "index_put",
        "index_put adding",
        "put",
        "put adding",
    ),
}
"""Calls whose negative indices count from the end in PyTorch; others it refuses, or reads memory
that is not the tensor's."""
UNTRACED = ("graph", "embedding of max_norm")
"""A call that writes to its table, which is an input of the graph."""
PAIRS = [(mode, name) for mode in MODES for name in ALL if (mode, name) != UNTRACED]


@pytest.mark.parametrize(("mode", "name"), PAIRS)
def test_what_is_out_of_range_is_an_error(name: str, mode: str, rng: np.random.Generator) -> None:
    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    for last in (ROWS, ROWS + 97, -ROWS - 1, -1000):
        with pytest.raises(PositionError):
            MODES[mode](ALL[name], x, np.array([0, last]))


@pytest.mark.parametrize(("mode", "name"), PAIRS)
def test_negative_ones_wrap_where_they_do_in_torch(
    name: str, mode: str, rng: np.random.Generator
) -> None:
    import torch  # here: ranks take the tables of this file, and do not need it

    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    i = np.array([0, -1])
    if name in WRAPPING:
        want = ALL[name](torch, torch.tensor(x), torch.tensor(i)).numpy()
        np.testing.assert_allclose(MODES[mode](ALL[name], x, i), want, rtol=1e-5)
        return
    with pytest.raises(PositionError):
        MODES[mode](ALL[name], x, i)


def test_a_list_of_labels_ends_with_minus_one_only() -> None:
    x = flow.zeros(1, 3)
    for label in (-2, 3):
        with pytest.raises(PositionError, match=f"index {label} is out of bounds"):
            flow.nn.functional.multilabel_margin_loss(x, flow.tensor([[0, label, -1]]))


def test_padding_of_targets_may_be_anything() -> None:
    logs = flow.log_softmax(flow.arange(12.0).reshape(4, 1, 3), -1)
    found = [
        flow.nn.functional.ctc_loss(logs, flow.tensor([[1, pad]]), [4], [1]).item()
        for pad in (0, -1, 99)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("pivots", [[0, 2, 3], [1, 2, 4], [1, -2, 3]])
def test_pivots_of_no_row_are_refused(pivots: list[int]) -> None:
    with pytest.raises(PositionError, match="out of bounds"):
        flow.lu_unpack(flow.eye(3), flow.tensor(pivots, dtype=flow.int32))
