"""The primitives, on every backend that runs without a GPU: ranks are threads here."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives
from oneflow.boxing.collectives.spanning import SpanningCollectives
from oneflow.boxing.collectives.tcp import TcpCollectives
from oneflow.boxing.execute import run_route
from oneflow.boxing.route import boxing_bytes, choose_route
from oneflow.boxing.row_moves import exchange_rows
from oneflow.core.dtype import dtype_of, float32
from oneflow.core.errors import DesyncError, HangError, PositionError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.core.tensor_type import TensorType
from tests.support.waiting import CALL_S

from .boxing_layouts import all_sbp, gathered, scatter
from .boxing_ranks import LocalStore, in_threads

BACKENDS = ["in_process", "shared_memory", "tcp", "spanning"]
HOSTS = "abba"  # where each rank pretends to be


class Ranks:
    """Opens the ends of sets of ranks, each in its own thread."""

    def __init__(self, backend: str, options: dict[str, Any]) -> None:
        self._backend, self._options = backend, options
        self._store, self._name = LocalStore(), uuid.uuid4().hex
        self._groups: dict[tuple[int, ...], InProcessGroup] = {}

    def open(self, rank: int, members: tuple[int, ...]) -> Collectives:
        name = f"{self._name}-{members}"
        if self._backend == "in_process":
            group = self._groups.setdefault(members, InProcessGroup(members))
            return group.collectives(rank, **self._options)
        if self._backend == "spanning":
            hosts = [HOSTS[r] for r in members]
            return SpanningCollectives(name, rank, members, hosts, self._store, **self._options)
        backend = TcpCollectives if self._backend == "tcp" else SharedMemoryCollectives
        return backend(name, rank, members, self._store, **self._options)


@pytest.fixture(params=BACKENDS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Any]]]:
    """run(p, work): work(collectives) on every rank, each in a thread; returns the results."""

    def run(p: int, work: Callable[[Any], Any], sets: bool = False, **options: Any) -> list[Any]:
        ranks = Ranks(request.param, options)

        def rank(i: int) -> Any:
            opened: dict[tuple[int, ...], Collectives] = {}

            def of(members: tuple[int, ...]) -> Collectives:
                if members not in opened:
                    opened[members] = ranks.open(i, members)
                return opened[members]

            try:
                return work((i, of) if sets else of(tuple(range(p))))
            except Exception as error:
                return error
            finally:
                for c in opened.values():
                    c.close()

        results = in_threads(p, rank)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, (DesyncError, HangError)):
                raise result
        return results

    yield run


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(-9, 9, shape).astype(dtype)


@pytest.mark.parametrize("numel", [3, 300_000])
def test_overflows_are_infinities_whatever_numpy_is_told(
    run: Callable[..., list[Any]], numel: int
) -> None:
    def work(c: Collectives) -> list[Any]:
        x = np.full(numel, [6e4, 1e4][c.rank], np.float16)
        with np.errstate(all="raise"):
            return [c.all_reduce(x), c.reduce_scatter(x)]

    for found in run(2, work):
        for one in found:
            assert one.size and np.isposinf(one).all()


@pytest.mark.parametrize("p", [1, 2, 3])
def test_uneven_rows_go_to_whom_they_are_for(run: Any, p: int) -> None:
    sizes = np.random.default_rng(p).integers(0, 40, (p, p))
    sizes[0, -1] = 0
    rooms = [int(n) + 3 for n in sizes.sum(0)]

    def sent(rank: int) -> tuple[Any, Any]:
        count = int(sizes[rank].sum()) + 2  # two that are for nobody
        return data(rank, (count, 5), np.float32), data(rank, (count, 1), np.int64)

    def work(c: Collectives) -> Any:
        came = np.empty(p, np.int64)
        into = [np.empty((rooms[c.rank], x.shape[1]), x.dtype) for x in sent(c.rank)]
        before = c.received_nbytes
        exchange_rows(c, np, sizes[c.rank], sent(c.rank), came, into)
        return came, into, c.received_nbytes - before

    for rank, (came, into, nbytes) in enumerate(run(p, work)):
        np.testing.assert_array_equal(came, sizes[:, rank])
        for k, found in enumerate(into):
            ends = sizes.cumsum(1)[:, rank]
            parts = [sent(r)[k][ends[r] - sizes[r, rank] : ends[r]] for r in range(p)]
            whole = np.concatenate([*parts, np.zeros((3, found.shape[1]))])
            np.testing.assert_array_equal(found, whole)
        others = int(sizes[:, rank].sum() - sizes[rank, rank])
        assert nbytes == others * (5 * 4 + 8) + (p - 1) * (p + 1) * 8


def test_all_ranks_refuse_rows_that_have_no_room_on_one(run: Any) -> None:
    def work(c: Collectives) -> str:
        into = [np.empty((2 - c.rank, 1))]
        try:
            ones = [np.ones((2, 1))]
            exchange_rows(c, np, np.array([1, 1]), ones, np.empty(2, np.int64), into)
        except PositionError as error:
            return str(error)
        return ""

    assert all("there is room for 1" in text for text in run(2, work))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex64, ml_dtypes.bfloat16])
def test_all_reduce_sums_every_size(run: Any, p: int, dtype: Any) -> None:
    shapes = [(), (1,), (5, 3), (0, 2), (4099,), (300, 701)]

    def work(c: Collectives) -> list[Any]:
        return [c.all_reduce(data(c.rank, s, dtype)) for s in shapes]

    for result in run(p, work):
        for shape, got in zip(shapes, result, strict=True):
            expected = sum(data(r, shape, np.complex128) for r in range(p))
            assert got.shape == shape
            np.testing.assert_array_equal(got.astype(np.complex128), expected)


@pytest.mark.parametrize(("op", "reference"), [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_all_reduce_knows_other_reductions(run: Any, op: str, reference: Any) -> None:
    for size in (7, 9000):
        results = run(3, lambda c, n=size: c.all_reduce(data(c.rank, (n,), np.float64), op))
        expected = reference([data(r, (size,), np.float64) for r in range(3)], axis=0)
        for result in results:
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [11, 40000])
def test_float_sums_are_equal_to_the_last_bit_on_all_ranks(run: Any, size: int) -> None:
    def work(c: Collectives) -> Any:
        return c.all_reduce(np.random.default_rng(c.rank).standard_normal(size).astype(np.float32))

    first, *others = run(4, work)
    for other in others:
        assert other.tobytes() == first.tobytes()


def test_reduce_scatter_gives_each_rank_its_balanced_part(run: Any) -> None:
    results = run(3, lambda c: c.reduce_scatter(data(c.rank, (7, 5), np.float64)))
    expected = np.array_split(sum(data(r, (7, 5), np.float64) for r in range(3)), 3)
    for got, part in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, part)


def test_all_gather_takes_parts_of_different_sizes(run: Any) -> None:
    counts = [3, 0, 70000]
    results = run(3, lambda c: c.all_gather(data(c.rank, (counts[c.rank],), np.int32), counts))
    expected = np.concatenate([data(r, (n,), np.int32) for r, n in enumerate(counts)])
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_all_to_all_transposes_ranks_and_parts(run: Any) -> None:
    results = run(3, lambda c: c.all_to_all(data(c.rank, (3, 2, 4), np.float32)))
    sent = np.stack([data(r, (3, 2, 4), np.float32) for r in range(3)])
    for rank, result in enumerate(results):
        np.testing.assert_array_equal(result, sent[:, rank])


def test_broadcast_and_payloads(run: Any) -> None:
    def work(c: Collectives) -> Any:
        payloads = c.gather_bytes(b"x" * (c.rank * 1000), "test")
        return c.broadcast(data(c.rank, (4, 4), np.float64), 1), payloads

    for array, payloads in run(3, work):
        np.testing.assert_array_equal(array, data(1, (4, 4), np.float64))
        assert payloads == [b"", b"x" * 1000, b"x" * 2000]


def test_windows_grow_and_old_data_never_shows(run: Any) -> None:
    sizes = [10, 100_000, 10, 300_000, 5, 1_000_000, 3]

    def work(c: Collectives) -> bool:
        for step, size in enumerate(sizes * 2):
            got = c.all_gather(np.full(size, 10 * step + c.rank, np.int32))
            if got.tolist() != np.repeat([10 * step, 10 * step + 1], size).tolist():
                return False
        return True

    assert run(2, work) == [True, True]


def test_different_calls_raise_on_every_rank_and_name_them(run: Any) -> None:
    def work(c: Collectives) -> None:
        c.barrier()
        if c.rank == 1:
            c.all_reduce(np.zeros(3, np.float32))
        else:
            c.all_reduce(np.zeros(4, np.float32))

    results = run(3, work, timeout_s=CALL_S)
    for result in results:
        assert isinstance(result, DesyncError), result
        assert "rank 1: all_reduce(sum) float32[3] at" in str(result)
        assert "rank 2: all_reduce(sum) float32[4] at" in str(result)
        assert "test_collectives.py" in str(result)


def test_calls_that_differ_where_nobody_sees_it_are_explained(run: Any) -> None:
    def work(c: Collectives) -> None:
        c.barrier()
        c.all_gather(np.zeros(1), None, f"{'x' * 300}{c.rank}{'y' * 300}")

    for result in run(2, work, timeout_s=CALL_S):
        assert isinstance(result, DesyncError), result
        assert "These look alike" in str(result) and "here it is call 2" in str(result)
        assert "several threads" in str(result)


def test_calls_of_several_threads_take_turns(run: Any) -> None:
    def work(c: Collectives) -> list[bool]:
        """Any two calls are alike, so that the order between the threads does not matter."""
        found: list[bool] = []

        def calls() -> None:
            for _ in range(20):
                total = c.all_reduce(np.full(3000, c.rank + 1))
                found.append(bool((total == 3).all()))

        threads = [threading.Thread(target=calls) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert run(2, work) == [[True] * 40] * 2


def test_a_rank_that_does_not_come_is_named(run: Any) -> None:
    over = threading.Event()

    def work(c: Collectives) -> None:
        if c.rank == 1:
            over.wait(CALL_S)
            return
        for one in (c, getattr(c, "_near", None), getattr(c, "_far", None)):
            if one is not None:
                one.timeout_s = 0.2  # only now: to open it may take longer
        try:
            c.all_reduce(np.zeros(3, np.float32))
        finally:
            over.set()

    error = run(2, work)[0]
    assert isinstance(error, HangError)
    assert "waited 0.2 s for rank 1" in str(error)


def test_the_check_ends_a_wait(run: Any) -> None:
    def gone(ranks: Any) -> None:
        raise DesyncError("peer is gone")

    over = threading.Event()

    def work(c: Collectives) -> None:
        if c.rank == 1:
            over.wait(CALL_S)
            return
        c._peer_check = gone
        try:
            c.barrier()
        finally:
            over.set()

    error = run(2, work)[0]
    assert str(error) == "peer is gone"


def test_every_boxing_pair_gives_the_values_and_bytes_announced(run: Any) -> None:
    src, dst = Placement("cpu", [0, 1]), Placement("cpu", [1, 2])
    grid = Placement("cpu", [[0, 1], [2, 3]])
    cases = [
        *itertools.product(all_sbp(1), [src], all_sbp(1), [src, dst]),
        *[(a, grid, b, grid) for a, b in itertools.product(all_sbp(2)[::3], all_sbp(2)[::2])],
    ]
    type = TensorType((6, 5), float32)
    whole = np.random.default_rng(3).integers(-9, 9, (6, 5)).astype(np.float32)

    def work(end: Any) -> list[Any]:
        rank, of = end
        results = []
        for a, p, b, q in cases:
            route = choose_route(type, a, p, b, q)
            results.append(run_route(type, route, rank, scatter(whole, a, p).get(rank), of))
        return results

    results = run(4, work, sets=True)
    for i, (_, _, b, q) in enumerate(cases):
        shards = {r: results[r][i] for r in q.rank_ids}
        np.testing.assert_array_equal(gathered(shards, (6, 5), b, q), whole)


def test_received_bytes_are_counted(run: Any) -> None:
    line = Placement("cpu", [0, 1, 2])
    type = TensorType((300, 64), float32)
    whole = np.ones((300, 64), np.float32)
    for a, b in itertools.product(all_sbp(1), repeat=2):
        route = choose_route(type, a, line, b, line)

        def work(c: Collectives, a: Any = a, route: Any = route) -> int:
            run_route(type, route, c.rank, scatter(whole, a, line)[c.rank], lambda ranks: c)
            return c.received_nbytes

        assert sum(run(3, work)) == boxing_bytes(type, a, line, b, line), (a, b)


HALVES = {np.float16: 2048.0, ml_dtypes.bfloat16: 256.0}
"""The number from which on the dtype skips odd ones."""


@pytest.mark.parametrize("numel", [4, 150_000])
@pytest.mark.parametrize("dtype", HALVES)
def test_ranks_are_added_up_in_float32(run: Any, dtype: Any, numel: int) -> None:
    """One by one the others would be lost: 2048 + 1 is 2048. A host's sum is rounded, too."""
    first, grid = HALVES[dtype], Placement("cpu", [0, 1, 2, 3])
    type = TensorType((numel,), dtype_of(np.dtype(dtype)))

    def work(end: Any) -> list[Any]:
        rank, of = end
        x, c = np.full(numel, first if rank == 0 else 1.0, dtype), of((0, 1, 2, 3))
        routes = [choose_route(type, (PARTIAL,), grid, (to,), grid) for to in (BROADCAST, Split(0))]
        boxed = [run_route(type, route, rank, x, of) for route in routes]
        return [c.all_reduce(x), c.reduce_scatter(x), *boxed]

    for found in run(4, work, sets=True):
        for one in found:
            np.testing.assert_allclose(one.astype(float), first + 3, atol=1)
