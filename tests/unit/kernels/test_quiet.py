"""Kernels run unheard, and leave NumPy's settings to their users."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from oneflow.kernels.quiet import run_quietly


def log_of_zero() -> float:
    return float(np.log(np.zeros(1))[0])


@pytest.mark.filterwarnings("error")
def test_nothing_is_printed_inside_and_all_outside() -> None:
    assert run_quietly(log_of_zero) == -np.inf
    with pytest.raises(RuntimeWarning):
        log_of_zero()


@pytest.mark.filterwarnings("error")
def test_a_kernel_may_be_interrupted_by_another() -> None:
    assert run_quietly(run_quietly, log_of_zero) == -np.inf


def test_an_error_passes_through_and_the_next_call_works() -> None:
    with pytest.raises(ZeroDivisionError):
        run_quietly(lambda: 1 // 0)
    assert run_quietly(lambda a, *, b: a + b, 1, b=2) == 3


@pytest.mark.filterwarnings("error")
def test_threads_are_in_kernels_at_once() -> None:
    both_inside, results = threading.Barrier(2, timeout=60), []

    def kernel() -> None:
        both_inside.wait()
        results.append(log_of_zero())

    threads = [threading.Thread(target=run_quietly, args=(kernel,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [-np.inf, -np.inf]
