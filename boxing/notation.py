"""The notation of a change of layout on a command line: `S0,B@2x2 -> B,S1@2x2`.

    change  = layout "->" layout        without "@ where" the right side stays where the left is
    layout  = sbps "@" where
    sbps    = sbp {"," sbp}             one for each axis of the hierarchy; may stand in parentheses
    sbp     = "B" | "P" | "S0" | "S(0)"
    where   = [device ":"] grid | [device] ranks
    grid    = "4" | "2x2"               ranks 0..3 in a line, or standing in a grid
    ranks   = "[2,3]" | "[[0,1],[2,3]]" the ranks themselves, nested as they stand
    device  = "cpu" | "cuda" | ...      cpu if left out; registered kinds, too

Spaces mean nothing. Layouts as graphs print them, `(S(0), B)@cpu[[0, 1], [2, 3]]`, are in it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.core.device import device_types, is_device_type
from oneflow.core.errors import OneFlowError, PlacementError, SbpError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, split_of_user

ARROW = "->"
MAX_RANKS = 4096
"""Exact bytes are counted rank by rank: of more ranks that would take minutes."""

_SBP = re.compile(r"([BbPp])|[Ss]\s*(?:\(\s*(\d+)\s*\)|(\d+))")
_WHERE = re.compile(r"(?P<device>[A-Za-z_]\w*)?\s*(?P<colon>:)?\s*(?P<ranks>.*)", re.DOTALL)
_GRID = re.compile(r"\d+(?:\s*[xX]\s*\d+)*")


class NotationError(SbpError):
    """A text is wrong at a column (from 1) of it."""

    def __init__(self, message: str, text: str, at: int) -> None:
        super().__init__(f"{message} (column {at + 1} of {text!r})")


@dataclass(frozen=True)
class Change:
    """A change from one layout to another."""

    src_sbp: NdSbp
    src_placement: Placement
    dst_sbp: NdSbp
    dst_placement: Placement


def parse_change(text: str) -> Change:
    """`S0,B@2x2 -> B,S1@2x2`. Raises NotationError that names the column."""
    arrow = text.find(ARROW)
    if arrow < 0:
        raise NotationError("no '->' between two layouts", text, len(text))
    second = text.find(ARROW, arrow + 1)
    if second >= 0:
        raise NotationError("a second '->'; give one change at a time", text, second)
    src_sbp, src_placement = _layout(text, 0, arrow, None)
    dst_sbp, dst_placement = _layout(text, arrow + len(ARROW), len(text), src_placement)
    return Change(src_sbp, src_placement, dst_sbp, dst_placement)


def _layout(text: str, start: int, stop: int, default: Placement | None) -> tuple[NdSbp, Placement]:
    """The layout at text[start:stop]. default: where it is if it does not say."""
    sign = text.find("@", start, stop)
    nd_sbp = _sbps(text, start, stop if sign < 0 else sign)
    if sign >= 0:
        placement = _placement(text, sign + 1, stop)
    elif default is not None:
        placement = default
    else:
        raise NotationError("no '@' and where: say e.g. @4, @2x2 or @[2,3]", text, stop)
    if len(nd_sbp) != placement.ndim:
        raise NotationError(
            f"{len(nd_sbp)} sbp for {placement.ndim} axes of {placement.notation}; give one for "
            "each axis",
            text,
            _skip_spaces(text, start, stop),
        )
    return nd_sbp, placement


def _sbps(text: str, start: int, stop: int) -> NdSbp:
    at = _skip_spaces(text, start, stop)
    end = at + len(text[at:stop].rstrip())
    if at == end:
        raise NotationError("an sbp is missing: B, P or S0", text, at)
    if text[at] == "(" and text[end - 1] == ")":
        at, end = at + 1, end - 1
    found: list[Sbp] = []
    while True:
        sbp, at = _sbp(text, at, end)
        found.append(sbp)
        at = _skip_spaces(text, at, end)
        if at == end:
            return tuple(found)
        if text[at] != ",":
            raise NotationError(f"a comma or '@' should be here, not {text[at]!r}", text, at)
        at += 1


def _sbp(text: str, start: int, stop: int) -> tuple[Sbp, int]:
    """The sbp at text[start:stop], and where it ends."""
    at = _skip_spaces(text, start, stop)
    match = _SBP.match(text, at, stop)
    if match is None:
        what = repr(re.split(r"[,@\s]", text[at:stop])[0]) if at < stop else "nothing"
        raise NotationError(f"{what} is no sbp; one is B, P or S0", text, at)
    if match.group(1):
        return (BROADCAST if match.group(1) in "Bb" else PARTIAL), match.end()
    try:
        return split_of_user(int(match.group(2) or match.group(3))), match.end()
    except SbpError as error:
        raise NotationError(str(error), text, at) from None


def _placement(text: str, start: int, stop: int) -> Placement:
    at = _skip_spaces(text, start, stop)
    match = _WHERE.fullmatch(text[at:stop].rstrip())
    if match is None:
        raise NotationError("no ranks; say e.g. 4, 2x2 or [2,3]", text, at)
    device, ranks = match["device"] or "cpu", match["ranks"]
    if not is_device_type(device):
        known = " or ".join(device_types())
        raise NotationError(f"{device!r} is no device type; it is {known}", text, at)
    inner = at + match.start("ranks")
    if match["device"] and not match["colon"] and not ranks.startswith("["):
        raise NotationError(f"say {device}:4, {device}:2x2 or {device}[0,1]", text, inner)
    array = _ranks(ranks, text, inner)
    try:
        return Placement(device, array)
    except PlacementError as error:
        raise NotationError(str(error), text, inner) from None


def _ranks(ranks: str, text: str, at: int) -> np.ndarray[Any, Any]:
    if _GRID.fullmatch(ranks):
        sizes = tuple(int(n) for n in re.split(r"\s*[xX]\s*", ranks))
        count = math.prod(sizes)
        if not 0 < count <= MAX_RANKS:
            raise NotationError(f"{count} ranks; give 1 to {MAX_RANKS}", text, at)
        return np.arange(count).reshape(sizes)
    if not ranks.startswith("["):
        raise NotationError(f"{ranks!r} is neither 4, 2x2 nor [2,3]", text, at)
    try:
        array = np.array(json.loads(ranks))
    except ValueError:
        raise NotationError(f"{ranks!r} is no list of ranks", text, at) from None
    if array.dtype.kind not in "iu" or not 0 < array.size <= MAX_RANKS:
        raise NotationError(f"{ranks!r} is no list of 1 to {MAX_RANKS} ranks", text, at)
    if np.unique(array).size < array.size:
        raise NotationError(f"{ranks!r} names a rank twice", text, at)
    return array


def _skip_spaces(text: str, start: int, stop: int) -> int:
    return start + len(text[start:stop]) - len(text[start:stop].lstrip())


def parse_shape(text: str) -> tuple[int, ...]:
    """`1024,1024` or `1024x1024`; empty: a 0-d tensor. Raises NotationError."""
    sizes: list[int] = []
    for match in re.finditer(r"[^,xX]+", text):
        size = match.group().strip()
        if not size.isdecimal():
            raise NotationError(
                f"{size!r} is no size; a shape is e.g. 1024,64", text, match.start()
            )
        sizes.append(int(size))
    return tuple(sizes)


def parse_hosts(text: str, num_ranks: int) -> tuple[int, ...]:
    """The host of each of `num_ranks` ranks. `2`: two ranks on each host; `2x4`: two hosts of four;
    `3,1`: three ranks on the first, one on the second. Raises NotationError."""
    if not re.fullmatch(r"\s*\d+\s*([,xX]\s*\d+\s*)*", text):
        raise NotationError(f"{text!r} is not 2 (on each), 2x4 or 3,1 ranks", text, 0)
    numbers = [int(n) for n in re.split(r"[,xX]", text)]
    if "x" in text.lower():
        if len(numbers) != 2 or "," in text:
            raise NotationError("hosts x ranks on each has two numbers, e.g. 2x4", text, 0)
        numbers = [numbers[1]] * min(numbers[0], num_ranks)
    elif len(numbers) == 1:
        numbers *= -(-num_ranks // max(numbers[0], 1))
    if 0 in numbers:
        raise NotationError("a host has 1 rank or more", text, 0)
    hosts = [host for host, count in enumerate(numbers) for _ in range(min(count, num_ranks))]
    if len(hosts) < num_ranks:
        raise NotationError(f"hosts for {len(hosts)} ranks, but {num_ranks} are named", text, 0)
    return tuple(hosts[:num_ranks])


def problem(error: OneFlowError) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())
