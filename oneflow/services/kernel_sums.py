"""Time, bytes and arithmetic of kernels, summed by op, by module, by source line and by kernel.

A kernel that computes several ops is one row among the kernels; everywhere else its time and its
bytes are shared among its ops, as its facts say (actors/kernel_facts.py). So each table sums up to
the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.services.traces import TraceReader

if TYPE_CHECKING:
    from oneflow.core.machine_peak import Peak

GROUPS = "op", "module", "line", "kernel"
KERNEL = "kernel"
"""The category of the slices of kernels in a trace."""
SHOWN = 12
"""Rows of a table's text: those that took longest."""
NOWHERE = "(none)"
MOST_CHARS = 56
"""Most characters of a name; of longer ones the end is shown."""


@dataclass
class Row:
    """Calls of one kind together.

    seconds: of a module, of its own ops.  inner_seconds: of a module, with those inside of it; else
    the same.  nbytes: read and written.  flops: see `Op.flops`.
    """

    name: str
    calls: int = 0
    seconds: float = 0.0
    inner_seconds: float = 0.0
    nbytes: float = 0.0
    flops: float = 0.0

    @property
    def gb_per_second(self) -> float:
        return 1e-9 * self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def gflops_per_second(self) -> float:
        return 1e-9 * self.flops / self.seconds if self.seconds else 0.0

    def share_of(self, peak: Peak) -> float:
        """The share of the machine's peak: of its memory's pace or of its
        arithmetic's, whichever is larger. More than 1 where the operands lie in a cache.
        """
        least = max(self.nbytes / peak.bytes_per_second, self.flops / peak.flops_per_second)
        return least / self.seconds if self.seconds else 0.0


@dataclass
class KernelSums:
    """Rows by group (one of GROUPS) and name."""

    rows: dict[str, dict[str, Row]] = field(default_factory=lambda: {g: {} for g in GROUPS})
    seconds: float = 0.0

    def add(self, name: str, seconds: float, facts: Mapping[str, Any]) -> None:
        """One call of a kernel. facts: as a trace file holds them."""
        self.seconds += seconds
        nbytes = facts.get("bytes", 0)
        parts = facts.get("parts") or (facts,)
        flops = sum(part.get("flops", 0) for part in parts)
        self._add("kernel", name, 1, seconds, nbytes, flops)
        for part in parts:
            share = part.get("share", 1.0)
            for group in GROUPS[:3]:
                key = str(part.get(group) or NOWHERE)
                if group == "line":
                    key = key.partition(" <- ")[0]
                self._add(
                    group, key, part.get("calls", 1), seconds * share, nbytes * share,
                    part.get("flops", 0),
                )  # fmt: skip

    def _add(
        self, group: str, name: str, calls: int, seconds: float, nbytes: float, flops: float
    ) -> None:
        row = self.rows[group].get(name)
        if row is None:
            row = self.rows[group][name] = Row(name)
        row.calls += calls
        row.seconds += seconds
        row.inner_seconds += seconds
        row.nbytes += nbytes
        row.flops += flops

    def of(self, group: str) -> list[Row]:
        """The rows of a group, those that took longest first. Modules have rows for all that are
        around others, and are ordered by their time with the modules inside of them.
        """
        if group not in GROUPS:
            raise ValueError(f"a profile has rows by {', '.join(GROUPS)}, not by {group!r}")
        rows = list(self.rows[group].values())
        if group == "module":
            rows = list(_with_outer(rows))
        return sorted(rows, key=lambda r: (-r.inner_seconds, r.name))

    def table(
        self, group: str, steps: int = 1, peak: Peak | None = None, most: int | None = SHOWN
    ) -> str:
        """The rows of a group as text, per step. peak: of the machine, for the last column; None:
        without it. most: rows; None: all.
        """
        rows = self.of(group)
        shown = rows[:most]
        columns = ["calls", "ms", "share", "MB", "GB/s", "GFLOP/s"]
        if group == "module":
            columns.insert(2, "with inner")
        columns += ["of peak"] * (peak is not None)
        cells = [self._cells(row, group, max(steps, 1), peak) for row in shown]
        text = _aligned([["by " + group, *columns], *cells])
        if len(rows) > len(shown):
            rest = sum(r.seconds for r in rows[len(shown) :])
            text.append(f"and {len(rows) - len(shown)} more, {1e3 * rest / max(steps, 1):.3f} ms")
        return "\n".join(text)

    def _cells(self, row: Row, group: str, steps: int, peak: Peak | None) -> list[str]:
        cells = [
            row.name,
            f"{row.calls / steps:g}",
            f"{1e3 * row.seconds / steps:.3f}",
            f"{100 * row.seconds / self.seconds:.1f}%" if self.seconds else "",
            f"{1e-6 * row.nbytes / steps:.3f}",
            f"{row.gb_per_second:.2f}",
            f"{row.gflops_per_second:.2f}",
        ]
        if group == "module":
            cells.insert(3, f"{1e3 * row.inner_seconds / steps:.3f}")
        if peak is not None:
            cells.append(f"{100 * row.share_of(peak):.0f}%")
        return cells


def read_kernels(paths: Sequence[Path]) -> tuple[KernelSums, int]:
    """Sum up the kernels in files of ranks; return them with the number of steps in the longest.

    Raises TraceFileError for a file that is no trace, OSError for a file that cannot be read.
    """
    sums, steps = KernelSums(), 0
    for path in paths:
        reader = TraceReader(path)
        try:
            for event in reader.events():
                if event["ph"] == "X" and event["cat"] == KERNEL:
                    sums.add(event["name"], event["dur"] * 1e-6, event["args"])
            steps = max(steps, reader.summary.get("steps", 0))
        finally:
            reader.close()
    return sums, steps


def _with_outer(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield modules, with rows for those around them that have no ops of their own."""
    found: dict[str, Row] = {row.name: Row(**vars(row)) for row in rows}
    for row in rows:
        path = row.name
        while "." in path and row.name != NOWHERE:
            path = path.rpartition(".")[0]
            outer = found.setdefault(path, Row(path))
            outer.inner_seconds += row.seconds
    yield from found.values()


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: names to the left, without their beginnings if they are long."""
    names = [
        name if len(name) <= MOST_CHARS else "..." + name[3 - MOST_CHARS :] for name, *_ in rows
    ]
    width = max(map(len, names))
    widths = [max(map(len, column)) for column in zip(*(cells for _, *cells in rows), strict=True)]
    return [
        f"{name:<{width}}" + "".join(f"  {c:>{w}}" for c, w in zip(cells, widths, strict=True))
        for name, (_, *cells) in zip(names, rows, strict=True)
    ]
