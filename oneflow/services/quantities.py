"""Times and sizes as people write them: 90s, 1.5m, 1h30m, 1d; 1048576, 512M, 4GiB."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import datetime

from oneflow.core.errors import ConfigError

_LAST_TIME = 253_402_300_799  # the end of the year 9999
_UNITS = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd]?)")

_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
MAX_NBYTES = 1 << 60


def parse_duration(text: str | int | float, name: str = "duration") -> float:
    """Seconds. `1h30m` is a sum. Raises ConfigError."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
    else:
        parts = _PART.findall(str(text))
        if not parts or "".join(a + b for a, b in parts) != str(text):
            raise ConfigError(f"{name} {str(text)[:80]!r}: write it like 90, 90s, 15m, 2h or 1h30m")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{name} {str(text)[:80]!r}: must be 0 or more seconds, and finite")
    return seconds


def parse_moment(text: str, name: str = "time", now: Callable[[], float] = time.time) -> float:
    """Seconds since the epoch. 10m is ten minutes ago; a date without a zone is of this machine's.

    Raises ConfigError.
    """
    given = str(text).strip()
    if re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            # Before 3.11 Python reads neither Z nor fractions but of 3 or 6 digits.
            moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", given))
            return moment.timestamp()
        except (ValueError, OverflowError, OSError):
            raise ConfigError(f"{name} {given[:80]!r} is not like 2026-11-21T06:11:19Z") from None
    try:
        return max(now() - parse_duration(given, name), 0.0)
    except ConfigError:
        raise ConfigError(
            f"{name} {given[:80]!r}: write it like 10m (ago) or 2026-11-21T06:11:19Z"
        ) from None


def exact_duration(seconds: float) -> str:
    """Write a duration as `parse_duration` reads it: 30d, 90s, 0.5s."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def show_duration(seconds: float) -> str:
    """Show a duration in short: 12s, 3m04s, 2h05m, 4d03h; ? for a number that is none."""
    if not math.isfinite(seconds):
        return "?"
    whole = int(max(seconds, 0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def show_time(at: float) -> str:
    """Show seconds since the epoch as 2026-11-21T17:40:00Z; ? for a number that is no time."""
    if not 0 <= at <= _LAST_TIME:
        return "?"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def parse_size(text: str | int, name: str = "size") -> int:
    """Bytes; K, M, G and T are powers of 1024. Raises ConfigError."""
    if isinstance(text, int) and not isinstance(text, bool):
        nbytes = text
    else:
        match = _SIZE.fullmatch(str(text).strip())
        if match is None or len(match[1]) > 20:
            raise ConfigError(f"{name} {str(text)[:80]!r}: write it like 1048576, 512M or 4GiB")
        nbytes = int(float(match[1]) * (1 << _POWERS[match[2].upper()]))
    if not 0 <= nbytes <= MAX_NBYTES:
        raise ConfigError(f"{name} {str(text)[:80]!r}: must be 0 to {MAX_NBYTES} bytes")
    return nbytes


def show_size(nbytes: int) -> str:
    """Exact and short: 4GiB, 1536MiB, 1000."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        shift = _POWERS[unit[0]]
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)
