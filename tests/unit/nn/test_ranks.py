"""Layers under upstream's names that know of other ranks, in one process."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import ShapeError


def test_rows_of_all_labels_are_among_those_drawn() -> None:
    weight = flow.arange(40.0).reshape(20, 2).requires_grad_()
    label = flow.tensor([3, 17, 3, 9], dtype=flow.int32)
    layer = nn.DistributedPariticalFCSample(6)
    seen = set()
    for _ in range(30):
        mapped, rows, part = layer(weight, label)
        numbers = rows.tolist()
        assert len(set(numbers)) == 6 and numbers == sorted(numbers) and {3, 9, 17} <= set(numbers)
        assert [numbers[i] for i in mapped.tolist()] == label.tolist()
        assert mapped.dtype is flow.int32
        assert np.array_equal(part.detach().numpy(), weight.detach().numpy()[numbers])
        seen |= set(numbers)
    assert len(seen) > 10  # the others are random
    part.sum().backward()
    wanted = np.zeros((20, 2))
    wanted[numbers] = 1
    assert weight.grad is not None and np.array_equal(weight.grad.numpy(), wanted)
    with pytest.raises(ShapeError, match="21 rows"):
        flow.distributed_partial_fc_sample(weight, label, 21)


def test_one_device_computes_what_the_module_does() -> None:
    inner = nn.Linear(3, 2)
    both = nn.DataParallel(inner, device_ids=[0])
    x = flow.randn(4, 3)
    assert both.module is inner and np.array_equal(both(x).numpy(), inner(x).numpy())
    assert list(both.state_dict()) == ["module.weight", "module.bias"]


def test_the_sum_over_one_rank_is_a_copy() -> None:
    x = flow.ones(3)
    total = nn.AllReduce("")(x)
    assert total.tolist() == [1, 1, 1] and total.data_ptr() != x.data_ptr()
