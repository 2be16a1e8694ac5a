"""`flow.sysconfig`: the parts of this installation. Nothing is compiled when it is installed, so
there are no headers and no library to link against.
"""

from __future__ import annotations

from pathlib import Path

from oneflow.core.errors import OneFlowError
from oneflow.kernels.cuda_device import cuda_version, gpu_count

__all__ = [
    "cmake_build_type",
    "get_compile_flags",
    "get_cuda_version",
    "get_include",
    "get_lib",
    "get_liboneflow_link_flags",
    "get_link_flags",
    "has_rpc_backend_grpc",
    "has_rpc_backend_local",
    "with_cuda",
    "with_enterprise",
    "with_mlir",
    "with_mlir_cuda_codegen",
    "with_rdma",
]


def with_cuda() -> bool:
    """Can tensors be on a GPU: is CuPy installed, and is there a GPU it can use?"""
    return gpu_count() > 0


def get_cuda_version() -> int:
    """The version of the CUDA runtime, 12040 for 12.4; 0 without a GPU."""
    return cuda_version()


def with_rdma() -> bool:
    """False: hosts talk over TCP, and GPUs through NCCL."""
    return False


def with_enterprise() -> bool:
    """False: the packages that the company sold are no part of this project. OneDiff asks."""
    return False


def with_mlir() -> bool:
    """False: graphs are compiled by the passes of `oneflow.scheduler.compiler`."""
    return False


def with_mlir_cuda_codegen() -> bool:
    """False: kernels for GPUs are generated from the ops' expressions, without MLIR."""
    return False


def has_rpc_backend_grpc() -> bool:
    """True: ranks and the scheduler speak gRPC."""
    return True


def has_rpc_backend_local() -> bool:
    """True: one process alone opens no socket."""
    return True


def cmake_build_type() -> str:
    """The build type: always Release, as nothing is built."""
    return "Release"


def get_lib() -> str:
    """The folder of the package."""
    return str(Path(__file__).parents[2])


def get_include() -> str:
    """Raise OneFlowError: there are no headers."""
    raise OneFlowError(
        "sysconfig.get_include: this installation has no C++ headers; write ops in Python "
        "(CONTRIBUTING.md, How to add an op)"
    )


def get_compile_flags() -> list[str]:
    """No flags: there is nothing to compile against."""
    return []


def get_link_flags() -> list[str]:
    """No flags: there is no library to link against."""
    return []


def get_liboneflow_link_flags() -> list[str]:
    """No flags: there is no library to link against."""
    return []
