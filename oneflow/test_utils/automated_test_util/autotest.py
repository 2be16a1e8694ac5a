"""`@autotest`: a program on random tensors, run several times on both libraries and compared."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow import sbp
from oneflow.core.errors import ArgumentError, ConfigError
from oneflow.distributed.objects import broadcast_object
from oneflow.test_utils.automated_test_util.comparing import Tolerance, is_pytorch
from oneflow.test_utils.automated_test_util.dual_object import DualObject, state
from oneflow.test_utils.automated_test_util.generators import pytorch, seed_all, stream
from oneflow.test_utils.automated_test_util.runs import PyTorchError, Run

SEED = "ONEFLOW_TEST_SEED"
TRIES = 20
"""Runs for each one that PyTorch accepts, until the test gives up."""


@dataclass(frozen=True)
class Wishes:
    """The arguments of `autotest`."""

    n: int
    auto_backward: bool | str
    tolerance: Tolerance
    checks_graph: bool
    compares: bool
    has_random_gradients: bool
    takes_complex: bool


def autotest(
    n: int = 20,
    auto_backward: bool | str = True,
    rtol: float = 0.0001,
    atol: float = 1e-05,
    check_graph: bool | str = True,
    check_allclose: bool = True,
    check_dtype: bool = False,
    check_grad_use_random_data: bool = True,
    include_complex: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that runs a test `n` times with other random numbers.

    Every call on pairs runs on PyTorch and OneFlow, and its results must agree to `rtol` and
    `atol`. The test's result is differentiated, and the gradients of all leaves and parameters
    are compared. Arguments that PyTorch refuses are drawn again.

    Args:
        n: Runs.
        auto_backward: Differentiate the results; "auto": those that require gradients.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        check_graph: Compare each call with an `nn.Graph` of it ("ValidatedFalse": False).
        check_allclose: Compare values; False: only run both.
        check_dtype: Compare dtypes, too.
        check_grad_use_random_data: Begin backward passes with random numbers, else with ones.
        include_complex: Let half of the random tensors be complex; no graphs are checked.

    Raises:
        DifferenceError: If the libraries differ; it names the call, and the seed that repeats it.
    """
    wishes = Wishes(
        n,
        auto_backward,
        Tolerance(rtol, atol, check_dtype),
        check_graph is True and not include_complex,
        check_allclose,
        check_grad_use_random_data,
        include_complex,
    )

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(test_case: object, *args: object, **kwargs: object) -> None:
            _run_all(wishes, test.__name__, lambda: test(test_case, *args, **kwargs))

        return run_all

    return decorate


def _run_all(wishes: Wishes, name: str, test: Callable[[], Any]) -> None:
    """Run a test with one seed after another until enough runs were accepted."""
    first, done = first_seed(), 0
    for seed in range(first, first + TRIES * wishes.n):
        seed_all(seed)
        title = f"{name}, run {done + 1} of {wishes.n}"
        run = Run(title, seed, wishes.tolerance, wishes.compares, wishes.checks_graph)
        run.takes_complex = wishes.takes_complex
        before, state.run = state.run, run
        try:
            _run_once(wishes, run, test)
        except PyTorchError as error:
            refused = error
            continue
        finally:
            state.run = before
        done += 1
        if done == wishes.n:
            return
    raise ArgumentError(
        f"{name}: PyTorch refused {TRIES * wishes.n - done} of {TRIES * wishes.n} runs, the last "
        f"one at {refused}; draw arguments that it accepts"
    )


def _run_once(wishes: Wishes, run: Run, test: Callable[[], Any]) -> None:
    found = test()
    for result in found if isinstance(found, (list, tuple)) else [found]:
        if isinstance(result, DualObject):
            run.note("the result", result.pytorch, result.oneflow)
            if wishes.auto_backward and is_pytorch(result.pytorch):
                _differentiate(wishes, run, result)
    run.finish()


def _differentiate(wishes: Wishes, run: Run, result: DualObject) -> None:
    """Start a backward pass at a result."""
    theirs, ours = result.pytorch, result.oneflow
    if wishes.auto_backward == "auto" and not (theirs.requires_grad and ours.requires_grad):
        return
    if not wishes.has_random_gradients:
        result.sum().backward()
        return
    array = stream.rng.uniform(0, 1, tuple(theirs.shape))

    def of_ours() -> None:
        flow: Any = sys.modules["oneflow"]
        if ours.is_global:
            where = {"placement": ours.placement, "sbp": [sbp.broadcast] * len(ours.sbp)}
        else:
            where = {"device": ours.device}
        ours.backward(flow.tensor(array, dtype=ours.dtype, **where))

    def of_theirs() -> None:
        theirs.backward(pytorch().tensor(array, dtype=theirs.dtype, device=theirs.device))

    run.call("backward of the result", of_theirs, of_ours, None)


def first_seed() -> int:
    """Return the seed of ONEFLOW_TEST_SEED, or one that is drawn, the same one on all ranks."""
    given = os.environ.get(SEED)
    if given is None:
        return int(np.random.default_rng().integers(2**31)) if not state.is_global else _shared()
    if not given.isdecimal():
        raise ConfigError(f"{SEED} is a seed, a whole number from 0 on, got {given!r}")
    return int(given)


def _shared() -> int:
    """A number of the stream of generators, which `globaltest` has begun alike on all ranks."""
    return int(stream.rng.integers(2**31))


def globaltest(test: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a test whose random tensors are global: every rank of the job draws the same."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> Any:
        seed = broadcast_object(int(np.random.default_rng().integers(2**31)))
        seed_all(seed)
        before, state.is_global = state.is_global, True
        try:
            return test(*args, **kwargs)
        finally:
            state.is_global = before

    return run


def is_global() -> bool:
    """Return whether a global test runs."""
    return state.is_global
