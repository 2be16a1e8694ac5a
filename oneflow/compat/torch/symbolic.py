"""`torch.SymInt` and its kin: sizes are Python's numbers here, in graphs too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsFloat, SupportsInt

from oneflow.core.errors import OneFlowError

__all__ = ["SymBool", "SymFloat", "SymInt", "sym_float", "sym_int", "sym_max", "sym_min"]


class _Symbolic:
    """A number that is not known yet: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object) -> None:
        raise OneFlowError(f"{type(self).__name__}: sizes are Python's numbers here")


class SymInt(_Symbolic):
    """An integer that is not known yet: none is ever made, so `isinstance` is False."""


class SymFloat(_Symbolic):
    """A float that is not known yet: none is ever made, so `isinstance` is False."""


class SymBool(_Symbolic):
    """A bool that is not known yet: none is ever made, so `isinstance` is False."""


def sym_int(a: SupportsInt) -> int:
    """Return the number, rounded towards zero."""
    return int(a)


def sym_float(a: SupportsFloat) -> float:
    """Return the number as a float."""
    return float(a)


def sym_max(a: float, b: float) -> float:
    """Return the larger number, a float if either is one."""
    return _alike(max(a, b), a, b)


def sym_min(a: float, b: float) -> float:
    """Return the smaller number, a float if either is one."""
    return _alike(min(a, b), a, b)


def _alike(value: float, a: float, b: float) -> float:
    return float(value) if isinstance(a, float) or isinstance(b, float) else value


def sym_not(a: object) -> bool:
    """Return the contrary of a bool."""
    return not a


def sym_ite(b: object, t: object, f: object) -> Any:
    """Return `t` or `f`, by a bool."""
    return t if b else f


def sym_sum(args: Iterable[float]) -> float:
    """Return the sum of numbers."""
    return sum(args)


def guard_or_false(a: object) -> bool:
    """Return the bool: none is unknown."""
    return bool(a)


guard_or_true = statically_known_true = guard_size_oblivious = guard_or_false


def free_symbols(val: object) -> set[Any]:
    """Return an empty set: no number is unknown."""
    return set()


free_unbacked_symbols = free_symbols


class GuardOnDataDependentSymNode(OneFlowError):
    """PyTorch's error of a number that is not known yet: never raised."""
