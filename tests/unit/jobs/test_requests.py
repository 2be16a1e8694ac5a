"""Requests of an inference job: faults of one are said."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.cluster.values import tensor_message
from oneflow.core.errors import ClusterRequestError
from oneflow.jobs.requests import Interface, Request, RequestError
from oneflow.protos import cluster_pb2 as pb

from .job_samples import WIDTH, Predict


@pytest.fixture(scope="module")
def interface(tmp_path_factory: pytest.TempPathFactory) -> Interface:
    path: Path = tmp_path_factory.mktemp("jobs") / "p.job"
    Predict().export(path, inputs={"x": flow.zeros(5, WIDTH)})
    with flow.jobs.load(path) as file:
        return Interface.of(file)


def asked(interface: Interface, value: Any) -> Request:
    return interface.request(pb.Infer(request=1, inputs=[tensor_message("x", value)]))


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_any_number_of_rows_from_one_on(interface: Interface, rows: int) -> None:
    assert asked(interface, np.ones((rows, WIDTH), np.float32)).rows == rows


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones((0, WIDTH), np.float32), r"input 'x' has no rows: float32\[0, 6\]; send one"),
        (
            np.ones((2, WIDTH)),
            r"input 'x' is float64\[2, 6\]; the inputs are x: float32\[rows, 6\]",
        ),
        (np.float32(1), r"input 'x' is float32\[\]; "),
    ],
)
def test_what_does_not_fit_says_why(interface: Interface, value: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        asked(interface, value)


def test_lists_are_taken_as_tensors_are(interface: Interface) -> None:
    lists = [[0.5] * WIDTH, [1] * WIDTH]
    np.testing.assert_array_equal(asked(interface, lists).inputs["x"], np.float32(lists))
    for value in ([1, 2], [True], [1.5], 3, [[]], 2j):
        made = tensor_message("x", value)
        wanted = flow.tensor(value) if value != 2j else flow.zeros(1, dtype=flow.complex64).sum()
        assert made.dtype == wanted.numpy().dtype.name and tuple(made.shape) == wanted.shape
    with pytest.raises(ClusterRequestError, match="input 'x' is no array"):
        tensor_message("x", [[1.0], [1.0, 2.0]])


class Centered(nn.Graph):
    """Gives as many rows as there are, each of which knows of all; and one number."""

    def build(self, x: Any) -> Any:
        return {"rest": x - x.mean(dim=0), "mean": x.mean(), "twice": 2 * x}


def test_what_joins_rows_gets_requests_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "c.job"
    with pytest.warns(UserWarning, match="'rest', 'mean' cannot be cut .* exactly 5 rows"):
        Centered().export(path, inputs={"x": flow.zeros(5, WIDTH)})
    with flow.jobs.load(path) as file:
        made = Interface.of(file)
    values = np.arange(10 * WIDTH, dtype=np.float32).reshape(2, 5, WIDTH)
    waiting = deque((asked(made, v), 0) for v in values)
    for value in values:
        shares = made.take(waiting)
        np.testing.assert_array_equal(made.feeds(shares)["x"], value)
        results = {i: np.array(i + value.mean()) for i in range(3)}
        (done,) = made.divide(shares, results)
        assert dict(made.answer(done))["mean"] == 1 + value.mean()
    for rows in (1, 10):
        with pytest.raises(
            RequestError, match=r"inputs are x: float32\[5, 6\] \(exactly: 'rest', "
        ):
            asked(made, np.ones((rows, WIDTH), np.float32))
