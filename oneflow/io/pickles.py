"""Checkpoints that hold objects of a program's own classes, as pickles: only where the user allows
it, since whoever reads a pickle runs its code.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.errors import CheckpointError

HEAD = b"oneflow pickle 1\n"
"""The first bytes of such a file."""
VARIABLE = "ONEFLOW_ALLOW_PICKLE"


def are_allowed() -> bool:
    """Whether the user allows them."""
    return current_config().allows_pickle


def is_pickle(data: bytes) -> bool:
    """Whether a file begins as one of these."""
    return data.startswith(HEAD)


def pickled(obj: object) -> bytes:
    """The bytes of a file. Raises CheckpointError for an object that cannot be pickled."""
    try:
        return HEAD + pickle.dumps(obj, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(f"save: {type(obj).__name__} cannot be pickled: {error}") from error


trusted: list[Any] = []
"""Classes and functions that a pickle may name where the call does not take any."""
OWN = ("oneflow.nn.modules.", "oneflow.nn.parameter", "oneflow.tensor.", "oneflow.core.dtype")
PLAIN = frozenset(
    {("collections", "OrderedDict"), ("builtins", "set"), ("builtins", "frozenset")}
    | {("builtins", "bytearray"), ("builtins", "complex"), ("builtins", "slice")}
    | {("numpy", "dtype"), ("numpy", "ndarray")}
    | {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
    | {(f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")}
    | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
)


class _Listed(pickle.Unpickler):
    """Reads pickles that name trusted classes, modules and tensors of ours, and plain values."""

    def find_class(self, module: str, name: str) -> Any:
        names = {(one.__module__, one.__qualname__) for one in trusted if callable(one)}
        is_own = module.startswith(OWN)
        if (module, name) not in names | PLAIN and not is_own:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}: list that with serialization.add_safe_globals, or pass "
                "weights_only=False"
            )
        return super().find_class(module, name)


def unpickled(data: bytes, name: str, weights_only: bool | None) -> Any:
    """The object of a file, whose code runs. Raises CheckpointError unless the user allows it and
    the call asks for it, or the classes in it are trusted, and for a damaged file.
    """
    if not are_allowed():
        raise CheckpointError(
            f'load: "{name}" holds a pickle, whose code would run; if you trust it, set '
            f"{VARIABLE}=1 and call load(..., weights_only=False)"
        )
    kind = pickle.Unpickler if weights_only is False else _Listed
    try:
        return kind(io.BytesIO(data[len(HEAD) :])).load()
    except Exception as error:
        raise CheckpointError(
            f'load: the pickle in "{name}" cannot be read: {type(error).__name__}: {error}'
        ) from error
