"""The settings of `flow.boxing` and `flow.boxing.nccl`: process-wide, read by every later
compile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")
"""Kinds of moves that a user may keep from being fused."""


@dataclass(frozen=True)
class Settings:
    """fusion: whether moves of one level between the same ranks become one actor.

    unfused_kinds: those that go alone all the same.  mixed: whether moves of different kinds share
    an actor.  max_nbytes, max_ops: an actor's limits, 0: none.  use_compute_stream: GPU collectives
    run on the stream of the kernels instead of one of their own.  all_reduce_in_graphs: whether
    graphs leave their all_reduces to the backend that eager code uses; None: where it has one of
    its own for the device. The others are kept and change nothing here.
    """

    fusion: bool = True
    unfused_kinds: frozenset[str] = frozenset()
    mixed: bool = True
    max_nbytes: int = 0
    max_ops: int = 0
    use_compute_stream: bool = False
    all_reduce_in_graphs: bool | None = None
    use_buffer: bool = True
    stream_num: int = 1
    all_to_all: bool = True
    group_by_dst: bool = True

    def job_fields(self) -> dict[str, Any]:
        """The fields of a JobConfig that say the same to the compiler."""
        return {
            "fuse_boxing": self.fusion,
            "unfused_boxing": tuple(sorted(self.unfused_kinds)),
            "mix_boxing": self.mixed,
            "fusion_nbytes": self.max_nbytes,
            "fusion_ops": self.max_ops,
        }


_current = Settings()


def current() -> Settings:
    """Return the present settings."""
    return _current


def change(**fields: Any) -> None:
    """Sets some fields."""
    global _current
    _current = replace(_current, **fields)


def reset() -> None:
    """Back to the defaults."""
    global _current
    _current = Settings()


def set_fused(kind: str, value: object, who: str) -> None:
    """Allows or forbids to fuse moves of a kind."""
    allowed = as_bool(value, who)
    kinds = _current.unfused_kinds
    change(unfused_kinds=kinds - {kind} if allowed else kinds | {kind})


def as_bool(value: object, who: str) -> bool:
    """Raises TypeError, naming `who` was called, for anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{who}: expected True or False, got {value!r}")
    return value


def as_count(value: object, who: str) -> int:
    """Return `value`. Raises TypeError if it is not an int, ValueError if it is below 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{who}: expected an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{who}: expected 1 or more, got {value}")
    return value
