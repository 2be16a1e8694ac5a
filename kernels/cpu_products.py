"""Products of float32 matrices on the CPU, by the fastest library, as measured once a machine.

There is a program of our own (`native/gemm.py`), which reads operands with any strides and
adds a bias on the way out, and `cblas_sgemm` of libraries: the OpenBLAS that NumPy brings, and MKL
where it is installed. Large products of each kind are measured; a library does those of a kind if
it is faster by a twentieth at least. The choice is kept beside the compiled kernels, so that all
processes of a machine make the same one and their sums agree to the bit.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter

import ml_dtypes
import numpy as np

from oneflow.core.config import current_config
from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.kernels.array import Array
from oneflow.kernels.native import few_rows, gemm, gemm_bfloat16
from oneflow.kernels.native.blas import Library
from oneflow.kernels.native.machine_code import machine, stored
from oneflow.kernels.threads import limit_blas, loaded

log = get_logger(__name__)
OWN = "oneflow"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TINY = 1 << 17
"""Multiplications that NumPy has done before a plan of ours is found and called, which takes 4 us:
(16, 64) by (64, 64) is 2.1 us of NumPy's and 5.6 of ours."""
_LARGE = 1 << 20
_FEW_ROWS = 8
_MARGIN = 1.05
_ROUNDS = 3

Kind = str
Sizes = tuple[int, int, int]
_LARGE_SHAPES: Sequence[Sizes] = [(264, 384, 512)]  # tiles of one size: half the code
_FLAT_SHAPES: Sequence[Sizes] = [(1, 768, 2048), (4, 512, 1024), (8, 512, 2048)]
_SHAPES: Mapping[Kind, Sequence[Sizes]] = {
    "nn": _LARGE_SHAPES,
    "nt": _LARGE_SHAPES,
    "tn": _LARGE_SHAPES,
    "nn, few rows": _FLAT_SHAPES[::2],
    "nt, few rows": _FLAT_SHAPES,
}
"""m, k and n of the products measured for each kind. n: a matrix by rows, t: by columns."""


