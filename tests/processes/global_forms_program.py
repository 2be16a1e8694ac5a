"""Program of the four ranks of test_global_forms.py; each prints that it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import comm, nn
from oneflow.distributed.world import world
from tests.support.launching import play

RANK = flow.env.get_rank()
GRID, S, B = flow.placement("cpu", [[0, 1], [2, 3]]), flow.sbp.split, flow.sbp.broadcast
VALUES = np.arange(32, dtype=np.float32).reshape(8, 4)

RESHAPES: list[tuple[Callable[[Any], Any], tuple[int, ...], Any]] = [
    (lambda x: x.view(2, 4, 4), (2, 4, 4), (S(0), S(1))),
    (lambda x: x.unflatten(0, (2, 4)), (2, 4, 4), (S(0), S(1))),
    (lambda x: x.reshape(32), (32,), (S(0), S(0))),
    (lambda x: x.view(2, 4, 4).flatten(0, 1), (8, 4), (S(0), S(0))),
    (lambda x: x.unsqueeze(0).squeeze(0), (8, 4), (S(0), S(0))),
]


class Reshaped(nn.Graph):
    def __init__(self, work: Callable[[Any], Any]) -> None:
        super().__init__()
        self.work = work

    def build(self, x: Any) -> Any:
        return self.work(x) * 2


def reshapes() -> None:
    for work, shape, sbp in RESHAPES:
        x = flow.tensor(VALUES, placement=GRID, sbp=(S(0), S(0)), requires_grad=True)
        before = world().everyone.calls
        y = work(x)
        assert world().everyone.calls == before
        assert y.sbp == sbp
        np.testing.assert_array_equal(y.numpy(), VALUES.reshape(shape))
        (y * y).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), 2 * VALUES)
        z = Reshaped(work)(x.detach())
        assert z.sbp == sbp
        np.testing.assert_array_equal(z.numpy(), 2 * VALUES.reshape(shape))


def trees() -> None:
    pair, last = flow.placement("cpu", [0, 1]), flow.placement("cpu", [3])
    mine: Any = {"a": flow.full((2,), float(RANK)), "b": [flow.ones(3), None], "n": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = flow.utils.global_view.to_global(
            mine if RANK < 2 else None, pair, lambda tree, x: S(0) if x is tree["a"] else B
        )
    assert (made["a"].sbp, tuple(made["a"].shape), made["b"][0].sbp) == ((S(0),), (4,), (B,))
    assert (made["n"], made["b"][1]) == (4, None)
    np.testing.assert_array_equal(made["a"].numpy(), [0, 0, 1, 1])
    assert flow.utils.global_view.to_global(flow.ones(2) if RANK == 3 else None, last, B).is_global


def collectives() -> None:
    gathered = flow.empty(2, 4)
    comm.all_gather_into_tensor(gathered, flow.full((2, 1), float(RANK)))
    np.testing.assert_array_equal(gathered.numpy().reshape(-1), np.repeat(np.arange(4.0), 2))
    part = flow.empty(1, 2)
    comm.reduce_scatter_tensor(part, flow.arange(8, dtype=flow.float32).reshape(2, 4))
    np.testing.assert_array_equal(part.numpy(), 4 * np.arange(2 * RANK, 2 * RANK + 2)[None])


def places() -> None:
    x = flow.tensor(VALUES, placement=GRID, sbp=(S(0), S(0)))
    alike = flow.full((1, 2), float(RANK)).type_as(x)
    assert (alike.placement, alike.sbp, tuple(alike.shape)) == (x.placement, x.sbp, (4, 2))
    assert x.type_as(flow.ones(1)).shape == (2, 4)
    meta = flow.ones(4, 4, placement=flow.placement("meta", [[0, 1], [2, 3]]), sbp=(S(0), B))
    assert tuple((meta @ meta).to_local().shape) == (2, 4)


class Template(nn.Graph):
    """Uses a local tensor for its shape alone."""

    def build(self) -> Any:
        like = flow.randn(4, 2)
        return flow.full_like(like, 3.0, placement=GRID, sbp=(S(0), B))


def templates() -> None:
    made = Template()()
    assert made.sbp == (S(0), B)
    np.testing.assert_array_equal(made.numpy(), np.full((4, 2), 3.0))


play([reshapes, trees, collectives, places, templates])
