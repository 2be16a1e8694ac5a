"""Products by cuBLASLt, which does more to a result as it writes it: bias, activation, the addition
of a matrix, the gradient of an activation, sums of columns.

A request says everything about a product but its addresses. The library is asked once for each how
to compute it; a request that it refuses has no plan, and its callers go another way. The workspace
is that of cuBLAS (cublas.py), so that a product allocates nothing.

The library's GELU is the tanh approximation.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from oneflow.core.errors import DeviceError
from oneflow.kernels import cublas

DATA = {**cublas.DATA, "float8_e4m3fn": 28, "float8_e5m2": 29}
"""cudaDataType by dtype."""

# Bits of cublasLtEpilogue_t.
RELU, BIAS, DRELU, BIAS_GRAD, GELU, DGELU, SAVED, SUM_LEFT, SUM_RIGHT = (
    2, 4, 8, 16, 32, 64, 128, 256, 512,
)  # fmt: skip

_TRANS_A, _TRANS_B, _EPILOGUE, _BIAS, _AUX, _AUX_LD = 3, 4, 7, 8, 11, 12  # of a descriptor
_SCALES, _LARGEST, _AUX_TYPE, _BIAS_TYPE = (17, 18, 19, 20), 21, 22, 26
_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)  # of a preference; of the operands A, B, C and D
_FLOAT32, _FLOAT64 = 0, 1
_NOT_SUPPORTED, _INVALID = 15, 7
_MOST_ALIGNED = 256  # bytes; what the library assumes of addresses


class Matrix(NamedTuple):
    """A matrix as the library counts, columns first, before it is transposed.

    leading: elements from a column to the next.  alignment: bytes that divide its address.
    """

    dtype: str
    rows: int
    columns: int
    leading: int
    alignment: int = _MOST_ALIGNED


@dataclass(frozen=True)
class Request:
    """out = f(alpha * left @ right + beta * added), without its addresses.

    turns_left, turns_right: the library is to transpose them.  epilogue: bits, as above.  added:
    None if nothing is added.  saved: elements from a column to the next of the activation's input,
    or bits of its mask; 0: there is none.  is_scaled: operands of 8 bits have scales.
    bias_alignment, saved_alignment: bytes that divide the addresses of these.
    """

    left: Matrix
    right: Matrix
    out: Matrix
    turns_left: bool = False
    turns_right: bool = False
    epilogue: int = 0
    added: Matrix | None = None
    saved: int = 0
    alpha: float = 1.0
    is_scaled: bool = False
    bias_alignment: int = _MOST_ALIGNED
    saved_alignment: int = _MOST_ALIGNED


class Addresses(NamedTuple):
    """The arrays of one product. bias: of the addend of all columns, or of the sums.

    scales: of left, right, added and out, float32 numbers on the GPU, 0 for 1.  largest: gets the
    largest absolute value of the result, if it is not 0.
    """

    left: int
    right: int
    out: int
    bias: int = 0
    added: int = 0
    saved: int = 0
    scales: tuple[int, int, int, int] = (0, 0, 0, 0)
    largest: int = 0


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Plan:
    """A request with the library's way to compute it, on the GPU that it was asked on."""

    def __init__(self, request: Request, handle: ctypes.c_void_p, result: _Result) -> None:
        self._handle, self._result = handle, result
        self._lock = threading.Lock()  # the descriptor holds the addresses of one call
        self._desc = _descriptor(request)
        self._layouts = [_layout(m) for m in _matrices(request)]
        is_double = request.out.dtype == "float64"
        kind = np.float64 if is_double else np.float32
        self._alpha = np.array(request.alpha, kind)
        self._beta = np.array(0 if request.added is None else 1, kind)
        self._request = request
        finalize(self, _destroy, self._desc, self._layouts).atexit = False

    def run(self, at: Addresses, stream: int) -> None:
        """Computes one product in the order of `stream`. Raises DeviceError."""
        workspace, nbytes = cublas.workspace()
        left, right, added, out = self._layouts
        with self._lock:
            self._set_addresses(at)
            status = library().cublasLtMatmul(
                self._handle, self._desc, _address(self._alpha.ctypes.data),
                _address(at.left), left, _address(at.right), right,
                _address(self._beta.ctypes.data), _address(at.added or at.out), added,
                _address(at.out), out, ctypes.byref(self._result), _address(workspace),
                ctypes.c_size_t(nbytes), _address(stream),
            )  # fmt: skip
        _check(status, self._request)

    def _set_addresses(self, at: Addresses) -> None:
        if at.bias:
            _set(self._desc, _BIAS, _address(at.bias))
        if at.saved:
            _set(self._desc, _AUX, _address(at.saved))
        if self._request.is_scaled:
            for name, scale in zip(_SCALES, at.scales, strict=True):
                _set(self._desc, name, _address(scale))
            _set(self._desc, _LARGEST, _address(at.largest))


_plans: OrderedDict[tuple[int, int, Request], Plan | None] = OrderedDict()
_MOST_PLANS = 4096  # some kilobytes each; programs may ask for ever new shapes
_plans_lock = threading.Lock()


