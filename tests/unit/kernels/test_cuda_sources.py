"""Every CUDA source compiles with NVRTC, which needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import re
from pathlib import Path

import pytest

from oneflow.kernels import cuda_sources
from oneflow.kernels.cuda_sources import C_TYPES, SOURCES, source_of


def _find_nvrtc() -> ctypes.CDLL | None:
    places = ["/usr/local/cuda*/lib64/libnvrtc.so*", "/usr/local/cuda*/targets/*/lib/libnvrtc.so*"]
    names = [name for place in places for name in sorted(glob.glob(place))]
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for root in (spec.submodule_search_locations or ()) if spec else ():
            names += sorted(str(p) for p in Path(root, "lib").glob("libnvrtc.so*"))
    names += [name for name in (ctypes.util.find_library("nvrtc"),) if name]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:  # found, but not loadable here: try the next
            continue
    return None


NVRTC = _find_nvrtc()


def _compile(text: str, architecture: str) -> tuple[int, str]:
    """(status, log) of compiling `text` with the options that CuPy is given."""
    assert NVRTC is not None
    program = ctypes.c_void_p()
    made = NVRTC.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    assert made == 0
    flags = (f"--gpu-architecture={architecture}".encode(), b"-std=c++17")
    status = NVRTC.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.skipif(
    NVRTC is None, reason="no NVRTC on this machine: install nvidia-cuda-nvrtc-cu12 or CUDA"
)
@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90"])
@pytest.mark.parametrize("dtype", C_TYPES)
@pytest.mark.parametrize("module", SOURCES)
def test_source_compiles(module: str, dtype: str, architecture: str) -> None:
    status, log = _compile(source_of(module, dtype), architecture)
    assert status == 0, log


@pytest.mark.parametrize("module", SOURCES)
def test_source_defines_the_kernels_it_lists(module: str) -> None:
    text, names = SOURCES[module]
    for name in names:
        assert f'extern "C" __global__ void {name}(' in text


def test_every_kernel_that_is_launched_is_listed() -> None:
    text = (Path(cuda_sources.__file__).parent / "cuda_kernels.py").read_text()
    launched = set(re.findall(r"(?:_by_row|_flat|_function)\(\s*\"(\w+)\"", text))
    listed = {name for _, names in SOURCES.values() for name in names}
    assert launched == listed
