"""Python values between ranks, without pickle: no code can arrive with them (see `encoding`).

A rank whose value cannot travel says so in place of it, so that the call fails on all its ranks,
and the next call of one is not taken for this one of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from oneflow.boxing.collectives.base import Collectives
from oneflow.core.errors import DTypeError, OneFlowError, ShapeError
from oneflow.distributed.arguments import Ranks, among, check_count, check_rank
from oneflow.distributed.encoding import decode, encode
from oneflow.distributed.exchanges import from_one, to_one
from oneflow.distributed.pairs import pair_with, pass_on
from oneflow.kernels.array import Array

_VALUE, _FAILURE = b"\0", b"\1"
_FAILED = -1
"""The mark of an error, in place of a length."""

_HEAD_NBYTES = 256
"""`send_object` sends a value of a few bytes less in one exchange."""

_MAX_TEXT = 2000
_ERRORS: dict[str, type[OneFlowError]] = {"DTypeError": DTypeError, "ShapeError": ShapeError}


def all_gather_object(value: object, *, ranks: Ranks = None) -> list[Any]:
    """Every rank's value, by rank."""
    who, here = "all_gather_object", among(ranks)
    payload, error = _payload(lambda: encode(value))
    said = dict(zip(here.ranks, here.gather_bytes(payload, who), strict=True))
    _raise_failures(said, who, error)
    return [_opened(data) for data in said.values()]


def broadcast_object(value: object = None, src: int = 0, *, ranks: Ranks = None) -> Any:
    """Rank `src`'s value, on every rank."""
    check_rank(src, "broadcast_object", ranks)
    return broadcast_as(value, src, f"broadcast_object(from rank {src})", ranks)


def broadcast_object_list(object_list: list[Any], src: int = 0, *, ranks: Ranks = None) -> None:
    """Rank `src`'s entries into everybody's list, all of one length.

    Raises DesyncError if the lists have different lengths.
    """
    check_rank(src, "broadcast_object_list", ranks)
    if not isinstance(object_list, list):
        got = type(object_list).__name__
        raise ShapeError(f"broadcast_object_list: a list is needed, got {got}")
    what = f"broadcast_object_list(from rank {src}) of {len(object_list)} entries"
    object_list[:] = broadcast_as(object_list, src, what, ranks)


def gather_object(value: object, dst: int = 0, *, ranks: Ranks = None) -> list[Any] | None:
    """Every rank's value, by rank, on rank `dst`; None on the others."""
    check_rank(dst, "gather_object", ranks)
    here, what = among(ranks), f"gather_object(to rank {dst})"
    payload, error = _payload(lambda: encode(value))
    mine = np.frombuffer(payload, np.uint8)
    length = np.array([_FAILED if error else mine.size], np.int64)
    counts = here.all_gather(length, None, what).tolist()
    if _FAILED in counts:
        _tell_failures(here, payload, what, error)
    target = np.empty(sum(counts) if here.rank == dst else 0, np.uint8)
    here.transfer(what, mine, target, to_one(here.ranks, tuple(counts), dst))
    if here.rank != dst:
        return None
    ends = np.cumsum(counts).tolist()
    return [_opened(target[e - n : e].tobytes()) for e, n in zip(ends, counts, strict=True)]


def scatter_object(values: list[Any] | None = None, src: int = 0, *, ranks: Ranks = None) -> Any:
    """Entry r of rank `src`'s list, on rank r; the lists of others are not looked at."""
    check_rank(src, "scatter_object", ranks)
    here, what = among(ranks), f"scatter_object(from rank {src})"
    parts: list[bytes] = []
    payload, error = _payload(lambda: b"")
    if here.rank == src:
        payload, error = _payload(lambda: _encode_parts(values, parts, here.size))
    lengths = [_FAILED] * here.size if error else [len(p) for p in parts] or [0] * here.size
    counts = here.broadcast(np.array(lengths, np.int64), src, "scatter_object").tolist()
    if _FAILED in counts:
        _tell_failures(here, payload, what, error)
    source = np.frombuffer(b"".join(parts), np.uint8) if here.rank == src else None
    target = np.empty(counts[here.index], np.uint8)
    here.transfer(what, source, target, from_one(here.ranks, tuple(counts), src))
    return decode(target.tobytes())


