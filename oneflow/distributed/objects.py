"""Python values between ranks as JSON: no code can arrive with them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from oneflow.core.errors import DTypeError, ShapeError
from oneflow.distributed.arguments import check_count, check_rank
from oneflow.distributed.exchanges import from_one, to_one
from oneflow.distributed.world import world

_KINDS = "only None, booleans, numbers, strings, lists and dicts with strings as keys travel"


def all_gather_object(value: Any) -> list[Any]:
    """Every rank's value, by rank. Values are what JSON can say."""
    said = world().everyone.gather_bytes(encode(value, "all_gather_object"), "all_gather_object")
    return [json.loads(data) for data in said]


def broadcast_object(value: Any = None, src: int = 0) -> Any:
    """Rank `src`'s value, on every rank. Values are what JSON can say."""
    check_rank(src, "broadcast_object")
    return _broadcast(value, src, f"broadcast_object(from rank {src})")


def broadcast_object_list(object_list: list[Any], src: int = 0) -> None:
    """Rank `src`'s entries into everybody's list, all of one length. Entries are what JSON can say.

    Raises DesyncError if the lists have different lengths.
    """
    check_rank(src, "broadcast_object_list")
    if not isinstance(object_list, list):
        got = type(object_list).__name__
        raise ShapeError(f"broadcast_object_list: a list is needed, got {got}")
    what = f"broadcast_object_list(from rank {src}) of {len(object_list)} entries"
    object_list[:] = _broadcast(object_list, src, what)


def gather_object(value: Any, dst: int = 0) -> list[Any] | None:
    """Every rank's value, by rank, on rank `dst`; None on the others."""
    check_rank(dst, "gather_object")
    here, mine = world().everyone, np.frombuffer(encode(value, "gather_object"), np.uint8)
    what = f"gather_object(to rank {dst})"
    counts = here.all_gather(np.array([mine.size], np.int64), None, what).tolist()
    target = np.empty(sum(counts) if here.rank == dst else 0, np.uint8)
    here.transfer(what, mine, target, to_one(here.ranks, tuple(counts), dst))
    if here.rank != dst:
        return None
    ends = np.cumsum(counts).tolist()
    return [json.loads(target[e - n : e].tobytes()) for e, n in zip(ends, counts, strict=True)]


def scatter_object(values: list[Any] | None = None, src: int = 0) -> Any:
    """Entry r of rank `src`'s list, on rank r; the lists of others are not looked at."""
    check_rank(src, "scatter_object")
    here, what = world().everyone, f"scatter_object(from rank {src})"
    parts: list[bytes] = []
    if here.rank == src:
        check_count(values, "scatter_object", "the list")
        parts = [encode(value, "scatter_object") for value in values or ()]
    lengths = np.array([len(p) for p in parts] or [0] * here.size, np.int64)
    counts = here.broadcast(lengths, src).tolist()
    source = np.frombuffer(b"".join(parts), np.uint8) if here.rank == src else None
    target = np.empty(counts[here.index], np.uint8)
    here.transfer(what, source, target, from_one(here.ranks, tuple(counts), src))
    return json.loads(target.tobytes())


def encode(value: Any, who: str) -> bytes:
    """JSON. Raises DTypeError that says where in `value` something cannot travel."""
    _check_json(value, who, "the value")
    return json.dumps(value).encode()


def _check_json(value: Any, who: str, where: str) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if isinstance(value, list):
        for i, entry in enumerate(value):
            _check_json(entry, who, f"{where}[{i}]")
        return
    if not isinstance(value, dict):
        raise DTypeError(f"{who}: {where} is of type {type(value).__name__}; {_KINDS}")
    for key, entry in value.items():
        if not isinstance(key, str):
            raise DTypeError(f"{who}: {where} has the key {key!r}; {_KINDS}")
        _check_json(entry, who, f"{where}[{key!r}]")


def _broadcast(value: Any, src: int, what: str) -> Any:
    here = world().everyone
    mine = encode(value, what) if here.rank == src else b""
    return json.loads(here.gather_bytes(mine, what)[here.ranks.index(src)])
