"""cuDNN compiles plans for GPUs that are not there, from a description of the device: every plan
that our kernels ask for is one that it has.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
Q_NBYTES = 4 * 8 * 200 * 64 * 4
"""The queries of the program, in float32."""


def _folder(package: str) -> Path | None:
    """The libraries of one of NVIDIA's wheels."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return Path(roots[0], "lib") if roots else None


LIBRARIES = [_folder(f"nvidia.{name}") for name in ("cudnn", "cublas", "cuda_nvrtc")]
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("cudnn") is None or None in LIBRARIES,
        reason="no cuDNN: install oneflow-actors[cudnn] and nvidia-cuda-nvrtc-cu12",
    ),
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
]


def _runtime_name() -> str:
    """The CUDA runtime that this machine has, for cuDNN refuses to choose between two."""
    try:
        ctypes.CDLL("libcudart.so.13")
    except OSError:
        return "libcudart.so.12"
    return "libcudart.so.13"


def _libraries(folder: Path, compute: int) -> None:
    """A driver and a runtime that know one device and run nothing."""
    assert COMPILER is not None
    for name, flags in (("libcuda.so.1", ["-DDRIVER"]), (_runtime_name(), [])):
        subprocess.run(
            [COMPILER, "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", f"-DCOMPUTE={compute}",
             *flags, "-o", folder / name, HERE / "no_driver.cpp"],
            check=True,
        )  # fmt: skip


@pytest.mark.parametrize("compute", [800, 900, 1000])
def test_plans_are_built_for_a_described_device(compute: int, tmp_path: Path) -> None:
    _libraries(tmp_path, compute)
    places = [str(tmp_path), *map(str, LIBRARIES)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.kernels.cudnn_plans_program", str(compute)],
        env=os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(places)},
        cwd=HERE.parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    refused = {name for name, nbytes in found.items() if isinstance(nbytes, str)}
    single = {name for name in found if "float32" in name and name.startswith("attention")}
    assert refused == single | {"attention of heads of 12"}, found
    scratch = [n for name, n in found.items() if "attention" in name and name not in refused]
    assert len(scratch) == 8 and max(scratch) <= 4 * Q_NBYTES  # sums of q's, k's and v's size