def send_object(value: object, dst: int, *, ranks: Ranks = None) -> None:
    """Sends a value to rank `dst`, which must call `recv_object`; returns when it has.

    Raises DTypeError, on both ranks, if the value cannot travel.
    """
    pair, ends = pair_with(dst, "send_object", True, ranks)
    what = f"send_object{ends}"
    payload, error = _payload(lambda: encode(value))
    data = np.frombuffer(len(payload).to_bytes(8, "little") + payload, np.uint8)
    head: Array = np.zeros(_HEAD_NBYTES, np.uint8)
    head[: min(data.size, _HEAD_NBYTES)] = data[:_HEAD_NBYTES]
    pass_on(pair, what, head, None, pair.rank)
    if data.size > _HEAD_NBYTES:
        pass_on(pair, f"{what}, {data.size} bytes", data[_HEAD_NBYTES:], None, pair.rank)
    _raise_failures({pair.rank: payload}, what, error)


def recv_object(src: int, *, ranks: Ranks = None) -> Any:
    """The value that rank `src` sends with `send_object`."""
    pair, ends = pair_with(src, "recv_object", False, ranks)
    what = f"send_object{ends}"
    head: Array = np.empty(_HEAD_NBYTES, np.uint8)
    pass_on(pair, what, None, head, src)
    size = 8 + int.from_bytes(head[:8].tobytes(), "little")
    rest: Array = np.empty(max(0, size - _HEAD_NBYTES), np.uint8)
    if rest.size:
        pass_on(pair, f"{what}, {size} bytes", None, rest, src)
    payload = head[8 : min(size, _HEAD_NBYTES)].tobytes() + rest.tobytes()
    _raise_failures({src: payload}, what, None)
    return _opened(payload)


def broadcast_as(value: object, src: int, what: str, ranks: Ranks = None) -> Any:
    """`broadcast_object` as a part of another call."""
    here = among(ranks)
    payload, error = _payload(lambda: encode(value)) if here.rank == src else (b"", None)
    said = here.gather_bytes(payload, what)[here.ranks.index(src)]
    _raise_failures({src: said}, what, error)
    return _opened(said)


def _encode_parts(values: list[Any] | None, parts: list[bytes], size: int) -> bytes:
    parts += [encode(v) for v in check_count(values, "scatter_object", "the list", size)]
    return b""


# ---- what a rank gives, or why it cannot ---------------------------------------------------------


def _payload(work: Callable[[], bytes]) -> tuple[bytes, Exception | None]:
    """Return the result of `work`, or its error, for the others."""
    try:
        return _VALUE + work(), None
    except Exception as error:  # raised on all ranks, when all know of it
        name = type(error).__name__
        text = str(error) if name in _ERRORS else f"{name}: {error}"
        return _FAILURE + encode([name, text[:_MAX_TEXT]]), error


def _opened(payload: bytes) -> Any:
    return decode(memoryview(payload)[1:])


def _tell_failures(
    here: Collectives, payload: bytes, what: str, error: Exception | None
) -> NoReturn:
    """All ranks know that one has failed: now they hear why."""
    mine = payload if error else b""
    said = dict(zip(here.ranks, here.gather_bytes(mine, f"failure of {what}"), strict=True))
    _raise_failures(said, what, error)
    raise AssertionError("a rank that failed has said why")


def _raise_failures(payloads: Mapping[int, bytes], what: str, mine: Exception | None) -> None:
    """Raise on all ranks the error of the first that failed. mine: this rank's own."""
    failed = {rank: _opened(p) for rank, p in payloads.items() if p[:1] == _FAILURE}
    if not failed:
        return
    rank, (name, text) = next(iter(failed.items()))
    others = ", ".join(str(r) for r in failed if r != rank)
    also = f" (so did rank {others})" if others else ""
    raise _ERRORS.get(name, DTypeError)(f"{what}: rank {rank} failed{also}: {text}") from mine
