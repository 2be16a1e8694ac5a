"""Batches on their way to the GPU: pinned memory, and copies beside the kernels."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import oneflow as flow
from oneflow.kernels import streams
from oneflow.utils.data import DataLoader, TensorDataset
from tests.support.waiting import wait_until

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_pinned_tensor_has_the_same_values(dtype: str) -> None:
    x = flow.tensor(np.arange(12).reshape(3, 4)).to(getattr(flow, dtype))
    y = x.pin_memory()
    assert y.is_pinned() and not x.is_pinned() and y.pin_memory() is y
    assert y[1:].is_pinned() and y.dtype == x.dtype and y.device == x.device
    np.testing.assert_array_equal(y.float().numpy(), x.float().numpy())
    z = y.to("cuda", non_blocking=True)
    assert z.is_cuda and not z.is_pinned() and z.pin_memory() is z
    np.testing.assert_array_equal(z.float().numpy(), x.float().numpy())


def test_copies_beside_kernels_are_what_kernels_after_them_read() -> None:
    total = flow.zeros(64, 64, device="cuda")
    for step in range(20):
        batch = flow.full((64, 64), float(step)).pin_memory()
        x = batch.to("cuda", non_blocking=True)
        del batch  # its memory is held until the copy is done
        total += x @ flow.eye(64, device="cuda")
        del x  # and this one's until the product is
    np.testing.assert_array_equal(total.numpy(), np.full((64, 64), 190.0))


def test_memory_is_held_until_events_say_that_it_is_free() -> None:
    flow.ones(3).pin_memory().to("cuda", non_blocking=True)
    gc.collect()
    assert streams._held
    for _ in range(50):
        x = flow.ones(1000).pin_memory().cuda(non_blocking=True)
    cupy.cuda.Device().synchronize()
    y = flow.ones(3).pin_memory().cuda(non_blocking=True)
    assert len(streams._held) <= 2 and x.is_cuda and y.is_cuda


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_pins_its_batches(num_workers: int) -> None:
    data = TensorDataset(flow.arange(12).float().reshape(6, 2), flow.arange(6))
    loader = DataLoader(data, batch_size=2, num_workers=num_workers, pin_memory=True)
    rows = []
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        rows.append(x.cuda(non_blocking=True).numpy())
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(12.0).reshape(6, 2))


def test_batches_of_workers_are_pinned_before_they_are_asked_for() -> None:
    data = TensorDataset(flow.arange(6))
    batches = iter(DataLoader(data, batch_size=2, num_workers=1, pin_memory=True))
    (worker,) = batches._workers  # type: ignore[attr-defined]
    wait_until(lambda: worker._answers.qsize() == 2)
    _, (x,) = worker._answers.get()
    assert x.is_pinned()
