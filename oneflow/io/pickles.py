"""Checkpoints that hold objects of a program's own classes, as pickles: only where the user allows
it, since whoever reads a pickle runs its code.
"""

from __future__ import annotations

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
    """The bytes of a file. Raises CheckpointError for what cannot be pickled."""
    try:
        return HEAD + pickle.dumps(obj, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(f"save: {type(obj).__name__} cannot be pickled: {error}") from error


def unpickled(data: bytes, name: str, weights_only: bool | None) -> Any:
    """The object of a file, whose code runs. Raises CheckpointError unless the user allows it and
    the call asks for it, and for a damaged file.
    """
    if weights_only is not False or not are_allowed():
        raise CheckpointError(
            f'load: "{name}" holds a pickle, whose code would run; if you trust it, set '
            f"{VARIABLE}=1 and call load(..., weights_only=False)"
        )
    try:
        return pickle.loads(data[len(HEAD) :])
    except Exception as error:
        raise CheckpointError(
            f'load: the pickle in "{name}" cannot be read: {type(error).__name__}: {error}'
        ) from error
