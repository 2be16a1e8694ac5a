"""Makes CuPy use the emulated CUDA, where CUDA_EMULATION names the built emulator's folder; and
counts the requests of a piece of code:

    with cuda_emulation.counting() as step:
        loss = graph(x, y)
    print(step.launches, step.bytes_copied)

A .pth file calls `activate()` at Python's start; `run.sh` sets the variable.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

COUNTERS = (
    *(
        "launches",
        "graph_launches",
        "replayed",
        "gemms",
        "mallocs",
        "memcpys",
        "memsets",
        "syncs",
        "events",
        "waits",
    ),
    *("d2h", "h2d", "bytes_h2d", "bytes_copied", "bytes_set", "bytes_gemm"),
    *("bytes_loaded", "bytes_stored"),
)


def home() -> Path:
    """The folder that `build.sh` made."""
    return Path(os.environ["CUDA_EMULATION"])


def library() -> ctypes.CDLL:
    """The emulated runtime, driver and cuBLAS, as this process has loaded it."""
    return ctypes.CDLL(str(home() / "lib" / "libfakecuda.so"))


@contextlib.contextmanager
def counting(log: bool = False) -> Iterator[SimpleNamespace]:
    """Count the requests inside, as attributes that are set at the end.

    log: also write a line for each launch, product and copy to the file EMU_LOG, or to stderr.
    """
    emulator = library()
    cells = {name: ctypes.c_ulonglong.in_dll(emulator, f"emu_{name}") for name in COUNTERS}
    logging = ctypes.c_int.in_dll(emulator, "emu_logging")
    before = {name: cell.value for name, cell in cells.items()}
    result, was_logging = SimpleNamespace(), logging.value
    logging.value = int(log)
    try:
        yield result
    finally:
        logging.value = was_logging
        for name, cell in cells.items():
            setattr(result, name, cell.value - before[name])


class _Finder:
    """CuPy's `runtime` links with the emulator, its `thrust` sorts on the host.

    Its CUB calls on whole arrays, compiled with a CUDA runtime of their own, are declined, so that
    CuPy's kernels do the work.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "cupy_backends.cuda.api.runtime":
            file = str(next((home() / "python").glob("runtime.*.so")))
            loader = ExtensionFileLoader(name, file)
            return importlib.util.spec_from_file_location(name, file, loader=loader)
        if name == "cupy.cuda.thrust":
            file = str(home() / "python" / "host_sort.py")
            return importlib.util.spec_from_file_location(name, file)
        if name == "cupy.cuda.cub":
            others: list[Any] = [finder for finder in sys.meta_path if finder is not _Finder]
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec: ModuleSpec | None = next((s for s in specs if s is not None), None)
            if spec is not None:
                spec.loader = _DeclinedCub(name, str(spec.origin))
            return spec
        return None


class _DeclinedCub(ExtensionFileLoader):
    def exec_module(self, module: Any) -> None:
        super().exec_module(module)
        for name in ("cub_reduction", "cub_scan", "cub_histogram"):
            setattr(module, name, lambda *args, **kwargs: None)


def activate() -> None:
    """Let CuPy's next import find the emulator."""
    finders: list[Any] = sys.meta_path
    if _Finder not in finders:
        finders.insert(0, _Finder)
