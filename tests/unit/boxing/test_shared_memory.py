"""Collectives through a ring in shared memory: many rounds, mixed calls, mismatches; ranks are
threads."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.collectives import shared_memory
from oneflow.boxing.collectives.exchange import gather_exchange
from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives
from oneflow.core.config import Config
from oneflow.core.errors import ConfigError, DesyncError
from tests.support.waiting import CALL_S

from .boxing_ranks import LocalStore, in_threads

SMALL_SLOT = 4096


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SLOT_NBYTES", SMALL_SLOT)


def run(p: int, work: Callable[[SharedMemoryCollectives], Any], **options: Any) -> list[Any]:
    store, name = LocalStore(), uuid.uuid4().hex

    def rank(i: int) -> Any:
        c = SharedMemoryCollectives(name, i, tuple(range(p)), store, timeout_s=CALL_S, **options)
        try:
            return work(c)
        except Exception as error:
            return error
        finally:
            c.close()

    return in_threads(p, rank)


def raised(results: list[Any]) -> list[Any]:
    return [r for r in results if isinstance(r, Exception)]


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("spin_s", [0.0, 50e-6])
def test_mixed_calls_of_many_rounds_are_right(p: int, spin_s: float) -> None:
    sizes = np.random.default_rng(p).integers(1, 9 * SMALL_SLOT // 4, 30).tolist()

    def data(rank: int, step: int) -> Any:
        return np.random.default_rng([rank, step]).standard_normal(sizes[step]).astype(np.float32)

    def work(c: SharedMemoryCollectives) -> bool:
        for step in range(len(sizes)):
            everyone = [data(r, step) for r in range(p)]
            x = everyone[c.rank]
            total = everyone[0].copy()
            for other in everyone[1:]:
                total += other
            kind = step % 4
            if kind == 0:
                assert c.all_reduce(x).tobytes() == total.tobytes()
            elif kind == 1:
                assert c.all_gather(x).tobytes() == np.concatenate(everyone).tobytes()
            elif kind == 2:
                part = np.array_split(total, p)[c.rank]
                assert c.reduce_scatter(x).tobytes() == part.tobytes()
            else:
                blocks = [np.resize(a, (p, len(a))) + np.arange(p)[:, None] for a in everyone]
                expected = np.stack([b[c.rank] for b in blocks])
                np.testing.assert_array_equal(c.all_to_all(blocks[c.rank]), expected)
        return True

    assert run(p, work, spin_s=spin_s) == [True] * p


@pytest.mark.parametrize("p", [2, 3])
def test_a_sum_may_be_written_over_its_input(p: int) -> None:
    def work(c: SharedMemoryCollectives) -> Any:
        x = np.arange(30_000, dtype=np.float64) * (c.rank + 1)
        assert c.all_reduce(x, out=x) is x
        return x

    for result in run(p, work):
        factor = p * (p + 1) // 2
        np.testing.assert_array_equal(result, np.arange(30_000, dtype=np.float64) * factor)


def test_reductions_of_two_ranks_take_their_operands_in_one_order() -> None:
    """Compares results; which of two NaN or zeros comes out depends on the order of the
    operands.
    """
    values = np.array([0.0, -0.0, np.nan, -np.nan] * 4000)

    def work(c: SharedMemoryCollectives) -> list[bytes]:
        x = values if c.rank == 0 else values[::-1].copy()
        return [c.all_reduce(x, op).tobytes() for op in ("sum", "max", "min", "prod")]

    first, second = run(2, work)
    assert first == second


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_mismatch_touches_nothing_and_the_set_goes_on(size: int) -> None:
    def work(c: SharedMemoryCollectives) -> Any:
        c.barrier()
        target = np.full(2 * size, 7.0)
        exchange = gather_exchange((0, 1), (size, size))
        try:
            c.transfer(f"gather {c.rank}", np.zeros(size), target, exchange)
        except DesyncError as error:
            assert (target == 7.0).all()
            after = c.all_gather(np.full(size, float(c.rank)))
            return str(error), after.tolist() == [0.0] * size + [1.0] * size
        raise AssertionError("no error")

    results = run(2, work)
    assert not raised(results)
    for text, goes_on in results:
        assert "rank 0: gather 0" in text
        assert "rank 1: gather 1" in text
        assert goes_on


def test_memory_does_not_grow_with_the_data() -> None:
    def work(c: SharedMemoryCollectives) -> bool:
        before = c._mine.nbytes
        for size in (10, 10_000, 300_000):
            c.all_gather(np.zeros(size))
            c.all_reduce(np.zeros(size))
        return c._mine.nbytes == before

    assert run(2, work) == [True, True]


@pytest.mark.parametrize("p", [2, 3])
def test_bytes_read_from_peers_are_counted(p: int) -> None:
    def work(c: SharedMemoryCollectives) -> list[int]:
        seen = []
        for call in (
            lambda: c.all_reduce(np.zeros(60_000, np.float32)),
            lambda: c.all_gather(np.zeros(60_000, np.float32)),
            lambda: c.reduce_scatter(np.zeros(60_000, np.float32)),
            lambda: c.all_to_all(np.zeros((p, 10_000), np.float32)),
            lambda: c.broadcast(np.zeros(60_000, np.float32), 1),
        ):
            before = c.received_nbytes
            call()
            seen.append(c.received_nbytes - before)
        return seen

    results = run(p, work)
    totals = np.sum(results, axis=0).tolist()
    whole, part = 240_000, 40_000
    assert totals == [
        2 * whole * (p - 1),
        whole * p * (p - 1),
        whole * (p - 1),
        part * p * (p - 1),
        whole * (p - 1),
    ]


def test_ranks_that_outnumber_their_cores_do_not_spin() -> None:
    crowd = len(os.sched_getaffinity(0)) + 1
    if crowd <= 9:  # as many threads as this test may start
        assert run(crowd, lambda c: c._spin_s, spin_s=50e-6) == [0.0] * crowd
    assert run(1, lambda c: c._spin_s, spin_s=50e-6) == [50e-6]


def test_how_long_waits_spin_is_a_setting() -> None:
    assert Config.from_env({}).spin_s == 50e-6
    assert Config.from_env({"ONEFLOW_SPIN_SECONDS": "0"}).spin_s == 0.0
    assert Config.from_env({"ONEFLOW_SPIN_SECONDS": "0.001"}).spin_s == 0.001
    for wrong in ("1", "-1", "soon"):
        with pytest.raises(ConfigError, match="ONEFLOW_SPIN_SECONDS"):
            Config.from_env({"ONEFLOW_SPIN_SECONDS": wrong})
