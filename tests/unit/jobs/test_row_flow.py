"""Outputs of an inference job that have a row for each row of the inputs, of that row alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.jobs.row_flow import row_outputs
from tests.unit.one_embedding.making import embedding, one

pytestmark = pytest.mark.filterwarnings("ignore:export of")
BATCH, WIDTH = 6, 8


class Some(nn.Graph):
    def __init__(self, build: Callable[..., Any], module: Any = None) -> None:
        super().__init__()
        flow.manual_seed(1)
        self.m = module if module is not None else nn.Linear(WIDTH, BATCH)
        self._function = build

    def build(self, x: Any) -> Any:
        return self._function(self.m, x)


def has_rows(tmp_path: Path, graph: nn.Graph, *shape: int, dtype: Any = None) -> bool:
    path = tmp_path / "a.job"
    graph.export(path, inputs={"x": flow.zeros(*shape, dtype=dtype)})
    with flow.jobs.load(path) as file:
        return row_outputs(file.graph(), shape[0]) == {0}


def attention(m: Any, x: Any) -> Any:
    """Two heads with a causal mask."""
    b, t, d = x.shape
    q, k, v = (y.reshape(b, t, 2, d // 2).permute(0, 2, 1, 3) for y in m(x).chunk(3, dim=-1))
    scores = flow.matmul(q, k.transpose(-1, -2)).masked_fill(flow.tril(flow.ones(t, t)) == 0, -1e9)
    return flow.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).reshape(b, t, d)


def token_first(m: Any, x: Any) -> Any:
    """A learned row before each sequence, as vision transformers have."""
    first = m.weight[:1].reshape(1, 1, WIDTH).expand(x.shape[0], 1, WIDTH)
    return flow.cat([first, x + flow.zeros(BATCH, 1, 1)], dim=1).mean(dim=1)


@pytest.mark.parametrize(
    "build",
    [
        lambda m, x: m(x).softmax(-1),
        lambda m, x: F.layer_norm(x, (WIDTH,)) * x.mean(dim=1, keepdim=True),
        lambda m, x: m(x).argmax(dim=1),
        lambda m, x: m(x).t().t(),
        lambda m, x: x.reshape(BATCH * 2, 4).relu().reshape(BATCH, WIDTH),
        lambda m, x: flow.cat([x, m(x)], dim=1)[:, 2:5],
        lambda m, x: x.topk(3, dim=1)[0],
        lambda m, x: x.norm(dim=1),
        lambda m, x: flow.zeros(BATCH, 2),
    ],
)
def test_rows_that_stay_apart(tmp_path: Path, build: Any) -> None:
    assert has_rows(tmp_path, Some(build), BATCH, WIDTH)


def test_rows_of_whole_models_stay_apart(tmp_path: Path) -> None:
    """Convolutions with a batch norm, embeddings, attention."""
    images = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    words = nn.Sequential(nn.Embedding(9, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.5))
    for model in (images, words):
        model.eval()
    made = Some(lambda m, x: m(x), images)
    assert has_rows(tmp_path, made, BATCH, 3, 11, 11)
    made = Some(lambda m, x: m(x).mean(dim=1), words)
    assert has_rows(tmp_path, made, BATCH, 5, dtype=flow.int64)
    made = Some(attention, nn.Linear(WIDTH, 3 * WIDTH))
    assert has_rows(tmp_path, made, BATCH, 5, WIDTH)
    assert has_rows(tmp_path, Some(token_first), BATCH, 5, WIDTH)


@pytest.mark.parametrize(
    ("shape", "tables", "is_apart"),
    [((BATCH, 2), 2, True), ((BATCH,), 1, True), ((BATCH, 3), 1, True), ((BATCH,), BATCH, False)],
)
def test_looked_up_rows_stay_apart_but_where_their_place_names_the_table(
    tmp_path: Path, shape: tuple[int, ...], tables: int, is_apart: bool
) -> None:
    store = one.make_device_mem_store_options(str(tmp_path), 100)
    rows = embedding(tables=tables, size_factor=1, store_options=store)
    graph = Some(lambda m, x: m(x).tanh(), rows)
    with pytest.warns(UserWarning, match="has no rows here"):
        assert has_rows(tmp_path, graph, *shape, dtype=flow.int64) is is_apart


@pytest.mark.parametrize(
    "build",
    [
        lambda m, x: m(x).mean(),
        lambda m, x: m(x).t(),  # as many rows, but others
        lambda m, x: m(x) - m(x).mean(dim=0),
        lambda m, x: x.flip(0),
        lambda m, x: x.cumsum(0),
        lambda m, x: x.softmax(0),
        lambda m, x: x.sort(dim=0)[0],
        lambda m, x: x + flow.arange(BATCH).reshape(BATCH, 1),
        lambda m, x: x @ x.t(),
        lambda m, x: x.reshape(WIDTH, BATCH).t(),
        lambda m, x: F.batch_norm(x, None, None, training=True),
        lambda m, x: x[flow.tensor(np.arange(BATCH)[::-1].copy())],
    ],
)
def test_rows_that_know_of_others(tmp_path: Path, build: Any) -> None:
    assert not has_rows(tmp_path, Some(build), BATCH, WIDTH)
