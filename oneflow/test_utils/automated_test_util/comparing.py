"""Comparison of a result of PyTorch's with one of ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np

from oneflow.core.dtype import DType
from oneflow.tensor.tensor import Tensor

ABSENT = type("Absent", (), {"__repr__": lambda _: "absent"})()
"""The result of a library that takes no part, or a name that it does not have."""


class Foreign(Protocol):
    """An object of PyTorch's, to type checkers: its own types may not be installed."""

    def __getattr__(self, name: str) -> Any: ...


PLAIN = (bool, int, float, complex, str, type(None))


@dataclass(frozen=True)
class Tolerance:
    """Limits of differences. dtypes: Must dtypes agree, too?"""

    rtol: float = 1e-4
    atol: float = 1e-5
    dtypes: bool = False


def is_pytorch(x: object, kind: str = "Tensor") -> TypeGuard[Foreign]:
    """Return whether `x` is PyTorch's Tensor, or another class given by its path there."""
    found: Any = sys.modules.get("torch")
    for name in kind.split(".") if found is not None else ():
        found = getattr(found, name)
    return found is not None and isinstance(x, found)


def array_of(x: Foreign | Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor of either library; bfloat16 as float32."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Tensor):
        array = x.detach().numpy()
        return array if array.dtype.kind in "biufc" else array.astype(np.float32)
    plain = x.detach().resolve_conj().resolve_neg().cpu()
    return np.asarray(plain.float() if dtype_name(x) == "bfloat16" else plain)


def difference(theirs: object, ours: object, tolerance: Tolerance) -> str:
    """Say how two results differ; "" if they agree, or are objects that cannot be compared."""
    if theirs is ABSENT or ours is ABSENT:
        return ""
    if _is_array(theirs) or _is_array(ours):
        return _of_tensors(theirs, ours, tolerance)
    if isinstance(theirs, (list, tuple)) or isinstance(ours, (list, tuple)):
        return _of_sequences(theirs, ours, tolerance)
    if isinstance(ours, DType) or is_pytorch(theirs, "dtype"):
        wanted, found = str(theirs).rpartition(".")[2], str(ours).rpartition(".")[2]
        return "" if wanted == found else f"PyTorch {wanted}, OneFlow {found}"
    if not isinstance(theirs, PLAIN):
        return ""
    if isinstance(ours, PLAIN) and _are_close(theirs, ours, tolerance):
        return ""
    return f"PyTorch {theirs!r}, OneFlow {ours!r}"


def _is_array(x: object) -> TypeGuard[Foreign | Tensor]:
    return is_pytorch(x) or isinstance(x, (Tensor, np.ndarray))


def _are_close(theirs: object, ours: object, tolerance: Tolerance) -> bool:
    if theirs is None or ours is None or isinstance(theirs, (str, bool)):
        return bool(theirs == ours)
    if isinstance(ours, str):
        return False
    found, wanted = np.asarray(ours), np.asarray(theirs)
    close = np.isclose(found, wanted, tolerance.rtol, tolerance.atol, equal_nan=True)
    return bool(close.all())


def _of_sequences(theirs: object, ours: object, tolerance: Tolerance) -> str:
    if not isinstance(theirs, (list, tuple)) or not isinstance(ours, (list, tuple)):
        return f"PyTorch {type(theirs).__name__}, OneFlow {type(ours).__name__}"
    if len(theirs) != len(ours):
        return f"PyTorch {len(theirs)} results, OneFlow {len(ours)}"
    for i, (wanted, found) in enumerate(zip(theirs, ours, strict=True)):
        if said := difference(wanted, found, tolerance):
            return f"result {i}: {said}"
    return ""


def _of_tensors(theirs: object, ours: object, tolerance: Tolerance) -> str:
    if not _is_array(theirs) or not _is_array(ours):
        return f"PyTorch {named(theirs)}, OneFlow {named(ours)}"
    wanted, found = array_of(theirs), array_of(ours)
    if wanted.shape != found.shape:
        return f"PyTorch {named(theirs)}, OneFlow {named(ours)}"
    if tolerance.dtypes and dtype_name(theirs) != dtype_name(ours):
        return f"PyTorch {named(theirs)}, OneFlow {named(ours)}"
    with np.errstate(all="ignore"):
        close = np.isclose(found, wanted, tolerance.rtol, tolerance.atol, equal_nan=True)
    if close.all():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(~close))
    count = f"{int((~close).sum())} of {close.size} numbers"
    return f"{count} of {named(ours)}, at {list(at)} PyTorch {wanted[at]!r}, OneFlow {found[at]!r}"


def dtype_name(x: Foreign | Tensor) -> str:
    """Return the name of a tensor's dtype, the same one for both libraries."""
    return str(x.dtype).rpartition(".")[2]


def named(x: object) -> str:
    """A tensor in the notation of printed graphs; anything else by its class."""
    if _is_array(x):
        return f"{dtype_name(x)}{list(x.shape)}"
    return type(x).__name__
