"""Tensors on "cpu+remat": values are those of the CPU with any tensors dropped and computed
again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn, remat
from oneflow.core.errors import DeviceError
from oneflow.kernels.hardware import hardware_class
from oneflow.kernels.remat_memory import MEMORY
from oneflow.tensor.tensor import Tensor

MIB = 1 << 20


@pytest.fixture(autouse=True)
def budget() -> Iterator[None]:
    remat.set_small_pieces_optimization(False)
    remat.clear_stats()
    yield
    remat.set_budget("0")
    remat.set_small_pieces_optimization(True)
    assert remat.allocated_memory("cpu") == 0


def test_programs_may_have_asked_for_gpus_before() -> None:
    """Kinds of devices that are known are asked in turn whose an array is."""
    hardware_class("cuda")
    x = flow.ones(3, device="cpu+remat")
    np.testing.assert_array_equal((x + 1).numpy(), np.full(3, 2, np.float32))


def test_the_result_that_is_cheapest_to_make_again_is_dropped() -> None:
    remat.set_budget("12MB")
    x1 = flow.ones(MIB, device="cpu+remat")
    assert (x1.device.rematable, remat.allocated_memory("cpu+remat")) == (True, 4 * MIB)
    x2 = x1 + 2
    del x1
    assert remat.allocated_memory("cpu") == 4 * MIB
    x3 = x2 + 2
    x4 = x3 + 2
    x5 = x4 + 2
    assert [remat.is_in_memory(x) for x in (x2, x3, x4)] == [False, True, True]
    x6 = x5 + 2
    assert [remat.is_in_memory(x) for x in (x2, x3, x4)] == [False, True, False]
    for x, value in ((x6, 11), (x2, 3), (x4, 7)):
        np.testing.assert_array_equal(x.numpy(), np.full(MIB, value, np.float32))
    assert remat.recomputation_num() > 0 < remat.forced_eviction_num()


def _program(seed: int, device: str) -> list[np.ndarray]:  # type: ignore[type-arg]
    choose, evict = random.Random(seed), random.Random(seed + 1)
    flow.manual_seed(seed)
    xs = [
        flow.arange(4096.0 * k, 4096.0 * (k + 1)).reshape(64, 64).sin().to(device) for k in range(3)
    ]
    for _ in range(60):
        what, i, j = choose.randrange(10), choose.randrange(len(xs)), choose.randrange(len(xs))
        a, b = xs[i], xs[j]
        if what == 0:
            xs.append(a + b)
        elif what == 1:
            xs.append((a * 0.5).relu())
        elif what == 2:
            a.relu_()
        elif what == 3:
            a[3:20, 5:9] = b[3:20, 5:9] * 2
        elif what == 4:
            a.add_(b, alpha=0.3)
        elif what == 5:
            xs.append(a @ b / 64)
        elif what == 6:
            xs.append(F.dropout(a, 0.3))
        elif what == 7:
            xs.append(a.t())
        elif what == 8:
            a.copy_(b)
        else:
            xs.append(a.sum(0, keepdim=True) / 64 + b)
        if len(xs) > 12:
            xs.pop(choose.randrange(len(xs)))
        if device != "cpu" and evict.random() < 0.3:
            remat.evict(xs[evict.randrange(len(xs))])
    return [x.numpy().copy() for x in xs]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.filterwarnings("ignore:remat")
def test_random_programs_keep_their_values(seed: int) -> None:
    want = _program(seed, "cpu")
    MEMORY.budget = 6 * 64 * 64 * 4
    for got, expected in zip(_program(seed, "cpu+remat"), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert remat.recomputation_num() > 0


def _train(device: str, budget: str) -> tuple[list[float], int]:
    remat.set_budget("0")
    flow.manual_seed(1)
    blocks = [
        layer
        for _ in range(4)
        for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.Flatten(), nn.LazyLinear(5))
    x, wanted = flow.randn(8, 3, 34, 34), flow.arange(8) % 5
    model(x)
    model, x, wanted = model.to(device), x.to(device), wanted.to(device)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.01)
    remat.set_budget(budget)
    losses, peak = [], 0
    for _ in range(2):
        y = x
        for layer in model:
            y = layer(y)
            peak = max(peak, remat.allocated_memory("cpu"))
        loss = F.cross_entropy(y, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
        del y, loss
    return losses, peak


def test_training_in_half_the_memory_gives_equal_losses() -> None:
    want, _ = _train("cpu", "0")
    same, peak = _train("cpu+remat", "0")
    got, less = _train("cpu+remat", str(peak // 2))
    assert remat.recomputation_num() > 0 and less <= peak // 2
    np.testing.assert_allclose(same, want, rtol=1e-6)
    np.testing.assert_array_equal(got, same)


def test_memory_beyond_the_budget_is_told_once() -> None:
    MEMORY._has_warned = False
    remat.set_budget("1MB")
    with pytest.warns(UserWarning, match="remat: .* the budget is 1,048,576"):
        x = flow.ones(MIB).to("cpu+remat")
    assert float(x.sum()) == MIB


def test_an_optimizer_takes_all_parameters_or_none() -> None:
    parameters = [nn.Parameter(flow.ones(2)), nn.Parameter(flow.ones(2, device="cpu+remat"))]
    with pytest.raises(ValueError, match=r"all of its parameters on cpu\+remat or none"):
        flow.optim.SGD(parameters, lr=0.1)


def test_a_tensor_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not on cpu\+remat"):
        remat.evict(flow.ones(2))


def test_a_kept_tensor_is_not_dropped() -> None:
    x: Tensor = flow.ones(4, device="cpu+remat") + 1
    remat.disable_eviction(x)
    remat.evict(x)
    assert remat.is_in_memory(x)


def test_the_program_of_the_page_runs_within_its_budget() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/REMAT.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(program, names)
    loss = names["loss"]
    assert isinstance(loss, Tensor) and 0 < float(loss) < 1
    assert remat.recomputation_num() > 0 and remat.allocated_memory("cpu") <= remat.get_budget()
    names.clear()


def test_there_is_no_such_device_of_gpus() -> None:
    with pytest.raises(DeviceError, match=r"there is no cuda\+remat: .*flow.utils.checkpoint"):
        flow.ones(2).to("cuda+remat")


@pytest.mark.parametrize("size", [None, "abc", "-1", "1 GBB"])
def test_a_budget_that_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="a size looks like"):
        remat.set_budget(size)
