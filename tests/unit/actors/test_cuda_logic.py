"""Decisions of the GPU code, with a stand-in for CuPy: device numbers, the life of shared
registers, when kernels are recorded. No value is computed; no GPU is needed.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oneflow.actors.cuda_graph import Recordings, Replayed
from oneflow.boxing.transport import gpu_memory
from oneflow.boxing.transport.rank_pages import UNMAPPED, RankPages, new_page
from oneflow.core.config import Config, set_config
from oneflow.core.errors import DeviceError
from oneflow.kernels import cuda_device


class CudaError(RuntimeError):
    pass


class Runtime:
    """Counts mappings, and fails to record when told to."""

    CUDARuntimeError = CudaError

    def __init__(self, count: int) -> None:
        self.count = count
        self.mapped: list[int] = []

    def getDeviceCount(self) -> int:
        return self.count

    def getDevice(self) -> int:
        return 0

    def ipcGetMemHandle(self, address: int) -> bytes:
        return b"%d" % address

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self.mapped.append(int(handle) + 1000)
        return self.mapped[-1]

    def ipcCloseMemHandle(self, address: int) -> None:
        self.mapped.remove(address)


class Memory:
    """An allocation; `alive` counts those that were not freed."""

    alive = 0

    def __init__(self, nbytes: int) -> None:
        Memory.alive += 1
        self.ptr, self.nbytes = 4096, nbytes

    def __del__(self) -> None:
        Memory.alive -= 1


class Stream:
    recording = False

    def __init__(self, non_blocking: bool = False) -> None:
        return

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return

    def synchronize(self) -> None:
        return

    def begin_capture(self) -> None:
        Stream.recording = True

    def end_capture(self) -> Graph:
        Stream.recording = False
        return Graph()


class Graph:
    launches = 0

    def launch(self) -> None:
        Graph.launches += 1


class Bytes:
    def __init__(self, shape: Any, dtype: Any, pointer: Any) -> None:
        self.memory = pointer

    def fill(self, value: int) -> None:
        return


@contextmanager
def _allocator(_: Any) -> Iterator[None]:
    yield


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime(2)
    cuda = types.SimpleNamespace(
        runtime=found,
        driver=types.SimpleNamespace(CUDADriverError=CudaError),
        memory=types.SimpleNamespace(Memory=Memory),
        UnownedMemory=lambda address, nbytes, owner, device: address,
        MemoryPointer=lambda memory, offset: memory,
        MemoryPool=lambda: types.SimpleNamespace(malloc=None),
        Stream=Stream,
        using_allocator=_allocator,
        get_current_stream=Stream,
    )
    cupy = types.SimpleNamespace(cuda=cuda, ndarray=Bytes, uint8="uint8")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cuda_device, "import_cupy", lambda: cupy)
    return found


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        return self.values[key]


@pytest.fixture
def local_rank() -> Iterator[Any]:
    yield lambda n: set_config(Config(rank=n, local_rank=n, world_size=8))
    set_config(None)


def test_ranks_that_outnumber_the_gpus_share_them(runtime: Runtime, local_rank: Any) -> None:
    local_rank(3)
    assert [cuda_device.device_number(i) for i in (0, 1, 3)] == [0, 1, 1]
    with pytest.raises(DeviceError, match="there is no cuda:5: this host has 2 CUDA devices"):
        cuda_device.device_number(5)
    on = types.SimpleNamespace
    assert cuda_device.index_of(on(device=on(id=1))) == 3  # this rank's name for the GPU it shares
    assert cuda_device.index_of(on(device=on(id=0))) == 0


def test_no_gpu_is_an_error_of_ours(runtime: Runtime, local_rank: Any) -> None:
    local_rank(0)
    runtime.count = 0
    with pytest.raises(DeviceError, match="this host has 0 CUDA devices"):
        cuda_device.device_number(0)


def test_registers_stay_until_every_peer_has_unmapped_them(runtime: Runtime) -> None:
    pages, store = RankPages(0, [0, 1], {r: new_page(2, 64) for r in (0, 1)}), Store()
    store.put("cuda/job/1", b"8192")
    mine = gpu_memory.GpuMemory(lambda rank: 64, pages, "job", store)
    assert sorted(mine.arrays) == [0, 1] and runtime.mapped == [9192]
    assert store.values["cuda/job/0"] == b"4096"
    mine.close()
    assert runtime.mapped == [] and Memory.alive == 1  # the peer may still read
    pages.by_rank[1].words[UNMAPPED] = 1
    gpu_memory._free_retired()
    assert Memory.alive == 0


def test_a_forgotten_job_gives_its_registers_back(runtime: Runtime) -> None:
    pages = RankPages(0, [0], {0: new_page(1, 64)})
    alone = gpu_memory.GpuMemory(lambda rank: 64, pages, "job", Store())
    assert Memory.alive == 1
    del alone
    gc.collect()
    assert Memory.alive == 0


@pytest.fixture
def recordings(runtime: Runtime) -> Recordings:
    Graph.launches = 0
    return Recordings()


def test_kernels_are_recorded_once_and_then_replayed(recordings: Recordings) -> None:
    calls: list[int] = []
    act = Replayed("fwd", [lambda: calls.append(1), lambda: calls.append(2)], recordings)
    for _ in range(4):
        act()
    assert calls == [1, 2, 1, 2] and Graph.launches == 3  # run, recorded, then launched only


def test_what_cannot_be_recorded_runs_between_the_graphs(recordings: Recordings) -> None:
    calls: list[str] = []

    def waits() -> None:
        calls.append("waits")
        if Stream.recording:
            raise CudaError("operation not permitted when stream is capturing")

    def kernel() -> None:
        calls.append("kernel")

    act = Replayed("fwd", [kernel, kernel, waits, kernel, kernel, kernel], recordings)
    act()
    act()
    del calls[:]
    Graph.launches = 0
    act()
    assert calls == ["waits"] and Graph.launches == 2
    assert (recordings.num_graphs, recordings.num_calls, recordings.plain) == (2, 5, 1)
    assert recordings.take_lines() == [
        "fwd: not recorded in a CUDA graph: operation not permitted when stream is capturing",
        "fwd: 2 CUDA graphs of 5 calls, 1 calls run one by one",
    ]
    assert recordings.take_lines() == []


def test_an_error_of_a_call_names_it_in_every_act(recordings: Recordings) -> None:
    blamed: list[int] = []

    def fails() -> None:
        raise ValueError("out of range")

    act = Replayed("fwd", [lambda: None, fails], recordings, lambda _, call: blamed.append(call))
    for _ in range(3):
        with pytest.raises(ValueError, match="out of range"):
            act()
    assert blamed[0] == 1 and blamed[-1] == 1
