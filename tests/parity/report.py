"""Findings about samples, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The outcome of one sample of one entry."""

    table: str  # "operators", "modules" or "optimizers"
    entry: str  # "name" or "name.variant"
    surface: str  # "function", "method", "in place", "errors", "train", ...
    dtype: str
    sample: int
    outcome: str  # "passed", "failed", "not there" (also: a kind of value that is not there)
    message: str = ""

    @property
    def ran(self) -> bool:
        return self.outcome in ("passed", "failed")


def share_passed(findings: Iterable[Finding]) -> float:
    """Percentage of the samples that ran; 100.0 if none did."""
    ran = [f for f in findings if f.ran]
    return 100.0 * sum(f.outcome == "passed" for f in ran) / len(ran) if ran else 100.0


def summary(findings: list[Finding]) -> str:
    """Samples and entries passed, per table and surface."""
    lines = []
    groups = sorted({(f.table, f.surface) for f in findings})
    for table, surface in groups:
        group = [f for f in findings if (f.table, f.surface) == (table, surface)]
        ran = [f for f in group if f.ran]
        entries = {f.entry for f in ran}
        clean = entries - {f.entry for f in ran if f.outcome == "failed"}
        absent = {f.entry for f in group} - entries
        lines.append(
            f"{table:10s} {surface:9s} {len(entries):4d} entries here, {len(clean):4d} clean, "
            f"{len(absent):4d} not there; samples {sum(f.outcome == 'passed' for f in ran)} of "
            f"{len(ran)} passed = {share_passed(group):.2f} %"
        )
    lines.append(f"all: {share_passed(findings):.2f} % of samples")
    return "\n".join(lines)


def failures(findings: list[Finding], limit: int = 3) -> str:
    """Entries by the number of samples that they cost, the most expensive first."""
    lost = Counter((f.table, f.entry, f.surface) for f in findings if f.outcome == "failed")
    lines = []
    for (table, entry, surface), count in lost.most_common():
        group = [f for f in findings if (f.table, f.entry, f.surface) == (table, entry, surface)]
        lines.append(f"{count:5d} of {sum(f.ran for f in group):5d}  {table} {entry} ({surface})")
        for message, times in Counter(
            f.message[:150] for f in group if f.outcome == "failed"
        ).most_common(limit):
            lines.append(f"              {times:4d}x {message}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    return [asdict(f) for f in findings]
