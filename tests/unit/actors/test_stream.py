"""Kernels on a thread of their own: one at a time, ends that can be waited for, errors told."""

from __future__ import annotations

import os
import select
import threading

import pytest

from oneflow.actors.messages import Launch
from oneflow.actors.stream import Ended, KernelStream

WAIT_S = 60.0
LAUNCH = Launch((1,), (2,))


def ended(stream: KernelStream) -> Ended:
    """The next end, waited for at the file."""
    while True:
        assert select.select([stream.file], [], [], WAIT_S)[0]
        found = stream.take()
        if found is not None:
            return found


def test_a_kernel_runs_beside_its_caller_and_its_end_can_be_read() -> None:
    stream, go_on, seen = KernelStream(), threading.Event(), []

    def kernel(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        assert go_on.wait(WAIT_S)
        seen.append((in_slots, out_slots, threading.get_ident()))

    stream.launch(7, kernel, LAUNCH)
    assert stream.running == 7 and stream.take() is None
    go_on.set()
    found = ended(stream)
    assert (found.actor, found.error, stream.running) == (7, None, -1)
    assert found.begin <= found.end
    assert seen[0][:2] == ((1,), (2,)) and seen[0][2] != threading.get_ident()
    stream.close()
    with pytest.raises(OSError):
        os.fstat(stream.file)


def test_what_a_kernel_raises_is_raised_where_its_end_is_taken() -> None:
    stream = KernelStream()

    def kernel(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        raise ZeroDivisionError("by the kernel")

    stream.launch(1, kernel, LAUNCH)
    with pytest.raises(ZeroDivisionError, match="by the kernel"):
        ended(stream)
    assert stream.running == -1
    stream.launch(2, lambda i, o: None, LAUNCH)
    assert ended(stream).actor == 2
    stream.close()
