"""Calls that take the short way give the results of those on the plain way, in all that can be
seen.
"""

from __future__ import annotations

import gc
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.kernels import cpu_products
from oneflow.tensor.shortcuts import is_possible, plain_ways, shortcut

F = flow.nn.functional
TIMES = 4  # a call is noted, then learned; types may be replaced by known ones in between

pytestmark = pytest.mark.skipif(not is_possible(), reason="this Python has no shortcuts")


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    made = np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)
    return made + np.float32(0.25)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x - 2": lambda x, y: x - 2,
    "0.5 * x": lambda x, y: 0.5 * x,
    "x / y": lambda x, y: x / y,
    "x < y": lambda x, y: x < y,
    "-x": lambda x, y: -x,
    "x @ y": lambda x, y: x @ y,
    "x[3]": lambda x, y: x[3],
    "x[1:3, ::2]": lambda x, y: x[1:3, ::2],
    "x[:, None]": lambda x, y: x[:, None],
    "x[..., -1]": lambda x, y: x[..., -1],
    "x[[indices]]": lambda x, y: x[flow.tensor([2, 0, 2])],
    "reshape": lambda x, y: x.reshape(8, 2),
    "view": lambda x, y: x.view(-1),
    "transpose": lambda x, y: x.transpose(0, 1),
    "a view of a view": lambda x, y: x.transpose(0, 1)[1:].unsqueeze(0),
    "sum": lambda x, y: x.sum(),
    "mean of dim": lambda x, y: x.mean(dim=1),
    "relu": lambda x, y: flow.relu(x),
    "sigmoid": lambda x, y: x.sigmoid(),
    "softmax": lambda x, y: F.softmax(x, dim=-1),
    "layer norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "linear": lambda x, y: F.linear(x, y, y[0]),
    "mse loss": lambda x, y: F.mse_loss(x, y),
    "cross entropy": lambda x, y: F.cross_entropy(x, flow.tensor([0, 3, 1, 1])),
}


def outcome(function: Callable[[Any, Any], Any], *, needs_grad: bool) -> list[Any]:
    """All that a program sees of a call: values, type, memory, history and gradients."""
    x = flow.tensor(numbers(4, 4)).requires_grad_(needs_grad)
    y = flow.tensor(numbers(4, 4) * 2).requires_grad_(needs_grad)
    out = function(x, y)
    seen = [out.numpy(), out.dtype, out.stride(), out.requires_grad, out.is_leaf, out._version[0]]
    seen += [str(out.grad_fn), flow.is_tensor(out), type(out), out.device]
    if needs_grad and out.requires_grad:
        (out * out).sum().backward()
        seen += [None if t.grad is None else t.grad.numpy() for t in (x, y)]
    with flow.no_grad():
        out.zero_()  # a view writes to the memory of its base
    return [*seen, x.detach().numpy(), out.detach().numpy(), x._version[0]]


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_short_way_gives_what_the_plain_way_gives(name: str, needs_grad: bool) -> None:
    with plain_ways():
        wanted = outcome(CALLS[name], needs_grad=needs_grad)
    for _ in range(TIMES):
        found = outcome(CALLS[name], needs_grad=needs_grad)
        for a, b in zip(found, wanted, strict=True):
            assert np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b


def test_a_repeated_call_runs_no_python() -> None:
    x, y = flow.tensor(numbers(3, 7)), flow.tensor(numbers(3, 7))
    for _ in range(TIMES):
        x + y
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(event))
    try:
        made = x + y
    finally:
        sys.setprofile(None)
    assert "call" not in calls
    assert np.array_equal(made.numpy(), x.numpy() + y.numpy())


def test_a_tensor_given_twice_is_another_call() -> None:
    x, y = flow.tensor(numbers(5)), flow.tensor(numbers(5) * 3)
    for _ in range(TIMES):
        assert np.array_equal((x * x).numpy(), x.numpy() * x.numpy())
        assert np.array_equal((x * y).numpy(), x.numpy() * y.numpy())
        picked = flow.where(x > 0, x, x), flow.where(x > 0, x, y)
        assert np.array_equal(picked[0].numpy(), x.numpy())
        assert np.array_equal(picked[1].numpy(), np.where(x.numpy() > 0, x.numpy(), y.numpy()))


def test_equal_arguments_of_other_kinds_are_other_calls() -> None:
    x, whole = flow.ones(3, 4), flow.ones(3, dtype=flow.int64)
    for _ in range(TIMES):
        assert x[1].shape == (4,) and x[True].shape == (1, 3, 4)
        assert x[1, 0].shape == () and x[True, 0].shape == (1, 4)
        assert np.signbit((x * -0.0).numpy()).all() and not np.signbit((x * 0.0).numpy()).any()
        assert (whole * 2).dtype is flow.int64 and (whole * 2.0).dtype is flow.float32
        assert x[1:2].shape == (1, 4) and x[1:3].shape == (2, 4)
        assert x.reshape(2, 6).shape == (2, 6) and x.reshape(6, 2).shape == (6, 2)
        assert x.sum(dim=(0,)).shape == (4,) and x.sum(dim=(1,)).shape == (3,)


