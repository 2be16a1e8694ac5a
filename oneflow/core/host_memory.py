"""Memory of this process and of its host, in bytes, as the kernel tells."""

from __future__ import annotations

from pathlib import Path

_OWN = {"VmRSS": "rss", "RssShmem": "shared"}


def own_memory(status: Path = Path("/proc/self/status")) -> dict[str, int]:
    """Return the memory of this process, in bytes.

    rss: resident, all kinds. shared: the part of it that others may map, too (arenas).
    """
    found = dict.fromkeys(_OWN.values(), 0)
    for name, nbytes in _lines(status):
        if name in _OWN:
            found[_OWN[name]] = nbytes
    return found


def host_capacity(limit_nbytes: int = 0, meminfo: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return the bytes of memory that are free, and the limit: all memory, or `limit_nbytes` if
    less.

    limit_nbytes: 0 is none.
    """
    found = dict(_lines(meminfo))
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    limit = min(total, limit_nbytes) if limit_nbytes else total
    return {"free": min(free, limit), "limit": limit}


def _lines(path: Path) -> list[tuple[str, int]]:
    rows = []
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            rows.append((name, int(words[0]) * 1024))
    return rows
