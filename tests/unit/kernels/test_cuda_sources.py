"""Every CUDA source compiles with NVRTC, which needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
from pathlib import Path

import pytest

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


def _compile(text: str) -> tuple[int, str]:
    """(status, log) of compiling `text` for compute capability 8.0."""
    assert NVRTC is not None
    program = ctypes.c_void_p()
    NVRTC.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    status = NVRTC.nvrtcCompileProgram(program, 1, options)
    size = ctypes.c_size_t()
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.skipif(NVRTC is None, reason="no NVRTC: install nvidia-cuda-nvrtc-cu12 or CUDA")
@pytest.mark.parametrize("dtype", C_TYPES)
@pytest.mark.parametrize("module", SOURCES)
def test_source_compiles(module: str, dtype: str) -> None:
    status, log = _compile(source_of(module, dtype))
    assert status == 0, log


@pytest.mark.parametrize("module", SOURCES)
def test_source_defines_the_kernels_it_lists(module: str) -> None:
    text, names = SOURCES[module]
    for name in names:
        assert f'extern "C" __global__ void {name}(' in text
