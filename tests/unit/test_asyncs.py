"""Blocks given to a worker compute what they compute without one."""

from __future__ import annotations

import pytest

import oneflow as flow


def test_a_block_of_a_worker_has_the_same_results_in_the_same_order() -> None:
    worker = flow.asyncs.Thread()
    x = flow.ones(2)
    with flow.asyncs.thread(worker):
        x += 1.0
    y = x * 2.0
    assert y.tolist() == [4.0, 4.0] and repr(worker).startswith("oneflow.asyncs.Thread(")


def test_only_workers_take_blocks() -> None:
    with (
        pytest.raises(TypeError, match="needs an oneflow"),
        flow.asyncs.thread("main"),
    ):
        pass