def test_other_strides_are_another_view() -> None:
    for k in range(2 * TIMES):
        x = flow.tensor(np.arange(12, dtype=np.float32)).reshape(3, 4)
        y = flow.tensor(np.arange(12, dtype=np.float32)).reshape(4, 3).transpose(0, 1)
        for given in (x, y) if k % 2 else (y, x):
            assert np.array_equal(given[1].numpy(), given.numpy()[1])
            assert np.array_equal(given.reshape(12).numpy(), given.numpy().reshape(12))


def test_values_are_looked_at_in_every_call() -> None:
    x = flow.tensor(numbers(4, 2))
    for _ in range(TIMES):
        assert x[flow.tensor([0, 3])].shape == (2, 2)
        assert x[flow.tensor(2)].shape == (2,)
        assert np.array_equal(x[flow.tensor(1)].numpy(), x.numpy()[1])
        assert x[flow.tensor([True, False, True, False])].shape == (2, 2)
        assert x[flow.tensor([True, False, False, False])].shape == (1, 2)
        with pytest.raises(IndexError, match="index 4 is out of bounds"):
            x[flow.tensor([0, 4])]


def test_modes_are_asked_in_every_call() -> None:
    x = flow.ones(4, 4, requires_grad=True)
    weight = flow.ones(4, 4)
    graph = flow.nn.Graph.trace(lambda x: F.linear(x, weight) + x)
    for _ in range(TIMES):
        assert (x + x).requires_grad
        with flow.no_grad():
            assert not (x + x).requires_grad
        with flow.autocast("cpu", dtype=flow.bfloat16):
            assert F.linear(x, weight).dtype is flow.bfloat16
        assert F.linear(x, weight).dtype is flow.float32
        assert np.array_equal(graph(x).detach().numpy(), np.full((4, 4), 5, np.float32))


def test_saved_tensors_pass_their_hooks() -> None:
    x, packed = flow.ones(3, requires_grad=True), []

    def pack(t: Any) -> Any:
        packed.append(t)
        return t

    for _ in range(TIMES):
        x * x
    with flow.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = x * x
    assert packed
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.full(3, 2, np.float32))


def test_a_view_has_the_history_that_its_base_got_later() -> None:
    for _ in range(TIMES):
        base = flow.zeros(4)
        view = base[1:3]
        w = flow.ones(4, requires_grad=True)
        base.copy_(w * 3)
        (view * 2).sum().backward()
        assert np.array_equal(w.grad.numpy(), np.array([0, 6, 6, 0], np.float32))


def test_nothing_is_kept_and_nothing_is_lost() -> None:
    x, y = flow.tensor(numbers(6, 2)), flow.tensor(numbers(6, 2)).requires_grad_()

    def work() -> None:
        for _ in range(50):
            made = [x + 1.5, x[2], x[1:3].reshape(-1), F.softmax(x * y, dim=1), x @ y[:2]]
            assert all(weakref.ref(t)() is t for t in made)

    kept = [x, x.meta, x._array, x._version, y, None, True, False, np.dtype(np.float32), x._device]

    def found() -> list[int]:
        gc.collect()
        return [len(gc.get_objects()), *(sys.getrefcount(t) for t in kept)]

    work()
    changes = [1000]
    for _ in range(3):  # tests before may still let go of things; a leak is there each time
        if max(changes) >= 20:
            before = found()
            work()
            changes = [abs(b - n) for b, n in zip(before, found(), strict=True)]
    assert max(changes) < 20
    death = weakref.ref(x + 1.5)
    assert death() is None


def test_threads_take_short_ways_at_once() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = flow.full((64, 64), float(seed))
        with flow.set_grad_enabled(bool(seed % 2)):
            for _ in range(100):
                made = (x @ x + x).sum().item()
                if made != 64 * 64 * (64 * seed * seed + seed):
                    wrong.append((seed, made))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_shortcut_passes_for_the_function() -> None:
    assert pickle.loads(pickle.dumps(flow.relu)) is flow.relu is F.relu
    assert list(inspect.signature(F.linear).parameters)[:2] == ["input", "weight"]
    assert flow.add.__name__ == "add" and flow.add.__doc__
    assert flow.Tensor.sum is not None and flow.ones(2).sum.__self__.shape == (2,)


def test_errors_are_those_of_the_function() -> None:
    calls = []

    @shortcut
    def double(x: Any, *, fail: bool = False) -> Any:
        """Twice x."""
        calls.append(fail)
        if fail:
            raise ValueError("as asked")
        return x + x

    x = flow.ones(2)
    for _ in range(TIMES):
        double(x)
        with pytest.raises(ValueError, match="as asked"):
            double(x, fail=True)
    assert calls.count(True) == TIMES and calls.count(False) < TIMES
    with pytest.raises(TypeError):
        double()


def test_an_interrupt_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = flow.ones(4, 4), []
    for _ in range(TIMES):
        x @ x

    def stop(*_: Any) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cpu_products, "multiply", stop)
        with pytest.raises(KeyboardInterrupt):
            x @ x
    assert calls == [1]  # it did not run again
    assert np.array_equal((x @ x).numpy(), np.full((4, 4), 4, np.float32))