def plan(request: Request) -> Plan | None:
    """The plan of a request on the current GPU; None if the library has none. The answer is kept.
    Raises DeviceError if the library itself fails, or is not there.
    """
    import cupy

    # Programs may switch TF32 on and off.
    key = cupy.cuda.runtime.getDevice(), cublas.arithmetic(request.left.dtype), request
    with _plans_lock:
        if key not in _plans:
            _plans[key] = _ask(request, key[0])
            while len(_plans) > _MOST_PLANS:
                _plans.popitem(last=False)
        _plans.move_to_end(key)
        return _plans[key]


@cache
def why_not() -> str:
    """The reason why there is no cuBLASLt on this machine; "" if there is."""
    try:
        library().cublasLtGetVersion()
    except (DeviceError, OSError, AttributeError) as error:
        return str(error).splitlines()[0]
    return ""


def version() -> str:
    """The library's version, as 13.0.2."""
    number = int(library().cublasLtGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@cache
def library() -> ctypes.CDLL:
    """The library beside the cuBLAS that CuPy has loaded. Raises OSError."""
    import cupy
    from cupy.cuda import cublas as _loaded  # noqa: F401  # it loads cuBLASLt as well

    found = ctypes.CDLL(f"libcublasLt.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
    found.cublasLtGetVersion.restype = ctypes.c_size_t
    return found


@cache
def _handle(device: int) -> ctypes.c_void_p:
    """cuBLASLt on the current GPU `device`, for all threads."""
    made = ctypes.c_void_p()
    _check(library().cublasLtCreate(ctypes.byref(made)), None)
    return made


def _ask(request: Request, device: int) -> Plan | None:
    handle = _handle(device)
    desc = _descriptor(request)
    layouts = [_layout(m) for m in _matrices(request)]
    wish, result, found = ctypes.c_void_p(), _Result(), ctypes.c_int()
    library().cublasLtMatmulPreferenceCreate(ctypes.byref(wish))
    try:
        _wish(wish, _WORKSPACE, ctypes.c_uint64(cublas.workspace()[1]))
        for name, matrix in zip(_ALIGNMENTS, _matrices(request), strict=True):
            _wish(wish, name, ctypes.c_uint32(matrix.alignment))
        status = library().cublasLtMatmulAlgoGetHeuristic(
            handle, desc, *layouts, wish, 1, ctypes.byref(result), ctypes.byref(found)
        )
    finally:
        library().cublasLtMatmulPreferenceDestroy(wish)
        _destroy(desc, layouts)
    if status in (_NOT_SUPPORTED, _INVALID) or not found.value:
        return None
    _check(status, request)
    return Plan(request, handle, result)


def _destroy(desc: ctypes.c_void_p, layouts: Sequence[ctypes.c_void_p]) -> None:
    library().cublasLtMatmulDescDestroy(desc)
    for layout in layouts:
        library().cublasLtMatrixLayoutDestroy(layout)


def _matrices(request: Request) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """A, B, C and D."""
    return request.left, request.right, _added(request), request.out


def _added(request: Request) -> Matrix:
    """The matrix that is added, or could be: wider numbers than those of a result in 8 bits."""
    if request.added is not None or request.out.dtype in cublas.DATA:
        return request.added or request.out
    return request.out._replace(dtype="bfloat16")


def _descriptor(request: Request) -> ctypes.c_void_p:
    is_double = request.out.dtype == "float64"
    made = ctypes.c_void_p()
    compute = cublas.arithmetic(request.left.dtype)
    scale = _FLOAT64 if is_double else _FLOAT32
    _check(library().cublasLtMatmulDescCreate(ctypes.byref(made), compute, scale), request)
    _set(made, _TRANS_A, ctypes.c_int32(request.turns_left))
    _set(made, _TRANS_B, ctypes.c_int32(request.turns_right))
    _set(made, _EPILOGUE, ctypes.c_uint32(request.epilogue or 1))
    added = _added(request)
    if request.epilogue & (BIAS | BIAS_GRAD | SUM_LEFT | SUM_RIGHT):
        _set(made, _BIAS_TYPE, ctypes.c_int32(DATA[added.dtype]))
        # An address stands for its alignment here; each call sets its own.
        _set(made, _BIAS, _address(request.bias_alignment))
    if request.epilogue & SAVED:
        _set(made, _AUX, _address(request.saved_alignment))
        _set(made, _AUX_LD, ctypes.c_int64(request.saved))
        if request.epilogue & (GELU | DGELU):
            _set(made, _AUX_TYPE, ctypes.c_int32(DATA[added.dtype]))
    return made


def _layout(matrix: Matrix) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    rows, columns = ctypes.c_uint64(matrix.rows), ctypes.c_uint64(matrix.columns)
    status = library().cublasLtMatrixLayoutCreate(
        ctypes.byref(made), DATA[matrix.dtype], rows, columns, ctypes.c_int64(matrix.leading)
    )
    _check(status, matrix)
    return made


def _address(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


def _set(desc: ctypes.c_void_p, name: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    status = library().cublasLtMatmulDescSetAttribute(desc, name, ctypes.byref(value), size)
    _check(status, f"attribute {name} of a descriptor")


def _wish(preference: ctypes.c_void_p, name: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    status = library().cublasLtMatmulPreferenceSetAttribute(
        preference, name, ctypes.byref(value), size
    )
    _check(status, f"attribute {name} of a preference")


def _check(status: int, what: object) -> None:
    if status:
        told = f"{what}" if what else "its set-up"
        raise DeviceError(f"cuBLASLt refused {told} with status {status} (cublasStatus_t)")
