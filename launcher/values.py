"""Readers of the launcher's values: each takes a text and raises ValueError with the reason."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from oneflow.core import config

TRUE_WORDS = ("1", "true", "on", "yes")
STDOUT, STDERR = 1, 2  # numbers of the streams, and torchrun's bits for them


@dataclass(frozen=True, repr=False)
class Streams:
    """The standard streams of each local rank: bits of STDOUT and STDERR, as torchrun writes them.

    everywhere: the bits of a rank that `by_rank` does not name.
    """

    everywhere: int = 0
    by_rank: tuple[tuple[int, int], ...] = ()

    def has(self, local_rank: int, stream: int) -> bool:
        """Whether this stream of the rank is chosen."""
        return bool(dict(self.by_rank).get(local_rank, self.everywhere) & stream)

    def __repr__(self) -> str:
        return ",".join(f"{r}:{bits}" for r, bits in self.by_rank) or str(self.everywhere)


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The address of a rendezvous; `port` is None where none was given."""

    host: str
    port: int | None

    def __repr__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port is None else f"{shown}:{self.port}"


@dataclass(frozen=True, repr=False)
class Nodes:
    """The number of nodes: two different ones make an elastic job."""

    least: int
    most: int

    def __repr__(self) -> str:
        return f"{self.least}:{self.most}" if self.least != self.most else str(self.most)


def whole(low: int, high: int = 2**31) -> Callable[[str], int]:
    """Reads a whole number in low..high."""
    return lambda text: config.whole(text, low, high)


def seconds(text: str) -> float:
    """Reads a finite number of seconds >= 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{text!r} is not a number of seconds")
    return value


def positive_seconds(text: str) -> float:
    """Reads a finite number of seconds > 0."""
    value = seconds(text)
    if value == 0:
        raise ValueError("must be more than 0 seconds")
    return value


def boolean(text: str) -> bool:
    """Reads a truth value (only from a variable; on the command line the flag has no value)."""
    return text.strip().lower() in TRUE_WORDS


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of the words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return read


def nodes(text: str) -> Nodes:
    """Reads a number of nodes, or the least and the most of an elastic job as MIN:MAX."""
    low, colon, high = text.partition(":")
    least = whole(1, 65536)(low)
    most = whole(1, 65536)(high) if colon else least
    if most < least:
        raise ValueError(f"{text}: MIN must not be more than MAX")
    return Nodes(least, most)


def processes(text: str) -> int:
    """Reads `auto`, `cpu`, `gpu` or a number: how many processes this node starts."""
    num_gpus, num_cpus = count_gpus(os.environ), len(os.sched_getaffinity(0))
    match text:
        case "gpu" if num_gpus == 0:
            raise ValueError("gpu: no NVIDIA device is visible on this machine")
        case "gpu":
            return num_gpus
        case "cpu":
            return num_cpus
        case "auto":
            return num_gpus or num_cpus
    try:
        int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number, auto, cpu or gpu") from None
    return whole(1, 65536)(text)


def host(text: str) -> str:
    """Reads a name or an address; an IPv6 address may have brackets."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def endpoint(text: str) -> Endpoint:
    """Reads HOST or HOST:PORT; an IPv6 address with a port needs brackets."""
    head, colon, port = text.rpartition(":")
    is_bare_ipv6 = ":" in head and not head.endswith("]")
    if not colon or is_bare_ipv6 or text.endswith("]"):
        head, port = text, ""
    elif not port:
        raise ValueError(f"{text!r} ends with a colon and no port")
    if not host(head):
        raise ValueError(f"{text!r} names no host")
    return Endpoint(host(head), whole(0, 65535)(port) if port else None)


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Reads `key=value,key=value`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{part!r} is not key=value")
        found.append((key.strip(), value.strip()))
    return tuple(found)


def streams(text: str) -> Streams:
    """Reads 0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all local ranks, or `0:1,1:3`."""
    if re.fullmatch("[0-3]", text):
        return Streams(int(text))
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*,?", text):
        raise ValueError(
            f"{text!r}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them for "
            "each local rank, as in 0:1,1:3"
        )
    parts = (part.split(":") for part in text.split(",") if part)
    return Streams(0, tuple((int(rank), int(bits)) for rank, bits in parts))


def rank_list(text: str) -> tuple[int, ...]:
    """Reads `0,2,5`."""
    return tuple(whole(0)(part) for part in text.split(",") if part.strip())


def count_gpus(env: Mapping[str, str]) -> int:
    """NVIDIA devices a process of this environment may use, without loading CUDA."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])
