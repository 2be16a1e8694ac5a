"""Pieces of work in threads: each is done once, by any thread, and results are the same."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.op import find_op
from oneflow.core.rng import Rng
from oneflow.kernels import threads
from oneflow.kernels.array import data_address
from oneflow.kernels.expressions.binding import compiled_kernel
from oneflow.kernels.native import thread_pool
from oneflow.kernels.native.machine_code import address_at
from oneflow.kernels.native.program import Program, at, function_of
from oneflow.kernels.threads import cut, handed_out

from .run_kernel import garbage, run, type_of

POOLS = [thread_pool.NativePool, thread_pool.PythonPool]
Pool = thread_pool.NativePool | thread_pool.PythonPool


def _write_add_one() -> Program:
    p = Program(("begin", "end", "x"))
    p.loop(p["begin"], p["end"], lambda i, _: p.store(p.load(at(p["x"], i)) + 1.0, at(p["x"], i)))
    return p


def add_one(pool: Pool, x: np.ndarray[Any, Any], pieces: int, threads: int) -> bool:
    ends = [x.size * i // pieces for i in range(pieces + 1)]
    numbers = [n for i in range(pieces) for n in (ends[i], ends[i + 1], data_address(x))]
    tables = struct.pack(f"{len(numbers)}q", *numbers)
    return pool.hand_out(address_at(function_of(_write_add_one)), tables, 24, pieces, threads)


@pytest.fixture(params=POOLS, ids=["native", "python"])
def pool(request: pytest.FixtureRequest) -> Pool:
    if request.param is thread_pool.NativePool and not thread_pool.has_futexes():
        pytest.skip("this system has no futexes")
    made: Pool = request.param()
    return made


@pytest.mark.parametrize("helpers", [0, 1, 5])
def test_each_piece_is_done_once(pool: Pool, helpers: int) -> None:
    x = np.zeros(1003, np.float32)
    for pieces in (1, 2, 16, 61) * 25:
        assert not add_one(pool, x, pieces, helpers + 1)
    np.testing.assert_array_equal(x, np.full(1003, 100, np.float32))


def test_several_callers_at_once_do_all_their_pieces(pool: Pool) -> None:
    arrays = [np.zeros(1003, np.float32) for _ in range(4)]

    def call(x: np.ndarray[Any, Any]) -> None:
        for _ in range(200):
            add_one(pool, x, 8, 3)

    callers = [threading.Thread(target=call, args=(x,)) for x in arrays]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for x in arrays:
        np.testing.assert_array_equal(x, np.full(1003, 200, np.float32))


def test_one_piece_that_refuses_is_told(pool: Pool) -> None:
    def write() -> Program:
        p = Program(("is_refused",))
        p.when(p["is_refused"].compare("ne", 0), lambda: p.code.do("ret i32 1"))
        return p

    address = address_at(function_of(write))
    for refusing in (None, 0, 9):
        tables = struct.pack("10q", *[int(i == refusing) for i in range(10)])
        assert pool.hand_out(address, tables, 8, 10, 3) is (refusing is not None)


def test_a_fork_makes_threads_of_its_own(use_threads: Callable[..., None]) -> None:
    use_threads(2, least=1)
    x = np.arange(5000, dtype=np.float32)
    want = run("silu", x)[0]
    child = os.fork()
    if not child:
        is_right = np.array_equal(run("silu", x)[0], want) and threading.active_count() <= 2
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("count", [1, 15, 16, 1000])
def test_pieces_cover_the_work(count: int, unit: int, use_threads: Callable[..., None]) -> None:
    use_threads(3, least=1)
    pieces = cut(count, 1 << 20, 24, unit)
    assert [i for begin, end in pieces for i in range(begin, end)] == list(range(count))
    assert all(begin % unit == 0 for begin, _ in pieces)
    assert 1 <= len(pieces) <= 24


# ---- which work is shared ------------------------------------------------------------------------


def handed_out_by(work: Callable[[], object]) -> int:
    before = handed_out()
    work()
    return handed_out() - before


class Chain(nn.Graph):
    def build(self, x: flow.Tensor) -> flow.Tensor:
        return flow.softmax(flow.tanh(x) * 2 + 1, dim=-1).sum(dim=0)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(("rows", "is_shared"), [(40, False), (20_000, True)])
def test_large_ops_alone_are_shared(
    mode: str, rows: int, is_shared: bool, use_threads: Callable[..., None]
) -> None:
    use_threads(2)
    x = flow.randn(rows, 64)
    graph = Chain()
    work = graph if mode == "graph" else graph.build
    work(x)
    assert (handed_out_by(lambda: work(x)) > 0) is is_shared


def test_one_thread_hands_out_nothing(use_threads: Callable[..., None]) -> None:
    use_threads(1)
    x = flow.randn(20_000, 64)
    assert handed_out_by(lambda: flow.tanh(x)) == 0


def test_set_num_threads_acts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_limit", None)
    monkeypatch.setattr(threads, "usable", lambda: 8)
    monkeypatch.setattr(threads, "limit_blas", lambda _: True)
    x = flow.randn(20_000, 64)
    for count in (1, 3, 1):
        flow.set_num_threads(count)
        assert flow.get_num_threads() == count
        assert (handed_out_by(lambda: flow.tanh(x)) > 0) is (count > 1)


# ---- results do not depend on threads ------------------------------------------------------------


def results(use_threads: Callable[..., None], work: Callable[[], Any]) -> list[Any]:
    found = []
    for count in (1, 2, 5):
        use_threads(count, least=1)
        found.append(work())
    return found


def same(found: list[Any]) -> None:
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("shape", [(7, 1001), (1001, 7), (3, 5, 211)])
def test_arrays_that_are_not_contiguous(
    shape: tuple[int, ...], rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    x = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(np.float32)[..., ::2].T
    found = results(use_threads, lambda: run("silu", x)[0])
    np.testing.assert_allclose(found[0], x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
    same(found)


@pytest.mark.parametrize("shape", [(4099,), (41, 100), (300, 11)])
def test_random_numbers(shape: tuple[int, ...], use_threads: Callable[..., None]) -> None:
    x, rng = np.ones(shape, np.float32), Rng(17, shape, (0,) * len(shape))
    kernel = compiled_kernel(find_op("dropout"), (type_of(x),), {"p": 0.4, "seed": 17})

    def draw() -> Any:
        out = garbage(shape, np.float32)
        kernel(np, out, x, rng=rng)
        return out

    same(results(use_threads, draw))
