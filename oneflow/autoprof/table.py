"""The table of an AutoProf: rows of a CSV file, and its printed form."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from oneflow.autoprof.measuring import TITLES, Row, cpu_counts
from oneflow.cli.output import table

LONGEST = 60
KERNEL, WHOLE = "Kernel Time", "End-to-end Time"


def _cpus(count: int) -> str:
    return f"{count} CPU{'s' if count > 1 else ''}"


def columns() -> list[str]:
    """Return the titles of the file."""
    times = [f"{name} (us, {_cpus(count)})" for count in cpu_counts() for name in (KERNEL, WHOLE)]
    return [
        *("OP", "Args", "Library", f"{KERNEL} (us, GPU)", "Kernel Bandwidth (GB/s, GPU)"),
        *times,
        *(_relative(count) for count in cpu_counts()),
        "Description",
    ]


def _relative(count: int) -> str:
    return f"Relative ({_cpus(count)})"


def record(row: Row) -> dict[str, str]:
    """Return a measurement as a row of the file."""
    found = {
        "OP": row.op,
        "Args": row.arguments,
        "Library": TITLES[row.library],
        f"{KERNEL} (us, GPU)": _number(row.times.gpu),
        "Kernel Bandwidth (GB/s, GPU)": _number(row.times.gbs),
        "Description": row.description,
    }
    for count, (kernel, whole) in row.times.threads.items():
        found[f"{KERNEL} (us, {_cpus(count)})"] = _number(kernel)
        found[f"{WHOLE} (us, {_cpus(count)})"] = _number(whole)
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def side_by_side(
    ours: Iterable[dict[str, str]], theirs: Iterable[dict[str, str]]
) -> list[dict[str, str]]:
    """Put the rows of a call under each other, and say how many times faster ours is.

    The same call in two places is matched in the order in which it was made.
    """
    found, left = [], {}
    seen: Counter[tuple[str, ...]] = Counter()
    for row in theirs:
        left[_key(row, seen)] = row
    seen.clear()
    for row in ours:
        other = left.pop(_key(row, seen), None)
        found.append(row)
        if other is not None:
            row |= {_relative(count): _ratio(row, other, count) for count in cpu_counts()}
            found.append(other)
    return [*found, *left.values()]


def _key(row: dict[str, str], seen: Counter[tuple[str, ...]]) -> tuple[tuple[str, ...], int]:
    call = row["OP"], row["Args"], row["Description"]
    seen[call] += 1
    return call, seen[call]


def _ratio(ours: dict[str, str], theirs: dict[str, str], count: int) -> str:
    """PyTorch's time over ours."""
    title = f"{WHOLE} (us, {_cpus(count)})"
    return f"{float(theirs[title]) / max(float(ours[title]), 0.1):.2f}"


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write the file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns(), restval="")
        writer.writeheader()
        writer.writerows(rows)


def summary(rows: Sequence[dict[str, str]]) -> str:
    """Return the rows as text."""
    titles = [title for title in columns() if title != "Description"]
    cells = [[row.get(title, "")[:LONGEST] for title in titles] for row in rows]
    short = [_short(title) for title in titles]
    return (
        "KT: kernel time, ET: end-to-end time, both in microseconds; BW: bandwidth in GB/s; "
        "relative: PyTorch's ET over OneFlow's\n" + table(short, cells)
    )


def _short(title: str) -> str:
    """A title without its unit."""
    for long, short in ((KERNEL, "KT"), (WHOLE, "ET"), ("Kernel Bandwidth", "BW")):
        title = title.replace(long, short)
    return title.replace("us, ", "").replace("GB/s, ", "").replace("Library", "Lib")