def multiply(a: Array, b: Array, out: Array, bias: Array | None = None) -> None:
    """out <- a @ b, and `bias` added to each row: NumPy arrays, or stacks of matrices. Products of
    bfloat16 are added up in float32."""
    if out.dtype == BFLOAT16:
        _multiply_bfloat16(a, b, out, bias)
        return
    size = out.size * a.shape[-1]
    is_small = size < _TINY or min(out.ndim, a.ndim, b.ndim) < 2
    if not is_small and a.dtype == b.dtype == out.dtype == np.float32:
        library = _library(a, b) if size >= _LARGE else None
        if library is not None and library.multiply(a, b, out):
            if bias is not None:
                np.add(out, bias, out=out)
            return
        if gemm.multiply(a, b, out, bias):
            return
    np.matmul(a, b, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


def _multiply_bfloat16(a: Array, b: Array, out: Array, bias: Array | None) -> None:
    are_matrices = out.ndim > 1 and a.ndim > 1 and b.ndim > 1 and a.dtype == b.dtype == BFLOAT16
    if are_matrices and out.size and a.shape[-1] and gemm_bfloat16.multiply(a, b, out, bias):
        return
    sums = np.matmul(a.astype(np.float32), b.astype(np.float32))
    out[...] = sums if bias is None else sums + bias.astype(np.float32)


def _library(a: Array, b: Array) -> Library | None:
    """The library that does products of this kind, None: we do."""
    libraries = chosen()
    if not libraries:
        return None
    kind = ("n" if a.strides[-1] == a.itemsize else "t") + (
        "n" if b.strides[-1] == b.itemsize else "t"
    )
    return libraries.get(f"{kind}, few rows" if a.shape[-2] <= _FEW_ROWS else kind)


# ---- the choice ----------------------------------------------------------------------------------


@cache
def chosen() -> Mapping[Kind, Library]:
    """The libraries that do products of some kinds."""
    limit_blas(1)  # its threads would wait in loops on the cores that ours want
    wanted = current_config().products
    if wanted == OWN:
        return {}
    found = found_libraries()
    if wanted != "auto":
        library = next((x for x in found if x.name == wanted), None)
        if library is None:
            raise ConfigError(
                f"ONEFLOW_PRODUCTS={wanted}: there is no such library here; found: "
                f"{', '.join([OWN, *(x.name for x in found)])}"
            )
        return dict.fromkeys(_SHAPES, library)
    fastest: dict[Kind, Library] = {}
    for kind, rates in measured().items():
        best = max(found, key=lambda x: rates.get(x.name, 0.0), default=None)
        if best is not None and rates.get(best.name, 0.0) > rates[OWN] * _MARGIN:
            fastest[kind] = best
    return fastest


@cache
def measured() -> Mapping[Kind, Mapping[str, float]]:
    """GFLOP/s of each way to multiply on one thread, by kind; measured once a machine."""
    limit_blas(1)
    libraries = found_libraries()
    own = "".join(Path(x).read_text() for x in (gemm.__file__, few_rows.__file__))
    parts = [machine().identity, own, repr(_SHAPES), *(f"{x.name} {x.version}" for x in libraries)]
    digest = sha256("\0".join(["products", *parts]).encode()).hexdigest()

    def make() -> bytes:
        return json.dumps({k: _measure(k, libraries) for k in _SHAPES}).encode()

    found: Mapping[Kind, Mapping[str, float]] = json.loads(stored().decided(digest, make))
    return found


def _measure(kind: Kind, libraries: list[Library]) -> dict[str, float]:
    found = [_rates(kind, sizes, libraries) for sizes in _SHAPES[kind]]
    return {name: geometric_mean(rates[name] for rates in found) for name in found[0]}


def _rates(kind: Kind, sizes: Sizes, libraries: list[Library]) -> dict[str, float]:
    m, k, n = sizes
    rng = np.random.default_rng(0)
    a = rng.random((m, k) if kind[0] == "n" else (k, m), np.float32)
    b = rng.random((k, n) if kind[1] == "n" else (n, k), np.float32)
    a, b = a if kind[0] == "n" else a.T, b if kind[1] == "n" else b.T
    out = np.empty((m, n), np.float32)
    ways: dict[str, Callable[[], bool]] = {OWN: lambda: gemm.multiply(a, b, out, one_thread=True)}
    for x in libraries:
        ways[x.name] = lambda x=x: x.multiply(a, b, out, one_thread=True)  # type: ignore[misc]
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in ways.items():
            run()  # its memory is in the caches
            start = perf_counter()
            run()
            times[name] = min(times[name], perf_counter() - start)
    return {name: 2 * m * k * n / seconds / 1e9 for name, seconds in times.items()}


# ---- libraries -----------------------------------------------------------------------------------


@cache
def found_libraries() -> list[Library]:
    return [x for x in (_openblas(), _mkl()) if x is not None]


def _openblas() -> Library | None:
    """The one that NumPy brings."""
    names = {"scipy_cblas_sgemm64_": "i64", "cblas_sgemm64_": "i64", "scipy_cblas_sgemm": "i32"}
    for library in loaded("openblas"):
        for name, integer in names.items():
            if hasattr(library, name):
                return Library("openblas", np.__version__, _address(library, name), integer)
    return None


def _mkl() -> Library | None:
    """MKL of the package of that name: its layer without threads, with sizes of 32 bits."""
    try:
        files, version = metadata.files("mkl") or [], metadata.version("mkl")
    except metadata.PackageNotFoundError:
        return None
    path = next((f.locate() for f in files if f.name.startswith("libmkl_rt")), None)
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("MKL is installed and cannot be loaded: %s", error)
        return None
    library.MKL_Set_Threading_Layer(1)
    library.MKL_Set_Interface_Layer(0)
    return Library("mkl", version, _address(library, "cblas_sgemm"), "i32")


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
