"""Blocks given to workers compute the same as without them."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import PositionError, ShapeError
from oneflow.tensor import workers
from oneflow.tensor.overlapping import use_worker
from oneflow.tensor.workers import Call, Worker, finish, queueing
from tests.support.waiting import WAIT_S, wait_until


@contextmanager
def held(worker: Any) -> Iterator[None]:
    """The worker of a Thread computes nothing inside the with-block."""
    gate = threading.Event()
    with queueing:
        worker._worker.queue(Call(worker._worker, lambda: gate.wait(WAIT_S), (), ""))
    try:
        yield
    finally:
        gate.set()


def is_pending(x: Any) -> bool:
    """Whether calls are remembered for the memory of `x`."""
    return x._extra is not None and x._extra.later is not None


def test_a_block_of_a_worker_has_the_same_results_in_the_same_order() -> None:
    worker = flow.asyncs.Thread()
    x = flow.ones(2)
    with flow.asyncs.thread(worker):
        x += 1.0
    y = x * 2.0
    assert y.tolist() == [4.0, 4.0] and repr(worker).startswith("oneflow.asyncs.Thread(")


def test_only_workers_and_numbers_take_blocks() -> None:
    for wrong in ("main", True, None):
        with pytest.raises(TypeError, match="needs an oneflow"), flow.asyncs.thread(wrong):
            pass
    with flow.asyncs.thread(1) as one, flow.asyncs.thread(2) as two:
        y = flow.ones(2) + 1.0
    with flow.asyncs.thread(1) as again:
        pass
    assert again is one and two is not one and y.tolist() == [2.0, 2.0]


def test_the_caller_goes_on_while_the_worker_computes() -> None:
    worker = flow.asyncs.Thread()
    x = flow.tensor([[1.0, -2.0], [3.0, 4.0]])
    with held(worker), flow.asyncs.thread(worker):
        y = flow.relu(x @ x).T
        first, second = flow.split(y, 1)
        assert is_pending(y) and y.shape == (2, 2) and first.shape == (1, 2)
    assert y.tolist() == [[0.0, 15.0], [0.0, 10.0]]
    assert second.tolist() == [[0.0, 10.0]] and not is_pending(y)


def test_two_workers_run_at_the_same_time() -> None:
    """Each of two calls ends only after the other has begun."""
    both = threading.Barrier(2, timeout=WAIT_S)
    ran = [Worker("a"), Worker("b")]
    calls = [Call(w, both.wait, (), "") for w in ran]
    for call in calls:
        call.worker.queue(call)
    for call in calls:
        call.wait()
    for worker in ran:
        worker.close()


def _program(seed: int, block: Callable[[int], Any]) -> list[np.ndarray[Any, Any]]:
    """200 random calls on six matrices. block: the context of calls of that number."""
    choose = random.Random(seed)
    rng = np.random.default_rng(seed)
    values = [flow.tensor(rng.standard_normal((4, 4))) for _ in range(6)]
    flow.manual_seed(seed)
    for step in range(200):
        a, b, to = (choose.randrange(6) for _ in range(3))
        kind = choose.randrange(10)
        with block(choose.randrange(3)):
            x, y = values[a], values[b]
            if kind == 0:
                x.mul_(0.5).add_(y)
            elif kind == 1:
                x[1:3] = y[:2] - 1.0
            elif kind == 2:
                x.data.fill_(float(step % 7))
            elif kind == 3:
                values[to] = flow.rand(4, 4, dtype=flow.float64) + x
            elif kind == 4:
                values[to] = x.T  # a view: later writes show through it
            elif kind == 5:
                x.numpy()[0] = 0.25
            elif kind == 6:
                values[to] = flow.sort(x.reshape(2, 8), dim=1)[0].reshape(4, 4)
            elif kind == 7:
                flow.nn.init.constant_(x, 0.75)
            else:
                values[to] = flow.tanh(x @ y)
    return [v.numpy().copy() for v in values]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_over_three_workers(seed: int) -> None:
    threads = [flow.asyncs.Thread() for _ in range(3)]
    wanted = _program(seed, lambda number: ExitStack())
    found = _program(seed, lambda number: flow.asyncs.thread(threads[number]))
    for w, f in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(f, w)


def test_writes_wait_for_queued_readers() -> None:
    worker = flow.asyncs.Thread()
    x = flow.ones(3)
    view = x[:2]
    found = []
    for write in (
        lambda: x.add_(1.0),
        lambda: view.fill_(5.0),
        lambda: x.data.copy_(flow.zeros(3)),
        lambda: flow.nn.init.constant_(view, 3.0),
        lambda: np.copyto(x.numpy(), 4.0),
    ):
        before = x.numpy().copy()
        with ExitStack() as stack, flow.asyncs.thread(worker):
            stack.enter_context(held(worker))
            y = x * 1.0
            writer = threading.Thread(target=write)
            writer.start()
            assert is_pending(y) and writer.is_alive()
            stack.close()
            writer.join()
        found.append((y.numpy(), before))
    for y_values, x_values in found:
        np.testing.assert_array_equal(y_values, x_values)
    assert x.tolist() == [4.0, 4.0, 4.0]


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.item(),
    "float": float,
    "int": int,
    "bool": bool,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy().item(),
    "array": lambda x: np.asarray(x).item(),
    "repr": lambda x: 6 if repr(x) == "tensor(6., dtype=oneflow.float32)" else repr(x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_waits_for_no_other_worker(read: Callable[[Any], Any]) -> None:
    one, two = flow.asyncs.Thread(), flow.asyncs.Thread()
    x = flow.tensor([1.0, 2.0, 3.0])
    with flow.asyncs.thread(one):
        total = x.sum()
    with held(two):
        with flow.asyncs.thread(two):
            other = x * 2.0
        assert read(total) in (6, True)
        assert is_pending(other) and not two._worker.is_idle
    assert other.tolist() == [2.0, 4.0, 6.0]


def test_copies_do_not_wait_for_readers_but_arrays_do() -> None:
    worker = flow.asyncs.Thread()
    x = flow.tensor([1.0, 2.0])
    alias = x.detach()[:1]
    with held(worker):
        with flow.asyncs.thread(worker):
            y = alias + 1.0
        assert x.tolist() == [1.0, 2.0] and alias.item() == 1.0
        arrays: list[Any] = []
        reader = threading.Thread(target=lambda: arrays.append(x.numpy()))
        reader.start()
        free = flow.zeros(2).numpy()  # memory of its own
        free[0] = 7.0
        assert reader.is_alive() and not arrays
    reader.join()
    arrays[0][0] = 5.0
    assert y.tolist() == [2.0] and x.tolist() == [5.0, 2.0]


def test_workers_feed_each_other() -> None:
    a, b = flow.asyncs.Thread(), flow.asyncs.Thread()
    x = y = flow.ones(2, dtype=flow.int64)
    p, q = 1, 1
    for _ in range(50):
        with flow.asyncs.thread(a):
            x = x + y
        with flow.asyncs.thread(b):
            y = y - x
        p = p + q
        q = q - p
    assert x.tolist() == [p, p] and y.tolist() == [q, q]


def test_types_that_do_not_fit_are_found_by_the_call() -> None:
    with flow.asyncs.thread(flow.asyncs.Thread()), pytest.raises(ShapeError, match="matmul"):
        flow.ones(2, 3) @ flow.ones(2, 3)


def test_the_error_of_a_kernel_is_raised_where_the_result_is_used() -> None:
    worker = flow.asyncs.Thread()
    with flow.asyncs.thread(worker):
        x = flow.ones(3)
        line = sys._getframe().f_lineno + 1
        bad = flow.gather(x, 0, flow.tensor([7]))
        after = bad * 2.0
        good = x * 2.0
    assert good.tolist() == [2.0, 2.0, 2.0]
    for used in (after, bad, after):
        with pytest.raises(PositionError, match=f"test_asyncs.py:{line}, computed by oneflow"):
            used.numpy()
    x += 1.0  # the error was met: it is not raised again
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_an_error_that_nobody_met_is_raised_by_the_next_write() -> None:
    with flow.asyncs.thread(flow.asyncs.Thread()):
        flow.gather(flow.ones(3), 0, flow.tensor([7]))
    x = flow.ones(1)
    with pytest.raises(PositionError, match="7"):
        x += 1.0
    x += 1.0
    assert x.tolist() == [2.0]


def test_an_error_in_the_block_leaves_what_was_queued() -> None:
    worker = flow.asyncs.Thread()
    with pytest.raises(KeyError), flow.asyncs.thread(worker):
        y = flow.ones(2) + 1.0
        raise KeyError("mine")
    assert y.tolist() == [2.0, 2.0]
    z = y + 1.0
    assert z.tolist() == [3.0, 3.0] and not is_pending(z)


def test_gradients_of_what_workers_computed() -> None:
    def loss_and_gradients(block: Callable[[], Any], inside: bool) -> list[Any]:
        flow.manual_seed(0)
        model = flow.nn.Sequential(flow.nn.Linear(5, 4), flow.nn.Tanh(), flow.nn.Linear(4, 1))
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = flow.tensor(np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32))
        for _ in range(4):
            optimizer.zero_grad()
            with block():
                loss = (model(x) ** 2).mean()
                if inside:
                    loss.backward()
                    optimizer.step()
            if not inside:
                loss.backward()
                optimizer.step()
        return [loss.numpy(), *[p.numpy() for p in model.parameters()]]

    worker = flow.asyncs.Thread()
    for inside in (False, True):
        wanted = loss_and_gradients(ExitStack, inside)
        found = loss_and_gradients(lambda: flow.asyncs.thread(worker), inside)
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(f, w)


def test_a_full_queue_makes_the_caller_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_QUEUED", 3)
    worker = flow.asyncs.Thread()
    y = flow.zeros(1)
    with flow.asyncs.thread(worker):
        for _ in range(20):
            y = y + 1.0
            assert worker._worker.queued - worker._worker._finished <= 3
    assert y.tolist() == [20.0]


def test_the_thread_of_a_deleted_worker_ends() -> None:
    worker = flow.asyncs.Thread()
    with flow.asyncs.thread(worker):
        y = flow.ones(2) + 1.0
    thread = worker._worker._thread
    assert thread is not None
    del worker
    gc.collect()
    wait_until(lambda: not thread.is_alive(), "the thread ends")
    assert y.tolist() == [2.0, 2.0]


def test_without_work_ops_run_as_if_there_had_been_none() -> None:
    with flow.asyncs.thread(flow.asyncs.Thread()):
        y = flow.ones(2) + 1.0
    finish()
    assert type(current_mode()).__name__ == "Overlapping"
    assert (y + 1.0).tolist() == [3.0, 3.0]
    assert type(current_mode()).__name__ == "Eager"


def test_nested_blocks_return_to_the_outer_worker() -> None:
    outer, inner = Worker("outer"), Worker("inner")
    with use_worker(outer):
        with use_worker(inner):
            a = flow.ones(1) + 1.0
        b = a + 1.0
    assert b.tolist() == [3.0] and (outer.queued, inner.queued) == (1, 1)
    outer.close()
    inner.close()


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return done.stdout


def test_processes_with_workers_fork_and_end() -> None:
    """The child begins anew; queued calls keep no process alive at the end."""
    script = """
import os
import oneflow as flow
worker = flow.asyncs.Thread()
with flow.asyncs.thread(worker):
    y = flow.ones(2) + 1.0
    child = os.fork()
    z = y + 1.0
    found = z.tolist()
if child == 0:
    os._exit(0 if found == [3.0, 3.0] else 1)
print(found, os.waitpid(child, 0)[1])
with flow.asyncs.thread(worker):
    x = flow.ones(300, 300)
    for _ in range(500):
        x = x @ x
"""
    assert _run(script) == "[3.0, 3.0] 0\n"


def test_calls_on_global_tensors_are_queued() -> None:
    worker = flow.asyncs.Thread()
    place = flow.placement.all("cpu")
    x = flow.tensor([[1.0, -2.0], [3.0, 4.0]], placement=place, sbp=flow.sbp.split(0))
    with held(worker), flow.asyncs.thread(worker):
        y = flow.relu(x @ x).T.to_global(sbp=flow.sbp.broadcast) + 1.0
        assert is_pending(y) and y.shape == (2, 2) and y.sbp == (flow.sbp.broadcast,)
    assert y.tolist() == [[1.0, 16.0], [1.0, 11.0]] and not is_pending(y)
