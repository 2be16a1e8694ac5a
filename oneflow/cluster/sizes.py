"""Numbers of bytes as people write them: 1048576, 512M, 4GiB, 1.5G."""

from __future__ import annotations

import re

from oneflow.core.errors import ConfigError

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
MAX_NBYTES = 1 << 60


def parse_size(text: str | int, name: str = "size") -> int:
    """Bytes; K, M, G and T are powers of 1024. Raises ConfigError."""
    if isinstance(text, int) and not isinstance(text, bool):
        nbytes = text
    else:
        match = _SIZE.fullmatch(str(text).strip())
        if match is None or len(match[1]) > 20:
            raise ConfigError(f"{name} {str(text)[:80]!r}: write it like 1048576, 512M or 4GiB")
        nbytes = int(float(match[1]) * (1 << _UNITS[match[2].upper()]))
    if not 0 <= nbytes <= MAX_NBYTES:
        raise ConfigError(f"{name} {str(text)[:80]!r}: must be 0 to {MAX_NBYTES} bytes")
    return nbytes


def show_size(nbytes: int) -> str:
    """Exact and short: 4GiB, 1536MiB, 1000."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        shift = _UNITS[unit[0]]
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)
