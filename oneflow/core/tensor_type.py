"""The type of a value: its shape and dtype, written `float32[2, 3]` everywhere."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import GraphError


@dataclass(frozen=True)
class TensorType:
    """The shape and dtype of a tensor.

    shape: sizes of the dims. dtype: of the elements. For a global tensor: of the whole.
    """

    shape: tuple[int, ...]
    dtype: DType

    def __hash__(self) -> int:
        # Types are parts of many keys. A cached property takes a lock in Python 3.11.
        known = self.__dict__
        if "_hash" not in known:
            known["_hash"] = hash((self.shape, self.dtype))
        found: int = known["_hash"]
        return found

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def meta(self) -> TensorType:
        """Itself, so that `infer` may ask the same of types as of tensors."""
        return self

    @property
    def nbytes(self) -> int:
        return self.numel * int(self.dtype.bytes)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


_TYPE_TEXT = re.compile(r"(\w+)\[([\d, ]*)\]")


def parse_type(text: str) -> TensorType:
    """The inverse of `str(tensor_type)`. Raises GraphError."""
    match = _TYPE_TEXT.fullmatch(text)
    if not match:
        raise GraphError(f"not a tensor type: {text!r}; a type looks like float32[2, 3]")
    dims = match.group(2)
    try:
        shape = tuple(int(d) for d in dims.split(",")) if dims.strip() else ()
    except ValueError:  # 2 3, or more digits than Python reads
        raise GraphError(f"not the dims of a tensor: {dims[:80]!r}") from None
    return TensorType(shape, dtype_of(match.group(1)))
