"""A device that nothing in the project names: every op sample, modules, graphs and files run on it
as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.boxing.bound_op import bind
from oneflow.core import device as core_device
from oneflow.core.errors import DeviceError
from oneflow.core.op import find_op, infer_types
from oneflow.kernels import hardware, registry
from oneflow.tensor.tensor import Tensor
from tests.support.fake_device import Fake, FakeArray
from tests.unit.ops.numpy_mode import run_whole, type_of
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES


@pytest.fixture(scope="module", autouse=True)
def fake_device() -> Iterator[None]:
    flow.register_device("fake", Fake)
    yield
    _forget("fake")


def _forget(name: str) -> None:
    core_device._types.remove(name)
    hardware._kinds.pop(name)


@pytest.mark.parametrize("sample", named(SAMPLES))
def test_ops_give_what_they_give_on_the_cpu(sample: Sample) -> None:
    device = hardware.hardware_for("fake")
    inputs = sample.inputs_as("float32")
    op, types = find_op(sample.op), tuple(map(type_of, inputs))
    attrs = op.defaults | sample.attrs
    bound = bind(op, types, infer_types(op, types, attrs), attrs, "fake")

    def ones(shape: tuple[int, ...], dtype: Any) -> Any:
        return device.xp.full(shape, 1, dtype)

    arrays = [device.from_host(x) for x in inputs]
    with np.errstate(all="ignore"):
        found = bound.run(device.xp, arrays, attrs.get("seed", 0), ones)
    wanted = run_whole(sample.op, inputs, sample.attrs)
    for i in sample.compared or range(len(found)):
        assert isinstance(found[i], FakeArray)
        got, want = device.to_host(found[i]), np.asarray(wanted[i])
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if got.dtype.kind not in "biuc":
            got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def _convolutions(device: str) -> Tensor:
    flow.manual_seed(1)
    blocks = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    model = nn.Sequential(*blocks, nn.Linear(200, 3)).to(device)
    x = flow.arange(2 * 3 * 12 * 12.0).reshape(2, 3, 12, 12).sin().to(device)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = F.cross_entropy(model(x), flow.tensor([0, 2]).to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss


def _recurrent(device: str) -> Tensor:
    flow.manual_seed(1)
    model = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True).to(device)
    y, _ = model(flow.arange(48.0).reshape(2, 6, 4).sin().to(device))
    y.sum().backward()
    gradient = model.weight_ih_l0.grad
    assert gradient is not None
    return flow.cat([y.flatten(), gradient.flatten()])


def _attention(device: str) -> Tensor:
    flow.manual_seed(1)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).to(device)
    y = model(flow.arange(80.0).reshape(2, 5, 8).sin().to(device))
    y.pow(2).mean().backward()
    return flow.cat([y.flatten(), model.linear1.weight.grad.flatten()])


def _graph(device: str) -> Tensor:
    flow.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.1))

        def build(self, x: Tensor, wanted: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), wanted)
            loss.backward()
            return loss

    step = Step()
    x = flow.arange(48.0).reshape(8, 6).sin().to(device)
    wanted = (flow.arange(8) % 2).to(device)
    return flow.stack([step(x, wanted) for _ in range(3)])


def _indexing(device: str) -> Tensor:
    x = flow.arange(24.0).reshape(4, 6).sin().to(device)
    values, places = x.topk(2)
    x[1, 2:4] = 5
    x[x > 0.9] = -1
    picked = x[flow.tensor([0, 2]).to(device)]
    found = values, places.float(), picked, x.sort(1)[0], x.cumsum(0), x.std(0)
    return flow.cat([y.flatten() for y in found])


def _views(device: str) -> Tensor:
    x = flow.arange(12.0, device=device).reshape(3, 4)
    x.t()[1] += 1
    x[:, ::2].mul_(2)
    x.view(-1)[3] = 9
    return flow.cat([x.flatten(), x.as_strided((2, 2), (1, 2)).flatten()])


def _random(device: str) -> Tensor:
    flow.manual_seed(5)
    drawn = flow.randn(7, device=device), flow.rand(3, device=device)
    return flow.cat([*drawn, F.dropout(flow.ones(50, device=device), 0.5)])


def _copies(device: str) -> Tensor:
    x, y = flow.zeros(3, device=device), flow.ones(3)
    x.copy_(y)
    y.copy_(x * 2)
    with flow.device(device):
        made = flow.tensor([1.0, 2.0, 3.0])
    assert (made.device.type, y.device.type) == (device, "cpu")
    assert (made.tolist(), float(made.sum()), f"{made[1]:.1f}") == ([1, 2, 3], 6.0, "2.0")
    return x + y.to(device) + made


def _mixed_precision(device: str) -> Tensor:
    flow.manual_seed(1)
    model = nn.Linear(8, 8).to(device)
    with flow.autocast(device, dtype=flow.bfloat16):
        y = model(flow.ones(2, 8).to(device))
    assert y.dtype is flow.bfloat16
    return y.float()


SCENES = [
    *(_convolutions, _recurrent, _attention, _graph, _indexing),
    *(_views, _random, _copies, _mixed_precision),
]


@pytest.mark.parametrize("scene", SCENES)
def test_programs_give_what_they_give_on_the_cpu(scene: Callable[[str], Tensor]) -> None:
    want, got = scene("cpu"), scene("fake")
    assert got.device.type == "fake"
    np.testing.assert_allclose(
        got.detach().cpu().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_files_come_back_to_the_device(tmp_path: Path) -> None:
    model = nn.Linear(2, 3).to("fake")
    flow.save(model.state_dict(), tmp_path / "model")
    found = flow.load(tmp_path / "model", map_location="fake")["weight"]
    assert found.device.type == "fake"
    assert flow.equal(found, model.weight)


def test_a_result_stays_on_the_device_and_mixing_is_an_error() -> None:
    x = flow.ones(2, device="fake")
    assert (str(x.device), (x + 1).device.type, x.is_cuda, x.is_cpu) == (
        "fake",
        "fake",
        False,
        False,
    )
    with pytest.raises(RuntimeError, match="fake"):
        x + flow.ones(2)


def test_an_op_without_a_kernel_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    types = (flow.ones(2, 3).meta,)
    monkeypatch.setattr(Fake, "goes_by_host", False)
    assert registry.select("roi_align", "cpu", types, 6)
    with pytest.raises(DeviceError, match="roi_align has no kernel for fake"):
        registry.select("roi_align", "fake", types, 6)


def test_an_own_kernel_goes_before_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @registry.kernel("concat", device="fake")
    def concat(xp: Any, out: Any, *parts: Any, dim: int) -> None:
        calls.append(len(parts))
        out[...] = xp.concatenate(list(parts), axis=dim)

    try:
        flow.cat([flow.ones(2, device="fake"), flow.zeros(3, device="fake")])
    finally:
        registry._KERNELS.pop(("concat", "fake"))
        registry._candidates.pop(("concat", "fake"), None)
    assert calls == [2]


def test_registration_refuses_what_cannot_be_a_device() -> None:
    for name in ("cuda", "Fake", "a-b"):
        with pytest.raises(DeviceError, match="register_device"):
            flow.register_device(name, Fake)
    with pytest.raises(DeviceError, match="subclass of Hardware"):
        flow.register_device("other", int)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="registered already"):
        flow.register_device("fake", type("Other", (Fake,), {}))
    with pytest.raises(DeviceError, match="there is no fake:3"):
        flow.ones(2, device="fake:3")


def test_an_installed_package_brings_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("npu", "tests.unit.test_registered_device:Npu", hardware.ENTRY_POINTS)

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        return [entry] if (group, name) == (hardware.ENTRY_POINTS, "npu") else []

    with pytest.raises(DeviceError, match="no tensor can be on npu"):
        flow.ones(2, device="npu")
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    try:
        assert (flow.ones(2, device="npu") * 3).tolist() == [3, 3]
        assert flow.placement("npu", [0]).type == "npu"
    finally:
        _forget("npu")


class Npu(Fake):
    """Brought by the entry point above. Its arrays are those of Fake's class."""

    array_class = type("NpuArray", (FakeArray,), {})
