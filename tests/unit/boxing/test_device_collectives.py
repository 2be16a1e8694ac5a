"""Collectives of GPU arrays with a stand-in for CuPy and NCCL: values, bytes, streams. Ranks are
threads; no GPU is needed.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.base import REDUCTIONS
from oneflow.boxing.collectives.device import StagedCollectives
from oneflow.boxing.collectives.exchange import Exchange, step_exchanges, sum_exchange
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.nccl import NcclCollectives
from oneflow.boxing.execute import run_route
from oneflow.boxing.route import boxing_bytes, choose_route
from oneflow.boxing.transitions import make_step
from oneflow.core.dtype import float32
from oneflow.core.errors import ShapeError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.hardware import hardware_for

from . import stand_in_cupy
from .boxing_layouts import all_sbp, gathered, scatter
from .boxing_ranks import LocalStore, in_threads


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with stand_in_cupy.installed() as module:
        yield module


class Ranks:
    """Opens the ends of sets of ranks, each in its own thread."""

    def __init__(self, backend: str, options: dict[str, Any]) -> None:
        self._backend, self._options = backend, options
        self._store, self._name = LocalStore(), uuid.uuid4().hex
        self._groups: dict[tuple[int, ...], InProcessGroup] = {}

    def open(self, rank: int, members: tuple[int, ...]) -> Any:
        host = self._groups.setdefault(members, InProcessGroup(members)).collectives(rank)
        if self._backend == "staged":
            return StagedCollectives(host, hardware_for("cuda", 0))
        name = f"{self._name}-{members}"
        return NcclCollectives(name, rank, members, self._store, host, **self._options)


@pytest.fixture(params=["nccl", "staged"])
def run(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """run(p, work): work(collectives) on every rank, each in a thread; returns the results."""

    def run(p: int, work: Callable[[Any], Any], sets: bool = False, **options: Any) -> list[Any]:
        ranks = Ranks(request.param, options)

        def rank(i: int) -> Any:
            opened: dict[tuple[int, ...], Any] = {}

            def of(members: tuple[int, ...]) -> Any:
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
            if isinstance(result, Exception):
                raise result
        return results

    return run


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
    import cupy

    return cupy.asarray(np.random.default_rng(rank).integers(-9, 9, shape).astype(dtype))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.complex64])
def test_all_reduce_sums_every_size(run: Any, p: int, dtype: Any) -> None:
    shapes = [(), (1,), (5, 3), (0, 2), (4099,), (130, 71)]

    def work(c: Any) -> list[Any]:
        return [c.all_reduce(data(c.rank, s, dtype)) for s in shapes]

    for result in run(p, work):
        for shape, got in zip(shapes, result, strict=True):
            expected = sum(data(r, shape, np.complex128) for r in range(p))
            assert got.shape == shape and got.dtype == dtype
            np.testing.assert_array_equal(got.astype(np.complex128), expected)


@pytest.mark.parametrize(("op", "reference"), [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_other_reductions(run: Any, op: str, reference: Any) -> None:
    results = run(3, lambda c: c.all_reduce(data(c.rank, (7,), np.float64), op))
    expected = reference([data(r, (7,), np.float64) for r in range(3)], axis=0)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_the_result_can_go_where_the_input_is(run: Any) -> None:
    def work(c: Any) -> Any:
        x = data(c.rank, (40, 3), np.float32)
        assert c.all_reduce(x, out=x) is x
        return x

    for result in run(2, work):
        expected = data(0, (40, 3), np.float32) + data(1, (40, 3), np.float32)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("rows", [6, 7, 2])
def test_reduce_scatter_gives_each_rank_its_balanced_part(run: Any, rows: int) -> None:
    results = run(3, lambda c: c.reduce_scatter(data(c.rank, (rows, 5), np.float64)))
    expected = np.array_split(sum(data(r, (rows, 5), np.float64) for r in range(3)), 3)
    for got, part in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, part)


@pytest.mark.parametrize("counts", [[3, 0, 700], [4, 4, 4]])
def test_all_gather_takes_parts_of_any_sizes(run: Any, counts: list[int]) -> None:
    results = run(3, lambda c: c.all_gather(data(c.rank, (counts[c.rank],), np.int32), counts))
    expected = np.concatenate([data(r, (n,), np.int32) for r, n in enumerate(counts)])
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_all_to_all_broadcast_and_payloads(run: Any) -> None:
    def work(c: Any) -> Any:
        c.barrier()
        swapped = c.all_to_all(data(c.rank, (3, 2, 4), np.float32))
        copied = c.broadcast(data(c.rank, (4, 4), np.float64), 1)
        return swapped, copied, c.gather_bytes(b"x" * (c.rank * 1000), "test")

    sent = np.stack([data(r, (3, 2, 4), np.float32) for r in range(3)])
    for rank, (swapped, copied, payloads) in enumerate(run(3, work)):
        np.testing.assert_array_equal(swapped, sent[:, rank])
        np.testing.assert_array_equal(copied, data(1, (4, 4), np.float64))
        assert payloads == [b"", b"x" * 1000, b"x" * 2000]


def test_what_cannot_be_divided_is_refused(run: Any) -> None:
    with pytest.raises(ShapeError, match="0-d"):
        run(1, lambda c: c.reduce_scatter(data(0, (), np.float32)))
    with pytest.raises(ShapeError, match="must be the 1 ranks"):
        run(1, lambda c: c.all_to_all(data(0, (2,), np.float32)))


def test_every_boxing_pair_gives_the_right_values(run: Any) -> None:
    import cupy

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
            shard = scatter(whole, a, p).get(rank)
            mine = None if shard is None else cupy.asarray(shard)
            after = run_route(type, route, rank, mine, of, cupy.empty)
            if rank in q and route:
                assert isinstance(after, cupy.ndarray)
            results.append(mine if not route else after)
        return results

    results = run(4, work, sets=True)
    for i, (_, _, b, q) in enumerate(cases):
        shards = {r: np.array(results[r][i]) for r in q.rank_ids}
        np.testing.assert_array_equal(gathered(shards, (6, 5), b, q), whole)


def test_received_bytes_are_those_announced(run: Any) -> None:
    import cupy

    line = Placement("cpu", [0, 1, 2])
    type = TensorType((300, 64), float32)
    whole = np.ones((300, 64), np.float32)
    for a, b in itertools.product(all_sbp(1), repeat=2):
        route = choose_route(type, a, line, b, line)

        def work(c: Any, a: Any = a, route: Any = route) -> int:
            shard = cupy.asarray(scatter(whole, a, line)[c.rank])
            run_route(type, route, c.rank, shard, lambda ranks: c, cupy.empty)
            nbytes: int = c.received_nbytes
            return nbytes

        assert sum(run(3, work)) == boxing_bytes(type, a, line, b, line), (a, b)


@pytest.mark.parametrize("run", ["nccl"], indirect=True)
def test_bytes_of_every_primitive(run: Any) -> None:
    def work(c: Any) -> list[int]:
        found = []
        for call in (
            lambda: c.all_reduce(data(0, (30,), np.float64)),
            lambda: c.all_reduce_each([data(0, (30,), np.float64), data(0, (3,), np.float64)]),
            lambda: c.reduce_scatter(data(0, (30, 2), np.float64)),
            lambda: c.reduce_scatter(data(0, (31, 2), np.float64)),
            lambda: c.all_gather(data(0, (10,), np.float64)),
            lambda: c.all_to_all(data(0, (3, 10), np.float64)),
            lambda: c.broadcast(data(0, (10,), np.float64), 0),
        ):
            before = c.received_nbytes
            call()
            found.append((c.received_nbytes - before) // 8)
        return found

    rows = run(3, work)
    assert rows[1] == [40, 44, 40, 40, 20, 20, 10]
    assert rows[0][3] == 44 and rows[0][6] == 0


@pytest.mark.parametrize("run", ["nccl"], indirect=True)
def test_several_sums_in_one_launch(run: Any) -> None:
    def work(c: Any) -> Any:
        stand_in_cupy.events().clear()
        sums = c.all_reduce_each([data(c.rank, (4,), np.float32), data(c.rank, (2, 2), np.int32)])
        mixed = c.all_reduce_each([data(c.rank, (4,), np.complex64)])
        names = [e[0] for e in stand_in_cupy.events()]
        begin = names.index("groupStart")
        assert names[begin : begin + 4] == ["groupStart", "allReduce", "allReduce", "groupEnd"]
        return [*sums, *mixed]

    for a, b, c in run(2, work):
        np.testing.assert_array_equal(a, data(0, (4,), np.float32) + data(1, (4,), np.float32))
        np.testing.assert_array_equal(b, data(0, (2, 2), np.int32) + data(1, (2, 2), np.int32))
        np.testing.assert_array_equal(c, data(0, (4,), np.complex64) + data(1, (4,), np.complex64))


@pytest.mark.parametrize("run", ["nccl"], indirect=True)
@pytest.mark.parametrize("shape", [(6, 4), (6,), (6, 2, 3)])
def test_steps_that_nccl_knows_are_its_calls(run: Any, shape: tuple[int, ...]) -> None:
    import cupy

    line, type = Placement("cpu", [0, 1, 2]), TensorType(shape, float32)
    whole = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)

    def work(c: Any) -> Any:
        found = []
        for a, b in (((Split(0),), (BROADCAST,)), ((PARTIAL,), (Split(0),))):
            route = choose_route(type, a, line, b, line)
            shard = cupy.asarray(scatter(whole, a, line)[c.rank])
            stand_in_cupy.events().clear()
            with c.deferred():
                after = run_route(type, route, c.rank, shard, lambda ranks: c, cupy.empty)
            names = [e[0] for e in stand_in_cupy.events()]
            assert "send" not in names
            found.append((after, "allGather" in names, "reduceScatter" in names))
        return found

    for rank, (copy, part) in enumerate(run(3, work)):
        np.testing.assert_array_equal(copy[0], whole)
        np.testing.assert_array_equal(part[0], whole[2 * rank : 2 * rank + 2])
        assert copy[1:] == (True, False) and part[1:] == (False, True)


@pytest.mark.parametrize("run", ["nccl"], indirect=True)
def test_a_target_with_gaps_is_filled_too(run: Any) -> None:
    import cupy

    type, line = TensorType((6, 4), float32), Placement("cpu", [0, 1, 2])
    whole = np.random.default_rng(3).integers(-9, 9, (6, 4)).astype(np.float32)
    step = make_step((Split(0),), line, (BROADCAST,), line)
    (exchange,) = step_exchanges(type.shape, step)

    def work(c: Any) -> Any:
        wide = cupy.empty((6, 9), np.float32)
        c.transfer("wide", cupy.asarray(whole[2 * c.rank : 2 * c.rank + 2]), wide[:, 2:6], exchange)
        return wide

    for wide in run(3, work):
        np.testing.assert_array_equal(wide[:, 2:6], whole)
        assert (wide[:, :2] == 77).all() and (wide[:, 6:] == 77).all()


# ---- streams -------------------------------------------------------------------------------------


def _stream_events(call: Callable[[Any], Any], **options: Any) -> list[tuple[Any, ...]]:
    """Acts of one rank's streams in a call that all ranks have agreed on before."""
    with stand_in_cupy.installed():
        host = InProcessGroup((0,)).collectives(0)
        c = NcclCollectives("streams", 0, (0,), LocalStore(), host, **options)
        call(c)
        stand_in_cupy.events().clear()
        call(c)
        found = list(stand_in_cupy.events())
        c.close()
    return found


