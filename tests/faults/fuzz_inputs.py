"""Tools of every fuzzer: verdicts over single inputs, and bytes, texts and messages at random."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from oneflow.protos import cluster_pb2, control_pb2, graph_pb2, plan_pb2

SLOW_S = 5.0  # of this thread's processor time, in which a host may count what it took away
HANG_S = 300.0  # for a few dozen inputs, on a machine that is busy with other things
MAX_BAD = 200  # that are remembered of one target
WORDS = (
    "", "x", "j1", "cpu", "cpu:0", "fuzz/cpu:0", "../../etc", "\u00e9\u0000", "\u0663\u00b2",
    "9" * 40, "9" * 5000, "a" * 300, "-1", "\ud7ff\U0010ffff",
)  # fmt: skip
NUMBERS = (0, 1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, 1.5, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"))
JSON_VALUES = (
    "0", "-1", "1e999", "null", "true", "[]", "{}", '"x"', "9" * 400, "9" * 5000, "NaN",
    "[[[[]]]]", "[" * 2000, '"\\ud800"', "9223372036854775808",
)  # fmt: skip
DECODED = (cluster_pb2, control_pb2, graph_pb2, plan_pb2)


class HangError(BaseException):
    """An input was at work for HANG_S."""


@dataclass
class Verdict:
    """Figures of one target. ends: how often an input ended how. slowest_s: of one input. grown:
    bytes of memory of the fed process. remark: a note.
    """

    name: str
    inputs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    grown: int = 0
    seconds: float = 0.0
    remark: str = ""

    def note(self, end: str) -> None:
        self.inputs += 1
        self.ends[end] += 1

    def blame(self, text: str) -> None:
        if len(self.bad) < MAX_BAD:
            self.bad.append(text)


@contextmanager
def judged(
    verdict: Verdict, seed: int, declared: tuple[type[BaseException], ...]
) -> Iterator[None]:
    """One input: anything but a declared error is a defect."""
    start = time.thread_time()
    try:
        yield
        end = "taken"
    except declared as error:
        end = type(error).__name__
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):  # also what ends the fuzzer: see campaigns.fuzz
            raise
        end = type(error).__name__
        verdict.blame(f"seed {seed}: {end}: {str(error)[:300]}")
    spent_s = time.thread_time() - start
    verdict.slowest_s = max(verdict.slowest_s, spent_s)
    if spent_s > SLOW_S:
        verdict.blame(f"seed {seed}: took {spent_s:.1f} s")
    verdict.note(end)


@contextmanager
def hangs_found() -> Iterator[None]:
    """An input that never ends is interrupted, and found. In the main thread only."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise HangError(f"was at work for {HANG_S:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def give_time(seconds: float) -> None:
    """An input that needs longer than HANG_S, within `hangs_found`."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def watched(seeds: range) -> Iterator[int]:
    """The seeds; each has HANG_S until the next is asked for, within `hangs_found`."""
    for number, seed in enumerate(seeds):
        if number % 64 == 0:  # a system call for each would cost more than most inputs
            signal.setitimer(signal.ITIMER_REAL, HANG_S)
        yield seed


# ---- bytes and texts -----------------------------------------------------------------------------


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, set, cut, put in, repeated, moved or replaced by a number."""
    found, dice = bytearray(data), rng.random
    for _ in range(_HOW_OFTEN[int(dice() * 6)]):
        at, kind = int(dice() * (len(found) + 1)), int(dice() * 8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << int(dice() * 8)
        elif kind == 1 and at < len(found):
            found[at] = _ODD_BYTES[int(dice() * 5)]
        elif kind == 2:
            del found[at : at + 1 + int(dice() * 8)]
        elif kind == 3:
            found[at:at] = rng.randbytes(1 + int(dice() * 8))
        elif kind == 4:
            found[at:at] = found[: 1 + int(dice() * 39)]
        elif kind == 5:
            other, size = int(dice() * (len(found) + 1)), 1 + int(dice() * 16)
            found[at : at + size] = found[other : other + size]
        elif kind == 6:
            width = rng.choice((2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * width)
            found[at : at + width] = number.to_bytes(width, "little")
        else:
            del found[at:]
    return bytes(found[: 1 << 16])


_HOW_OFTEN, _ODD_BYTES = (0, 1, 1, 2, 4, 8), (0, 1, 127, 128, 255)


def text_mutated(rng: random.Random, text: str) -> str:
    """A value of a JSON or TOML text replaced, or a few characters."""
    chance = rng.random()
    if chance < 0.4:
        return mutated(rng, text.encode(errors="replace")).decode(errors="replace")
    at = rng.randrange(len(text) + 1)
    if chance < 0.8:
        return text[:at] + rng.choice(JSON_VALUES) + text[at + rng.randrange(6) :]
    return text[:at] + rng.choice(WORDS) + text[at + rng.randrange(6) :]


def tree_mutated(rng: random.Random, value: Any) -> Any:
    """A JSON value in which one value somewhere is another, is missing, or stands there twice."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        changed = dict(value)
        key = rng.choice(sorted(changed))
        kind = rng.randrange(12)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[rng.choice(WORDS)] = changed[key]
        elif kind == 2:
            changed[key] = changed[rng.choice(sorted(changed))]
        else:
            changed[key] = tree_mutated(rng, changed[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        items = list(value)
        at, kind = rng.randrange(len(items)), rng.randrange(12)
        if kind == 0:
            del items[at]
        elif kind == 1:
            items.insert(at, items[rng.randrange(len(items))])
        else:
            items[at] = tree_mutated(rng, items[at])
        return items
    return _other_value(rng, value)


def _other_value(rng: random.Random, value: Any) -> Any:
    if type(value) is int and rng.random() < 0.6:
        near = (value + 1, value - 1, -value, 2 * value, value // 2, 0)
        return rng.choice((*near, *NUMBERS))
    if isinstance(value, str) and rng.random() < 0.6:
        return text_mutated(rng, value)
    choices: tuple[Any, ...] = (None, True, -1, 1.5, "", "x", [], {}, [value], {"a": value})
    return rng.choice((*choices, *NUMBERS, *FLOATS, *WORDS))


# ---- messages ------------------------------------------------------------------------------------


def message_kinds() -> list[Any]:
    """Every message of every proto."""
    found = []
    for module in DECODED:
        for name in sorted(module.DESCRIPTOR.message_types_by_name):
            found.append(getattr(module, name))
    return found


def random_message(rng: random.Random, kind: Any, depth: int = 0, filled: float = 0.6) -> Any:
    """Fields that are set, or not, to odd and to usual values. filled: share of them."""
    message = kind()
    for entry in message.DESCRIPTOR.fields:
        if rng.random() < 1 - filled or depth > 4:
            continue
        _fill(rng, message, entry, depth, filled)
    return message


def _fill(rng: random.Random, message: Any, entry: Any, depth: int, filled: float) -> None:
    if entry.message_type is not None and entry.message_type.GetOptions().map_entry:
        key = _scalar(rng, entry.message_type.fields_by_name["key"])
        value = entry.message_type.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, entry.name)[key] = _scalar(rng, value)
        return
    count = rng.choice((0, 1, 2, 5)) if entry.is_repeated else 1
    for _ in range(count):
        if entry.message_type is not None:
            sub = random_message(rng, entry.message_type._concrete_class, depth + 1, filled)
            target = getattr(message, entry.name)
            target.add().CopyFrom(sub) if entry.is_repeated else target.CopyFrom(sub)
        elif entry.is_repeated:
            getattr(message, entry.name).append(_scalar(rng, entry))
        else:
            setattr(message, entry.name, _scalar(rng, entry))


def _scalar(rng: random.Random, entry: Any) -> Any:
    kind = entry.cpp_type
    if kind == entry.CPPTYPE_STRING:
        word = rng.choice(WORDS)
        return word if entry.type == entry.TYPE_STRING else word.encode()
    if kind == entry.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (entry.CPPTYPE_DOUBLE, entry.CPPTYPE_FLOAT):
        return rng.choice(FLOATS)
    if kind == entry.CPPTYPE_ENUM:
        return rng.choice([*(v.number for v in entry.enum_type.values), 99])
    number = rng.choice(NUMBERS)
    bits = 32 if kind in (entry.CPPTYPE_INT32, entry.CPPTYPE_UINT32) else 64
    signed = kind in (entry.CPPTYPE_INT32, entry.CPPTYPE_INT64)
    return number % (1 << (bits - 1 if signed else bits))


def message_mutated(rng: random.Random, message: Any, words: Sequence[str] = WORDS) -> None:
    """Change one value somewhere in a message; it may come twice, go, or be new. words: texts."""
    entry = rng.choice(message.DESCRIPTOR.fields)
    found, chance = getattr(message, entry.name), rng.random()
    if entry.message_type is not None and not entry.is_repeated:
        message_mutated(rng, found, words)
    elif not entry.is_repeated:
        setattr(message, entry.name, _near(rng, entry, found, words))
    elif not len(found) or chance < 0.1:
        found.add() if entry.message_type is not None else found.append(_scalar(rng, entry))
    elif chance < 0.2:
        del found[rng.randrange(len(found))]
    elif entry.message_type is not None:
        message_mutated(rng, rng.choice(found), words)
    elif chance < 0.25:
        found.extend(found[: rng.randrange(4)])
    else:
        at = rng.randrange(len(found))
        found[at] = _near(rng, entry, found[at], words)


def _near(rng: random.Random, entry: Any, old: Any, words: Sequence[str]) -> Any:
    """Another value of a field, which it can hold: often one beside the old one."""
    if entry.type == entry.TYPE_STRING:
        return rng.choice(words)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int) and rng.random() < 0.5:
        return min(abs(rng.choice((old + 1, old - 1, 2 * old))), 2**31 - 1)
    return _scalar(rng, entry)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def unknown_fields(rng: random.Random) -> bytes:
    """Fields of numbers that no message of ours has, of every wire type, some with wrong sizes."""
    found = b""
    for _ in range(rng.randrange(1, 6)):
        wire = rng.choice((0, 1, 2, 3, 5))
        tag = varint(rng.choice((100, 1000, 19_000, 2**29 - 1)) << 3 | wire)
        content = {
            0: varint(rng.choice(NUMBERS)),
            1: rng.randbytes(8),
            2: varint(rng.choice((0, 3, 3, 3, 2**31))) + b"abc",
            3: varint(1 << 3 | 4),
            5: rng.randbytes(4),
        }[wire]
        found += tag + content
    return found


def nested(rng: random.Random, kind: Any) -> bytes:
    """A message in a field of itself, or in one that has the shape of one, very deep."""
    fields = [f for f in kind.DESCRIPTOR.fields if f.message_type is not None]
    number = rng.choice(fields).number if fields else rng.randrange(1, 30)
    return _nested(number, rng.choice((10, 90, 99, 100, 101, 102, 300, 3000)))


@lru_cache(maxsize=512)
def _nested(number: int, depth: int) -> bytes:
    tag, data = varint(number << 3 | 2), b""
    for _ in range(depth):
        data = tag + varint(len(data)) + data
    return data


def wire_bytes(rng: random.Random, kind: Any, base: bytes | None = None) -> bytes:
    """Bytes for a message of that kind: right, wrong here and there, or not at all.

    base: of a message to begin with; None: a new one.
    """
    chance = rng.random()
    if chance < 0.02:
        return rng.randbytes(rng.choice((0, 1, 2, 10, 100, 1000)))
    if chance < 0.04:
        return nested(rng, kind)
    data = base if base is not None else b""
    if base is None:
        data = random_message(rng, kind, 0, rng.choice((0.2, 0.6, 0.9))).SerializeToString()
    if chance < 0.10:
        return data + unknown_fields(rng)
    if chance < 0.102:
        return oversize(rng, kind)
    return data if chance < (0.45 if base is None else 0.2) else mutated(rng, data)


def oversize(rng: random.Random, kind: Any) -> bytes:
    """A text or bytes field of 64 KiB to 2 MiB, or as many numbers."""
    size = rng.choice((64 << 10, 1 << 20, 2 << 20))
    number = rng.choice(kind.DESCRIPTOR.fields).number if kind.DESCRIPTOR.fields else 1
    return varint(number << 3 | 2) + varint(size) + b"\x01" * size


# ---- files ---------------------------------------------------------------------------------------

MEMORY = Path("/dev/shm")


class WrongError(Exception):
    """An input was taken for something else."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: writing shall cost no disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)
