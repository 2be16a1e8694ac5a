"""Names of the ways in which tensors lie in memory. All tensors are strided; a memory format that a
script asks for is accepted and changes nothing, as kernels work on channels before positions.
"""

from __future__ import annotations

from oneflow.core.dtype import ALL_DTYPES, DType

__all__ = [
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "dtypes",
    "layout",
    "memory_format",
    "preserve_format",
    "strided",
]


class _Named:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"oneflow.{self.name}"


class memory_format(_Named):
    """An order in which the dims of a tensor follow each other in memory."""


class layout(_Named):
    """A way to store tensors: strided is the only one."""


strided = layout("strided")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")


def dtypes() -> list[DType]:
    """All element types."""
    return list(ALL_DTYPES)