def test_a_call_is_ordered_between_the_kernels_before_and_after() -> None:
    found = _stream_events(lambda c: c.all_reduce(data(0, (4,), np.float32)))
    before, ready, started, done, after = found
    own = started[1]
    assert before[:2] == ("record", 0) and ready == ("wait", own, before[2])
    assert started == ("allReduce", own) and own != 0
    assert done[:2] == ("record", own) and after == ("wait", 0, done[2])


def test_additions_run_on_the_own_stream() -> None:
    import cupy

    streams: list[tuple[str, int]] = []

    def noted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            streams.append((name, cupy.cuda.get_current_stream().ptr))
            return function(*args, **kwargs)

        return call

    host = InProcessGroup((0,)).collectives(0)
    c = NcclCollectives("copies", 0, (0,), LocalStore(), host)
    exchange = sum_exchange((0,), 4)
    twice = Exchange((0,), lambda rank: [*_pulls(exchange, False), *_pulls(exchange, True)])
    target = data(1, (4,), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REDUCTIONS, "sum", noted("add", np.add))
        c.transfer("twice", data(0, (4,), np.float32), target, twice)
    np.testing.assert_array_equal(target, 2 * data(0, (4,), np.float32))
    own = c._stream.ptr
    assert own != 0 and streams == [("add", own)]
    c.close()


