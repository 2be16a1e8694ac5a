"""The part of upstream's compiled module, `oneflow._oneflow_internal`, that its clients call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from oneflow import comm, cuda
from oneflow import profiler as _profiler
from oneflow.compat.upstream import remat, sysconfig
from oneflow.core.dispatch import is_traced
from oneflow.core.errors import OneFlowError
from oneflow.core.host_memory import own_memory
from oneflow.tensor.grad_mode import set_grad_enabled
from oneflow.tensor.tensor import Tensor

__all__ = [
    "CudaSynchronize",
    "GetCPUMemoryUsed",
    "GetCUDAMemoryUsed",
    "Tensor",
    "autograd",
    "cpu_broadcast",
    "eager",
    "exception",
    "flags",
    "lazy_mode",
    "profiler",
    "remat",
]


def cpu_broadcast(data: bytes | None, src: int) -> bytes:
    """The bytes that rank `src` gives, on every rank."""
    received: bytes = comm.broadcast_object(data, src)
    return received


def _broadcast_py_object(obj: object, src: int = 0) -> object:
    """The value that rank `src` gives, on every rank."""
    return comm.broadcast_object(obj, src)


def GetCUDAMemoryUsed() -> float:
    """Return the MiB in use on this process's GPU, by all processes."""
    free, total = cuda.mem_get_info()
    return (total - free) / 2**20


def GetCPUMemoryUsed() -> float:
    """MiB of memory that this process holds."""
    return own_memory()["rss"] / 2**20


def CudaSynchronize(device: int | None = None) -> None:
    """Wait until all work given to the GPU is done."""
    cuda.synchronize(device)


def Sync() -> None:
    """Return at once: eager ops on the CPU have run when their call returns."""
    if cuda.is_available():
        cuda.synchronize()


@contextmanager
def _guard(is_lazy: bool) -> Iterator[None]:
    if is_lazy:
        raise OneFlowError("lazy_mode.guard: ops are traced inside nn.Graph.build and nowhere else")
    yield


eager = SimpleNamespace(
    Sync=Sync, ClusterSync=comm.barrier, multi_client=SimpleNamespace(Sync=comm.barrier)
)
lazy_mode = SimpleNamespace(guard=_guard, is_enabled=is_traced)
autograd = SimpleNamespace(AutoGradMode=set_grad_enabled)
exception = SimpleNamespace(Exception=OneFlowError)
profiler = SimpleNamespace(RangePush=_profiler.range_push, RangePop=_profiler.range_pop)
flags = SimpleNamespace(
    with_cuda=sysconfig.with_cuda,
    cuda_version=sysconfig.get_cuda_version,
    with_rdma=sysconfig.with_rdma,
    with_mlir=sysconfig.with_mlir,
    with_mlir_cuda_codegen=sysconfig.with_mlir_cuda_codegen,
    cmake_build_type=sysconfig.cmake_build_type,
)
