"""A tensor that was saved for the backward pass and has been written to since: reading it is an
error.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.errors import AutogradError
from oneflow.tensor.tensor import MEMBERS, Tensor


class ModifiedTensor(Tensor):
    """Has a type, and raises when its values are asked for: many gradients never ask."""

    __slots__ = ("_unread", "reader")
    reader: str

    @property
    def _array(self) -> Any:
        raise AutogradError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: {self.reader} needs a {self.meta} as it was when it was computed; "
            "write to a copy (x.clone()) instead"
        )


def modified_tensor(x: Tensor, reader: str) -> ModifiedTensor:
    y: ModifiedTensor = object.__new__(ModifiedTensor)
    for name in MEMBERS:
        if name != "_array":
            setattr(y, name, getattr(x, name, None))
    y.reader, y._unread = reader, x
    return y