def _pulls(exchange: Exchange, add: bool) -> list[Pull]:
    return [Pull(0, r.source_slices, r.target_slices, add) for r in exchange.reads(0)]


def test_what_lies_in_one_piece_moves_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    copies: list[Any] = []
    monkeypatch.setattr(cupy, "copyto", lambda *args: copies.append(args) or np.copyto(*args))
    ascontiguous = cupy.ascontiguousarray

    def counted(x: Any) -> Any:
        if not x.flags.c_contiguous:
            copies.append(x)
        return ascontiguous(x)

    monkeypatch.setattr(cupy, "ascontiguousarray", counted)
    type = TensorType((8, 6), float32)
    src, dst = Placement("cpu", [0, 1]), Placement("cpu", [2, 3])
    store, groups = LocalStore(), InProcessGroup((0, 1, 2, 3))
    whole = np.random.default_rng(3).integers(-9, 9, (8, 6)).astype(np.float32)

    def rank(i: int) -> Any:
        c = NcclCollectives("one", i, range(4), store, groups.collectives(i))
        route = choose_route(type, (Split(0),), src, (Split(0),), dst)
        shard = scatter(whole, (Split(0),), src).get(i)
        mine = None if shard is None else cupy.asarray(shard)
        after = run_route(type, route, i, mine, lambda ranks: c, cupy.empty)
        c.close()
        return after

    results = in_threads(4, rank)
    np.testing.assert_array_equal(np.concatenate(results[2:]), whole)
    assert not copies


def test_deferred_calls_hold_the_kernels_up_once_at_the_end() -> None:
    def call(c: Any) -> None:
        with c.deferred():
            for _ in range(3):
                c.all_reduce(data(0, (4,), np.float32))
            assert c._held is not None and len(c._held) == 3  # arrays that must stay
        assert c._held is None

    found = _stream_events(call)
    waits = [i for i, e in enumerate(found) if e[:2] == ("wait", 0)]
    assert waits == [len(found) - 1]
    assert [e[0] for e in found].count("allReduce") == 3


def test_calls_can_share_the_stream_of_the_kernels() -> None:
    found = _stream_events(lambda c: c.all_reduce(data(0, (4,), np.float32)), own_stream=False)
    assert [e[:2] for e in found] == [("allReduce", 0), ("record", 0)]
