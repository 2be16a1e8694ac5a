"""`flow.cuda` without a GPU, and with a stand-in for CuPy."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import oneflow as flow
from oneflow.core.config import Config, set_config
from oneflow.core.errors import ArgumentError, DeviceError
from oneflow.kernels import cuda_device


class CudaError(RuntimeError):
    """Stands for CUDARuntimeError."""


class Gpus:
    """A stand-in for CuPy on a host with `count` GPUs, which remembers the calls."""

    def __init__(self, count: int) -> None:
        self.count, self.done, self.current = count, [], 0  # type: ignore[var-annotated]
        self.cuda = types.SimpleNamespace(runtime=self, Device=self._device)
        self.CUDARuntimeError = CudaError

    def getDeviceCount(self) -> int:
        if not self.count:
            raise CudaError("no CUDA-capable device is detected")
        return self.count

    def getDevice(self) -> int:
        return self.current

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": f"GPU {number}".encode()}

    def get_default_memory_pool(self) -> Any:
        free = lambda: self.done.append(("free", self.current))  # noqa: E731
        return types.SimpleNamespace(
            free_all_blocks=free,
            used_bytes=lambda: 100 + self.current,
            total_bytes=lambda: 200 + self.current,
        )

    def _device(self, number: int) -> Gpu:
        return Gpu(self, number)


class Gpu:
    """A stand-in for CuPy's Device, current within `with`."""

    def __init__(self, host: Gpus, number: int) -> None:
        self.host, self.number, self.before = host, number, 0
        self.mem_info = (10 + number, 100)

    def synchronize(self) -> None:
        self.host.done.append(("wait", self.number))

    def use(self) -> None:
        self.host.current = self.number

    def __enter__(self) -> None:
        self.before, self.host.current = self.host.current, self.number

    def __exit__(self, *_: object) -> None:
        self.host.current = self.before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    found = Gpus(2)
    monkeypatch.setitem(sys.modules, "cupy", found)  # type: ignore[arg-type]
    monkeypatch.setattr(cuda_device, "import_cupy", lambda: found)
    monkeypatch.setattr("oneflow.cuda.import_cupy", lambda: found)
    yield found
    set_config(None)


CALLS = ("current_device", "synchronize", "get_device_name", "mem_get_info")


@pytest.mark.parametrize("name", CALLS)
def test_without_a_gpu_what_needs_one_says_so(gpus: Gpus, name: str) -> None:
    gpus.count = 0
    assert flow.cuda.is_available() is False and flow.cuda.device_count() == 0
    with pytest.raises(DeviceError, match="no CUDA device"):
        getattr(flow.cuda, name)()
    flow.cuda.empty_cache()
    assert not gpus.done
    with pytest.raises(DeviceError, match="no CUDA device"):
        flow.cuda.set_device(0)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it fails
    assert flow.cuda.is_available() is False and flow.cuda.device_count() == 0
    assert flow.cuda.is_initialized() is False
    assert flow.cuda.memory_allocated() == flow.cuda.memory_reserved() == 0
    with pytest.raises(DeviceError, match="needs CuPy"):
        flow.cuda.synchronize()


def test_each_process_has_its_own_gpu(gpus: Gpus) -> None:
    set_config(Config(rank=1, local_rank=1, world_size=2))
    cuda = flow.cuda
    assert cuda.is_available() is True and cuda.device_count() == 2 and cuda.current_device() == 1
    assert cuda.get_device_name() == "GPU 1" and cuda.get_device_name("cuda:0") == "GPU 0"
    assert cuda.mem_get_info(flow.device("cuda:0")) == (10, 100)
    assert cuda.is_initialized() is True
    assert cuda.memory_allocated() == 101 and cuda.memory_allocated("cuda:0") == 100
    assert cuda.memory_reserved() == 201 and cuda.memory_reserved(0) == 200
    cuda.synchronize()
    cuda.synchronize(0)
    cuda.empty_cache()
    assert gpus.done == [("wait", 1), ("wait", 0), ("free", 1)]
    cuda.set_device(1)
    cuda.set_device("cuda")
    cuda.set_device(-1)
    with pytest.raises(DeviceError, match="`cuda` is GPU 1 in this process"):
        cuda.set_device(0)
    with pytest.raises(DeviceError, match="there is no cuda:2: this host has 2"):
        cuda.set_device(2)
    with pytest.raises(DeviceError, match="expected a cuda device"):
        cuda.get_device_name("cpu")


def test_ranks_that_share_a_gpu_may_name_it_either_way(gpus: Gpus) -> None:
    set_config(Config(rank=3, local_rank=3, world_size=4))
    flow.cuda.set_device(3)
    flow.cuda.set_device(1)
    assert flow.cuda.current_device() == 3 and flow.cuda.get_device_name(3) == "GPU 1"


def test_one_seed_for_all_devices() -> None:
    state = flow.get_rng_state()
    drawn = []
    for seed in (flow.manual_seed, flow.cuda.manual_seed, flow.cuda.manual_seed_all):
        seed(5)
        drawn.append(flow.rand(3).tolist())
    flow.set_rng_state(state)
    assert drawn[0] == drawn[1] == drawn[2]


def test_streams_and_events_of_a_host_without_gpus_change_nothing() -> None:
    first, second = (flow.cuda.Event(enable_timing=True) for _ in range(2))
    side = flow.cuda.Stream()
    x = flow.arange(6.0)
    first.record(side)
    with flow.cuda.stream(side):
        side.wait_stream(flow.cuda.current_stream())
        y = x.cumsum(0) * 2
    second.record()
    side.wait_event(second)
    second.wait(flow.cuda.current_stream())
    flow.cuda.current_stream().wait_stream(side)
    second.synchronize()
    side.synchronize()
    assert first.query() and side.query()
    assert y.tolist() == [0, 2, 6, 12, 20, 30]
    assert first.elapsed_time(second) > 0 > second.elapsed_time(first)


@pytest.mark.parametrize(("is_timed", "is_recorded"), [(False, True), (True, False)])
def test_times_are_those_of_recorded_events_that_are_timed(
    is_timed: bool, is_recorded: bool
) -> None:
    begin, end = flow.cuda.Event(enable_timing=True), flow.cuda.Event(enable_timing=is_timed)
    begin.record()
    if is_recorded:
        end.record()
    with pytest.raises(ArgumentError, match="enable_timing=True and recorded"):
        begin.elapsed_time(end)
