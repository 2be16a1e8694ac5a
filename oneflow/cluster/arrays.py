"""Arrays: one program submitted many times, each time with another number and other parameters."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.limits import MAX_ARRAY_INDEX
from oneflow.scheduler.jobs.records import JobSpec

INDEX_VARIABLE = "ONEFLOW_ARRAY_INDEX"
MAX_MEMBERS = 10_000
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Array:
    """The members of an array: index -> the values of its names. limit: so many run at once; 0:
    all.
    """

    members: Mapping[int, Mapping[str, str]]
    limit: int = 0

    def specs(self, array_id: str, spec: JobSpec) -> dict[str, JobSpec]:
        """Return job id -> spec of each member, with the names of `spec` in braces filled in."""
        return {
            f"{array_id}_{index}": self._member(array_id, index, spec) for index in self.members
        }

    def _member(self, array_id: str, index: int, spec: JobSpec) -> JobSpec:
        values = {**self.members[index], "index": str(index)}
        env = {name: _filled(text, values) for name, text in spec.env.items()}
        return replace(
            spec,
            argv=tuple(_filled(word, values) for word in spec.argv),
            env={**env, INDEX_VARIABLE: str(index)},
            array=array_id,
            array_index=index,
            array_limit=self.limit,
            array_size=len(self.members),
        )


def read_array(words: str, path: Path | None = None) -> Array:
    """Read `0-9%2`, `1,3,5-7`, or, with a file of parameters, `%2` for all its rows.

    path: of a .csv file whose first line names the columns, or of a .jsonl file with an object a
    line; row i belongs to member i. Raises JobSpecError.
    """
    chosen, percent, most = words.partition("%")
    limit = int(most) if re.fullmatch(r"\d{1,9}", most) else 0
    if percent and not 1 <= limit <= MAX_ARRAY_INDEX:
        raise JobSpecError(f"array {words[:80]!r}: after % stands how many may run at once")
    rows = None if path is None else _rows(path)
    if rows is not None and not chosen:
        indices: Sequence[int] = range(len(rows))
    else:
        indices = _indices(words, chosen)
    if not indices or len(indices) > MAX_MEMBERS:
        raise JobSpecError(f"array: {len(indices)} members; must be 1 to {MAX_MEMBERS}")
    if rows is None:
        return Array({index: {} for index in indices}, limit)
    if max(indices) >= len(rows):
        raise JobSpecError(
            f"array {words[:80]!r}: {path} has {len(rows)} rows, the first of which is 0"
        )
    return Array({index: rows[index] for index in indices}, limit)


def _indices(words: str, chosen: str) -> list[int]:
    found: dict[int, None] = {}
    for part in chosen.split(","):
        match = _PART.fullmatch(part)
        first = int(match[1]) if match else 1
        last = int(match[2] or match[1]) if match else 0
        if first > last or last > MAX_ARRAY_INDEX or last - first >= MAX_MEMBERS:
            raise JobSpecError(
                f"array {words[:80]!r}: must be like 0-9, 0-9%2 or 1,3,5-7: at most {MAX_MEMBERS} "
                f"numbers up to {MAX_ARRAY_INDEX}"
            )
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobSpecError(f"array file {path}: cannot be read: {error}") from None
    if path.suffix == ".jsonl":
        return [
            _object(path, number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    if path.suffix != ".csv":
        raise JobSpecError(f"array file {path}: must be a .csv or a .jsonl file")
    rows = list(csv.DictReader(text.splitlines()))
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise JobSpecError(f"array file {path}: row {number} has not one value for each column")
    return rows


def _object(path: Path, number: int, line: str) -> dict[str, str]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise JobSpecError(f"array file {path}, line {number}: {error}") from None
    if not isinstance(found, dict):
        raise JobSpecError(f"array file {path}, line {number}: must be an object")
    return {name: _text(value) for name, value in found.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Fill in the names that there are; other braces, as those of JSON, stay."""
    return _NAME.sub(lambda found: values.get(found[1], found[0]), text)
