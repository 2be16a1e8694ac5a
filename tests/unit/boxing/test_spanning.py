"""Ranks on several pretended hosts: the bytes between hosts, and that all get the same."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.boxes import shard_box
from oneflow.boxing.collectives.exchange import step_exchanges
from oneflow.boxing.collectives.spanning import BLOCK_NBYTES, SpanningCollectives
from oneflow.boxing.collectives.tcp_call import HEADER
from oneflow.boxing.execute import run_route
from oneflow.boxing.transitions import RouteStep
from oneflow.core.dtype import float32
from oneflow.core.errors import DesyncError, PeerLostError, TransportError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp
from oneflow.core.tensor_type import TensorType
from tests.support.waiting import CALL_S

from .boxing_layouts import all_sbp, gathered, scatter
from .boxing_ranks import LocalStore, in_threads

Work = Callable[[SpanningCollectives], Any]


def run(hosts: str, work: Work) -> list[Any]:
    """work(collectives) on every rank; hosts: a letter for each rank."""
    store, name, ranks = LocalStore(), uuid.uuid4().hex, tuple(range(len(hosts)))

    def rank(i: int) -> Any:
        c = SpanningCollectives(name, i, ranks, hosts, store, timeout_s=CALL_S)
        try:
            return work(c)
        except Exception as error:
            return error
        finally:
            c.close()

    results = in_threads(len(hosts), rank)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, DesyncError):
            raise result
    return results


def per_host(hosts: str, numbers: list[int]) -> dict[str, int]:
    return {h: sum(n for g, n in zip(hosts, numbers, strict=True) if g == h) for h in hosts}


# ---- bytes between hosts -------------------------------------------------------------------------

NUMEL = 2 * 3 * 4 * 5 * 1000
BOUNDS: dict[str, tuple[Work, Callable[[float, float], float]]] = {
    # (share of a host in all ranks, number of hosts) -> whole tensors into this host
    "all_gather": (lambda c: c.all_gather(np.ones(NUMEL // c.size)), lambda s, h: 1 - s),
    "reduce_scatter": (lambda c: c.reduce_scatter(np.ones(NUMEL)), lambda s, h: s * (h - 1)),
    "all_reduce": (lambda c: c.all_reduce(np.ones(NUMEL)), lambda s, h: 2 * (h - 1) / h),
}


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abb", "aabcb"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_host_receives_the_lower_bound(name: str, hosts: str) -> None:
    work, bound = BOUNDS[name]

    def rank(c: SpanningCollectives) -> int:
        work(c)
        return c.far_nbytes

    found = per_host(hosts, run(hosts, rank))
    for host, nbytes in found.items():
        share = hosts.count(host) / len(hosts)
        assert nbytes == round(bound(share, len(found)) * NUMEL) * 8, host


def test_all_to_all_and_broadcast_cross_once() -> None:
    def rank(c: SpanningCollectives) -> tuple[int, int]:
        c.all_to_all(np.ones((4, 1000)))
        first = c.far_nbytes
        c.broadcast(np.ones(10_001), 3)
        return first, c.far_nbytes - first

    swapped, copied = zip(*run("aabb", rank), strict=True)
    assert set(swapped) == {2 * 8000}
    assert per_host("aabb", list(copied)) == {"a": 80_008, "b": 0}
    assert min(copied[:2]) == 8 * 5000  # both links of the host carry half


def test_no_pair_of_layouts_moves_a_cell_to_a_host_twice() -> None:
    grid, shape = Placement("cpu", [[0, 1], [2, 3]]), (8, 12)
    layouts = [n for n in all_sbp(2) if not any(s.is_partial for s in n)]
    pairs = [p for p in itertools.product(layouts, repeat=2) if p[0] != p[1]]
    whole = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)

    def rank(c: SpanningCollectives) -> list[Any]:
        found = []
        for a, b in pairs:
            step = RouteStep("transfer", a, grid, b, grid)
            target = np.empty(shard_box(shape, b, grid, c.rank).shape, np.float32)
            before = c.far_nbytes
            source = scatter(whole, a, grid)[c.rank]
            c.transfer("pair", source, target, step_exchanges(shape, step)[0])
            found.append((target, c.far_nbytes - before))
        return found

    for hosts in ("aabb", "abab"):
        results = run(hosts, rank)
        for i, (a, b) in enumerate(pairs):
            shards = {r: results[r][i][0] for r in range(4)}
            np.testing.assert_array_equal(gathered(shards, shape, b, grid), whole)
            moved = per_host(hosts, [results[r][i][1] for r in range(4)])
            for host in "ab":
                ranks = [r for r in range(4) if hosts[r] == host]
                missing = cells(shape, b, grid, ranks) - cells(shape, a, grid, ranks)
                assert moved[host] == 4 * len(missing), (a, b, hosts)


def cells(shape: tuple[int, ...], nd_sbp: NdSbp, grid: Placement, ranks: list[int]) -> set[Any]:
    """The elements that these ranks hold, one by one."""
    boxes = [shard_box(shape, nd_sbp, grid, r) for r in ranks]
    return {
        at
        for box in boxes
        for at in itertools.product(
            *(range(a, b) for a, b in zip(box.starts, box.stops, strict=True))
        )
    }


def test_ranks_of_a_host_exchange_nothing_but_headers_over_sockets() -> None:
    hosts = "aab"

    def rank(c: SpanningCollectives) -> list[int]:
        c.all_reduce(np.ones(50_000))
        c.all_gather(np.ones(5000))
        c.reduce_scatter(np.ones((7, 900)))
        headers = c._far._number * HEADER.size
        near = [r for r in c.peers if hosts[r] == hosts[c.rank]]
        return [c._far.links[r].received_nbytes - headers for r in near]

    assert run(hosts, rank) == [[0], [0], []]


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", ["aabb", "aba", "abcab"])
@pytest.mark.parametrize("size", [1, 11, 40_000, BLOCK_NBYTES // 4 + 5])
def test_float_sums_are_equal_to_the_last_bit_on_all_ranks(hosts: str, size: int) -> None:
    def mine(rank: int) -> Any:
        return np.random.default_rng(rank).standard_normal(size).astype(np.float32)

    def rank(c: SpanningCollectives) -> tuple[bytes, bytes]:
        x = mine(c.rank)
        return c.all_reduce(x).tobytes(), c.all_reduce(x, out=x).tobytes()

    expected = sum(mine(r).astype(np.float64) for r in range(len(hosts)))
    results = run(hosts, rank)
    assert len({sums for both in results for sums in both}) == 1
    got = np.frombuffer(results[0][0], np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcc"])
@pytest.mark.parametrize("kind", ["transfer", "sum_and_spread"])
@pytest.mark.parametrize("src", [(PARTIAL, PARTIAL), (PARTIAL, BROADCAST), (BROADCAST, PARTIAL)])
def test_copies_of_a_boxed_float_sum_are_equal_to_the_last_bit(
    src: NdSbp, kind: str, hosts: str
) -> None:
    grid, shape = Placement("cpu", [[0, 1], [2, 3]]), (6, 10)
    step = RouteStep(kind, src, grid, (BROADCAST, BROADCAST), grid)

    def shard(rank: int) -> Any:
        at = grid.coordinate(rank)
        addend = sum(i << n for n, i in enumerate(at) if src[n].is_partial)
        return np.random.default_rng(addend).standard_normal(shape).astype(np.float32)

    def rank(c: SpanningCollectives) -> bytes:
        return run_route(
            TensorType(shape, float32), (step,), c.rank, shard(c.rank), lambda ranks: c
        ).tobytes()  # type: ignore[union-attr]

    copies = run(hosts, rank)
    assert len(set(copies)) == 1
    addends = [shard(r) for r in range(4)] if src == (PARTIAL, PARTIAL) else [shard(0), shard(3)]
    got = np.frombuffer(copies[0], np.float32).reshape(shape)
    np.testing.assert_allclose(got, sum(addends), rtol=1e-5, atol=1e-5)


def test_scalars_cross_hosts() -> None:
    line, type = Placement("cpu", [0, 1, 2]), TensorType((), float32)
    for a, b in itertools.product([n for n in all_sbp(1) if not n[0].is_split], repeat=2):
        step = RouteStep("transfer", a, line, b, line)

        def rank(c: SpanningCollectives, a: Any = a, step: Any = step) -> Any:
            target = np.empty((), np.float32)
            shard = scatter(np.array(5.0, np.float32), a, line)[c.rank]
            c.transfer("scalar", shard, target, step_exchanges(type.shape, step)[0])
            return target

        shards = dict(enumerate(run("abb", rank)))
        assert gathered(shards, (), b, line) == 5.0


def test_a_call_that_differs_on_one_host_is_found_on_all() -> None:
    def rank(c: SpanningCollectives) -> Any:
        out, text = np.full(9000, 7.0), ""
        try:
            c.all_reduce(np.ones(9000), "max" if c.rank == 2 else "sum", out=out)
        except DesyncError as error:
            text = str(error)
        return text, bool((out == 7.0).all()), c.all_reduce(np.ones(9000)).tolist() == [4.0] * 9000

    for text, is_untouched, next_works in run("aabb", rank):
        assert is_untouched and next_works
        for r in range(4):
            op = "max" if r == 2 else "sum"
            assert f"rank {r}: all_reduce({op}) float64[9000] at" in text


def test_after_an_error_inside_a_host_no_call_goes_on() -> None:
    over = threading.Event()

    def gone(ranks: Any) -> None:
        raise PeerLostError(f"ranks {list(ranks)} are gone")

    def rank(c: SpanningCollectives) -> Any:
        if c.rank == 1:  # agrees on the call, then does not do its part inside the host
            c._inside = lambda *args: over.wait(CALL_S)  # type: ignore[assignment,misc,return-value]
        c._peer_check = gone if c.rank == 0 else None
        try:
            c.all_reduce(np.ones(9000))
        except PeerLostError as error:
            with pytest.raises(TransportError, match="cut off since all_reduce"):
                c.barrier()
            over.set()
            return str(error)

    first, *_ = run("aab", rank)
    assert first.startswith("ranks [1] are gone (rank 0 was in all_reduce(sum) float64[9000] at")
