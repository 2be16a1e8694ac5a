"""Tensors from and to PyTorch, without copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import oneflow as flow

FLOATS = ["float32", "float64", "float16", "bfloat16", "complex64", "complex128"]
KINDS = [*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool"]
STORED = ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_shared_both_ways(kind: str) -> None:
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, kind))
    ours = flow.utils.tensor.from_torch(theirs)
    assert ours.dtype is getattr(flow, kind) and ours.data_ptr() == theirs.data_ptr()
    back = flow.utils.tensor.to_torch(ours)
    assert back.dtype == theirs.dtype and back.data_ptr() == theirs.data_ptr()
    theirs[0, 0] = 1
    assert ours[0, 0].item() == 1 and torch.equal(back, theirs)


def test_strided_tensors_and_dlpack() -> None:
    theirs = torch.arange(6.0).reshape(2, 3).t()
    ours = flow.utils.tensor.from_torch(theirs)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert flow.from_dlpack(theirs).data_ptr() == theirs.data_ptr()
    assert torch.from_dlpack(ours).data_ptr() == theirs.data_ptr()


CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "turned": lambda x: x.t(),
    "stepped": lambda x: x[:, ::2],
    "empty": lambda x: x[:0],
    "one": lambda x: x[1, 2],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", [*KINDS, *STORED])
def test_dlpack_takes_every_dtype_and_stride_both_ways(kind: str, cut: str) -> None:
    theirs = CUTS[cut](torch.arange(6).reshape(2, 3).to(getattr(torch, kind)))
    bits = torch.view_as_real(theirs) if theirs.is_complex() else theirs.to(torch.float32)
    capsule = torch.utils.dlpack.to_dlpack(theirs)
    for ours in (flow.from_dlpack(theirs), flow.from_dlpack(capsule)):
        assert ours.dtype is getattr(flow, kind) and tuple(ours.shape) == tuple(theirs.shape)
        found = ours.numpy()
        found = np.stack([found.real, found.imag], -1) if theirs.is_complex() else found
        np.testing.assert_array_equal(found.astype(np.float32), bits.numpy())
        for back in (torch.from_dlpack(ours), torch.from_dlpack(flow.to_dlpack(ours))):
            assert back.dtype == theirs.dtype and back.shape == theirs.shape
            if theirs.numel():
                assert back.stride() == theirs.stride()
                assert back.data_ptr() == ours.data_ptr() == theirs.data_ptr()


@pytest.mark.parametrize("kind", STORED)
def test_dtypes_that_are_only_stored_are_shared(kind: str) -> None:
    theirs = torch.tensor([1.0, -2.0]).to(getattr(torch, kind))
    ours = flow.utils.tensor.from_torch(theirs)
    assert ours.dtype is getattr(flow, kind) and ours.data_ptr() == theirs.data_ptr()
    assert flow.utils.tensor.to_torch(ours).data_ptr() == theirs.data_ptr()


def test_memory_of_a_capsule_may_be_written() -> None:
    theirs = torch.zeros(3)
    flow.from_dlpack(torch.utils.dlpack.to_dlpack(theirs)).add_(2)
    assert theirs.tolist() == [2, 2, 2]


def test_arrays_that_may_not_be_written_are_shared() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    assert flow.from_dlpack(array).data_ptr() == array.ctypes.data


def test_history_stays_and_global_tensors_are_copied() -> None:
    ours = flow.ones(2).requires_grad_()
    assert not flow.utils.tensor.to_torch(ours * 2).requires_grad
    where = flow.placement("cpu", [0])
    with pytest.warns(UserWarning, match="copy of the whole"):
        whole = flow.utils.tensor.to_torch(flow.ones(2, placement=where, sbp=flow.sbp.broadcast))
    assert whole.tolist() == [1.0, 1.0]
