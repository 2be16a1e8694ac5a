"""Tensors from and to PyTorch, without copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import PlacementError

KINDS = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_shared_both_ways(kind: str) -> None:
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, kind))
    ours = flow.utils.tensor.from_torch(theirs)
    assert ours.dtype is getattr(flow, kind) and ours.data_ptr() == theirs.data_ptr()
    back = flow.utils.tensor.to_torch(ours)
    assert back.dtype == theirs.dtype and back.data_ptr() == theirs.data_ptr()
    theirs[0, 0] = 1
    assert float(ours[0, 0]) == 1 and torch.equal(back, theirs)


def test_strided_tensors_and_dlpack() -> None:
    theirs = torch.arange(6.0).reshape(2, 3).t()
    ours = flow.utils.tensor.from_torch(theirs)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert flow.from_dlpack(theirs).data_ptr() == theirs.data_ptr()
    assert torch.from_dlpack(ours).data_ptr() == theirs.data_ptr()


def test_history_stays_and_global_tensors_are_refused() -> None:
    ours = flow.ones(2).requires_grad_()
    assert not flow.utils.tensor.to_torch(ours * 2).requires_grad
    where = flow.placement("cpu", [0])
    with pytest.raises(PlacementError, match="to_local"):
        flow.utils.tensor.to_torch(flow.ones(2, placement=where, sbp=flow.sbp.broadcast))
