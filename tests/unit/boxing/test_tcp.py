"""Traffic over the sockets: the receivers of bytes, and the end of calls that do not fit."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.base import call_info
from oneflow.boxing.collectives.exchange import Exchange, gather_exchange, step_exchanges
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.tcp import TcpCollectives
from oneflow.boxing.collectives.tcp_call import EAGER_NBYTES, HEADER
from oneflow.boxing.execute import run_route
from oneflow.boxing.route import choose_route
from oneflow.core.dtype import float32
from oneflow.core.errors import DesyncError, TransportError
from oneflow.core.job_tls import _made
from oneflow.core.placement import Placement
from oneflow.core.tensor_type import TensorType
from oneflow.services.tls_relay import Relay
from tests.support.waiting import CALL_S, be_late

from .boxing_layouts import all_sbp, gathered, scatter
from .boxing_ranks import LocalStore, in_threads

Array = np.ndarray[Any, Any]
Work = Callable[[TcpCollectives], Any]


def run(p: int, work: Work, **options: Any) -> list[Any]:
    """work(collectives) on every rank, each in a thread; an error is a result too."""
    store, name, ranks = LocalStore(), uuid.uuid4().hex, tuple(range(p))

    def rank(i: int) -> Any:
        c = TcpCollectives(name, i, ranks, store, timeout_s=CALL_S, **options)
        try:
            return work(c)
        except Exception as error:
            return error
        finally:
            c.close()

    return in_threads(p, rank)


def kernel_nbytes(c: TcpCollectives, peer: int) -> int:
    """Bytes that the operating system has received from a peer: tcpi_bytes_received."""
    info = c.links[peer].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return int(struct.unpack_from("Q", info, 128)[0])


class Meter:
    """Reads the counters of the operating system while nobody sends."""

    def __init__(self, p: int) -> None:
        self._barrier = threading.Barrier(p, timeout=CALL_S)

    def received(self, c: TcpCollectives, work: Work) -> int:
        """Bytes that some calls bring into this rank, without headers."""
        numbers, totals = [], []
        for act in (lambda c: None, work):
            act(c)
            self._barrier.wait()
            totals.append(sum(kernel_nbytes(c, peer) for peer in c.peers))
            numbers.append(c._number)
            self._barrier.wait()
        headers = (numbers[1] - numbers[0]) * len(c.peers) * HEADER.size
        return totals[1] - totals[0] - headers


# ---- bytes ---------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Work, Callable[[int, int], int]]] = {
    "all_to_all": (lambda c: c.all_to_all(np.ones((c.size, 700), np.float32)), lambda r, p: p - 1),
    "all_gather": (lambda c: c.all_gather(np.ones(700, np.float32)), lambda r, p: p - 1),
    "broadcast": (lambda c: c.broadcast(np.ones(700, np.float32), 1), lambda r, p: int(r != 1)),
    "reduce_scatter": (
        lambda c: c.reduce_scatter(np.ones((c.size, 700), np.float32)),
        lambda r, p: p - 1,
    ),
    "all_reduce": (  # 2T(p-1)/p
        lambda c: c.all_reduce(np.ones((c.size, 700 * 100), np.float32)),
        lambda r, p: 2 * (p - 1) * 100,
    ),
}


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_every_rank_receives_the_lower_bound_and_counts_it(name: str, p: int) -> None:
    work, parts = CALLS[name]
    meter = Meter(p)

    def rank(c: TcpCollectives) -> tuple[int, int]:
        return meter.received(c, work), c.received_nbytes

    for r, (seen, counted) in enumerate(run(p, rank)):
        assert seen == counted == parts(r, p) * 700 * 4


def test_boxing_receives_what_its_exchanges_say() -> None:
    line, type = Placement("cpu", [0, 1, 2]), TensorType((90, 64), float32)
    whole = np.ones((90, 64), np.float32)
    for a, b in itertools.product(all_sbp(1), repeat=2):
        route = choose_route(type, a, line, b, line)
        if len(route) != 1 or route[0].kind == "all_reduce":
            continue

        meter = Meter(3)

        def rank(
            c: TcpCollectives, a: Any = a, route: Any = route, meter: Meter = meter
        ) -> tuple[int, int]:
            shard = scatter(whole, a, line)[c.rank]
            seen = meter.received(
                c, lambda c: run_route(type, route, c.rank, shard, lambda ranks: c)
            )
            exchanges = step_exchanges((90, 64), route[0])
            return seen, 4 * sum(e.received_numel(c.rank) for e in exchanges)

        for seen, said in run(3, rank):
            assert seen == said, (a, b)


def test_a_part_that_a_rank_wants_twice_comes_once() -> None:
    def pulls_of(rank: int) -> list[Pull]:
        part = (slice(2, 5), slice(1, 3))
        places = [(slice(i, i + 3), slice(0, 2)) for i in (0, 4)]
        return [Pull(0, part, place, False) for place in places] if rank else []

    def rank(c: TcpCollectives) -> tuple[Array, int]:
        target = np.zeros((8, 2))
        c.transfer("twice", np.arange(24.0).reshape(6, 4), target, Exchange((0, 1), pulls_of))
        return target, c.received_nbytes

    target, nbytes = run(2, rank)[1]
    part = np.arange(24.0).reshape(6, 4)[2:5, 1:3]
    np.testing.assert_array_equal(target[0:3], part)
    np.testing.assert_array_equal(target[4:7], part)
    assert nbytes == part.nbytes


def test_a_sum_into_given_memory_allocates_nothing_of_its_size() -> None:
    peaks = []

    def rank(c: TcpCollectives) -> None:
        x, out = np.ones(6 << 20, np.float32), np.empty(6 << 20, np.float32)
        c.all_reduce(x, out=out)  # makes the memory that is kept
        c.barrier()
        if c.rank == 0:
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        c.barrier()
        c.all_reduce(x, out=out)
        c.barrier()
        if c.rank == 0:
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            tracemalloc.stop()

    assert run(2, rank) == [None, None]
    assert peaks[0] < 2 << 20, peaks


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 70_000, 300_001])
@pytest.mark.parametrize("in_place", [False, True])
def test_sums_have_the_bits_of_other_backends(size: int, in_place: bool) -> None:
    def mine(rank: int) -> Array:
        return np.random.default_rng(rank).standard_normal(size).astype(np.float32)

    def rank(c: Any) -> Any:
        x = mine(c.rank)
        return c.all_reduce(x, out=x if in_place else None), c.reduce_scatter(mine(c.rank))

    group = InProcessGroup((0, 1, 2))
    expected = in_threads(3, lambda i: rank(group.collectives(i)))
    for got, wanted in zip(run(3, rank), expected, strict=True):
        assert got[0].tobytes() == wanted[0].tobytes()
        assert got[1].tobytes() == wanted[1].tobytes()


@pytest.mark.parametrize("dtype", [np.bool_, np.complex128, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (5, 3), (700, 401)])
def test_any_dtype_and_shape_arrives(dtype: Any, shape: tuple[int, ...]) -> None:
    def mine(rank: int) -> Array:
        return np.random.default_rng(rank).integers(0, 2, shape).astype(dtype)

    def rank(c: TcpCollectives) -> Any:
        x = mine(c.rank)
        return c.broadcast(x, 1), c.all_gather(x), c.all_reduce(x, "max")

    for copied, joined, largest in run(2, rank):
        np.testing.assert_array_equal(copied, mine(1))
        np.testing.assert_array_equal(joined, np.concatenate([mine(r).reshape(-1) for r in (0, 1)]))
        np.testing.assert_array_equal(largest, np.maximum(mine(0), mine(1)))


def test_large_strided_parts_are_packed_and_unpacked_in_blocks() -> None:
    line, type = Placement("cpu", [0, 1]), TensorType((1201, 903), float32)
    whole = np.random.default_rng(0).integers(-9, 9, (1201, 903)).astype(np.float32)
    for a, b in itertools.product(all_sbp(1), repeat=2):
        route = choose_route(type, a, line, b, line)

        def rank(c: TcpCollectives, a: Any = a, route: Any = route) -> Any:
            return run_route(type, route, c.rank, scatter(whole, a, line)[c.rank], lambda ranks: c)

        shards = dict(enumerate(run(2, rank)))
        np.testing.assert_array_equal(gathered(shards, whole.shape, b, line), whole)


# ---- calls that differ ---------------------------------------------------------------------------


@pytest.mark.parametrize("numel", [3, EAGER_NBYTES])
def test_a_call_that_differs_touches_nothing_and_the_next_works(numel: int) -> None:
    def rank(c: TcpCollectives) -> Any:
        out = np.full(numel, 7.0)
        text = ""
        try:
            if c.rank == 1:
                c.reduce_scatter(np.ones(numel))
            else:
                c.all_reduce(np.ones(numel), out=out)
        except DesyncError as error:
            text = str(error)
        return text, out, c.received_nbytes, c.all_reduce(np.arange(numel, dtype=np.float64))

    for text, out, nbytes, following in run(3, rank):
        for r, call in enumerate(["all_reduce", "reduce_scatter", "all_reduce"]):
            assert f"rank {r}: {call}(sum) float64[{numel}] at" in text
        assert text.count("test_tcp.py:") == 3
        assert (out == 7.0).all() and nbytes == 0
        np.testing.assert_array_equal(following, 3 * np.arange(numel))


def test_a_transfer_that_differs_does_not_even_copy_what_is_there() -> None:
    def rank(c: TcpCollectives) -> Any:
        target = np.full(4, 7.0)
        try:
            what = "one thing" if c.rank else "another"
            c.transfer(what, np.ones(2), target, gather_exchange((0, 1), (2, 2)))
        except DesyncError:
            return target.tolist()

    assert run(2, rank) == [[7.0] * 4] * 2


def test_exchanges_that_differ_under_one_name_are_found() -> None:
    def rank(c: TcpCollectives) -> None:
        part = slice(c.rank, c.rank + 3)  # the ranks do not mean the same part
        exchange = Exchange((0, 1), lambda r: [Pull(1 - r, (part,), (slice(0, 3),), False)])
        c.transfer("swap", np.zeros(8), np.zeros(3), exchange)

    assert [type(e) for e in run(2, rank)] == [DesyncError, DesyncError]


@pytest.mark.parametrize(
    ("nbytes", "eager", "message"),
    [
        (1 << 60, 0, "rank 1 announces 1152921504606846976 bytes, where 1 are due"),
        (1 << 60, 1 << 50, "rank 1 sent what is no header of call 1"),
        (-1, 0, "rank 1 sent what is no header of call 1"),
    ],
)
def test_a_wrong_length_is_an_error_that_names_the_peer(
    nbytes: int, eager: int, message: str
) -> None:
    def rank(c: TcpCollectives) -> None:
        if c.rank == 0:
            try:
                c.barrier()
            finally:
                with pytest.raises(TransportError, match="cut off since barrier at"):
                    c.barrier()
        signature = call_info("barrier", "", (), "").signature
        signature ^= gather_exchange((0, 1), (1, 1)).signature
        header = HEADER.pack(1, signature, nbytes, eager, b"")
        c.links[0].socket.sendall(header)
        c.links[0].socket.setblocking(True)
        c.links[0].socket.recv(1 << 16, socket.MSG_WAITALL)  # until rank 0 has given up

    error = run(2, rank)[0]
    assert isinstance(error, TransportError) and message in str(error), error


def test_over_tls_a_rank_that_is_done_early_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays move at chance speeds, so one rank may leave before another has read its part."""
    rng, move = random.Random(5), Relay._move

    def late(relay: Relay) -> bool:
        if rng.random() < 0.3:
            be_late(rng.random() * 0.02)
        return move(relay)

    monkeypatch.setattr(Relay, "_move", late)
    parts = np.arange(30_000, dtype=np.float32).reshape(3, -1)
    for _ in range(20):
        for found in run(3, lambda c: c.all_gather(parts[c.rank]), tls=_made("t" * 64)):
            np.testing.assert_array_equal(found, parts.ravel())


@pytest.mark.parametrize("p", [2, 3])
def test_over_tls_every_call_brings_the_same(p: int) -> None:
    def work(c: TcpCollectives) -> list[Array]:
        mine = np.arange(70_000, dtype=np.float32) + c.rank
        spread = c.all_to_all(np.stack([mine * i for i in range(c.size)]))
        return [c.all_reduce(mine.copy()), c.all_gather(mine), spread]

    tls = _made("t" * 64)
    for over_tls, plain in zip(run(p, work, tls=tls), run(p, work), strict=True):
        assert not isinstance(over_tls, Exception), over_tls
        for found, expected in zip(over_tls, plain, strict=True):
            np.testing.assert_array_equal(found, expected)
