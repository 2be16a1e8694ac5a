"""Every CUDA source compiles with NVRTC, which needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import re
from pathlib import Path

import pytest

from oneflow.kernels import cuda_launch, registry
from oneflow.kernels.cuda_launch import C_TYPES, functions_of, source_of

registry.load()
SOURCES = sorted(cuda_launch.SOURCES)
FOLDER = Path(cuda_launch.__file__).parent


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


def test_every_kernel_that_is_launched_is_defined_and_the_other_way_round() -> None:
    launched = {
        name
        for path in FOLDER.glob("*.py")
        for name in re.findall(r"\b(?:by_row|flat|launch)\(\s*\"(\w+)\"", path.read_text())
    }
    assert launched == {name for topic in SOURCES for name in functions_of(topic)}
