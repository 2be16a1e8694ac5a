"""Bytes that ops allocate and free, as `profile(profile_memory=True)` counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow


def usage(library: Any) -> dict[str, int]:
    """Run a small program, and sum the bytes by op."""
    x, w = library.ones(256, 256), library.ones(256, 256, requires_grad=True)
    with library.profiler.profile(profile_memory=True) as profile:
        y = library.relu(x @ w)
        z = y + 1
        same = y.view(-1)
        del z
        y.sum().backward()
    assert same.shape == (256 * 256,)
    return {e.key: e.self_cpu_memory_usage for e in profile.key_averages()}


def test_ops_allocate_what_they_allocate_in_pytorch() -> None:
    ours, theirs = usage(flow), usage(torch)
    block = 256 * 256 * 4
    assert ours["matmul"] == theirs["aten::mm"] == 2 * block
    assert ours["relu"] == theirs["aten::clamp_min"] == block
    assert ours["relu_grad"] == theirs["aten::threshold_backward"] == block
    assert ours["reshape"] == 0
    assert ours["[memory]"] <= -block  # z, and what the backward pass had no use for


def test_memory_is_counted_once_and_until_the_block_ends() -> None:
    with flow.profiler.profile(profile_memory=True) as profile:
        x = flow.zeros(1024)
        y = x[:10] * 2.0
        del x
    kept = profile.events()
    del y
    sums = {e.key: e.cpu_memory_usage for e in kept.key_averages()}
    assert sum(sums.values()) == 40 and sums["[memory]"] == -4096
    assert len(profile.events()) == len(kept)
    table = kept.key_averages().table(sort_by="self_cpu_memory_usage")
    assert "self cpu mem" in table and "4.00 Kb" in table.splitlines()[1]


def test_without_it_nothing_is_counted() -> None:
    with flow.profiler.profile() as profile:
        flow.ones(3) * 2.0
    assert all(e.cpu_memory_usage == 0 for e in profile.events())
    assert "mem" not in profile.events().table()


def test_a_failed_op_leaves_the_count_whole() -> None:
    with flow.profiler.profile(profile_memory=True) as profile:
        with pytest.raises(ValueError, match="matmul"):
            flow.ones(2, 3) @ flow.ones(2, 3)
        kept = flow.ones(4) * 2.0
    found = [e.self_cpu_memory_usage for e in profile.events() if e.name == "scalar_mul"]
    assert found == [16]
    np.testing.assert_array_equal(kept.numpy(), 2.0)
