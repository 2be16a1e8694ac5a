"""Records of clients that ran, and the table of docs/CLIENTS.md that is written from them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from .client import Client
from .installing import ROOT
from .verdict import Outcome

PAGE = ROOT / "docs" / "CLIENTS.md"
BEGIN, END = "<!-- make clients: begin -->", "<!-- make clients: end -->"
HEAD = ("| client | version | what ran | result | date |", "|---|---|---|---|---|")
ROOMS = ("oneflow", "protos", "kernels", "boxing", "actors", "scheduler", "launcher")
SHOWN_NCHARS = 160


@dataclass(frozen=True)
class Record:
    """Result of a client.  key: digest of the file, versions and library that it holds for."""

    client: str
    key: str
    version: str
    ran: str
    result: str
    date: str
    seconds: float
    is_whole: bool

    @property
    def row(self) -> str:
        """The client's line of the table."""
        return f"| {self.client} | {self.version} | {self.ran} | {self.result} | {self.date} |"


def git(*arguments: str) -> str:
    """Output of git about the checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def library_state(*more: str) -> str:
    """Name the library's sources: their last commit, and a digest of later changes to them.

    more: folders beside those of the library.
    """
    rooms = (*ROOMS, *more)
    commit = git("log", "-1", "--format=%H", "--", *rooms).strip()
    changes = git("diff", "HEAD", "--", *rooms)
    changes += git("ls-files", "--others", "--exclude-standard", "--", *rooms)
    return f"{commit} {hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ''}".strip()


def key_of(client: Client, versions: dict[str, str], state: str) -> str:
    """Name all that a result depends on."""
    return json.dumps([client.digest, versions, state])


def told(outcomes: Sequence[Outcome]) -> str:
    """Put the outcomes of a client's tasks into a cell of the table."""
    good = [o for o in outcomes if not o.trouble and not o.refused]
    all_of = "all" if len(good) == len(outcomes) else f"{len(good)} of"
    num_values = sum(o.num_values for o in good)
    values = f" ({num_values} values)" if num_values else ""
    parts = [f"{all_of} {len(outcomes)} tasks agree{values}"] if good else []
    if len(good) == len(outcomes) == 1:
        parts = [f"agrees{values}"]
    parts += [f"{o.name}: {plain(o.refused)}" for o in outcomes if o.refused and not o.trouble]
    parts += [f"{o.name}: {plain(o.trouble)}" for o in outcomes if o.trouble]
    return "; ".join(parts)


def plain(text: str) -> str:
    """One short line that a table can hold."""
    line = re.sub(
        r"(?<![\w.])/[\w./+-]+/(?=[\w.-]+)", "", " ".join(text.split())
    )  # folders of this machine
    line = line.replace("|", "/").replace("<", "&lt;")
    return line if len(line) <= SHOWN_NCHARS else f"{line[:SHOWN_NCHARS]}..."


def record_of(
    client: Client, key: str, versions: dict[str, str], outcomes: list[Outcome], seconds: float
) -> Record:
    """Make a client's record of today."""
    return Record(
        client=client.name,
        key=key,
        version=versions_told(client, versions),
        ran=client.ran,
        result=told(outcomes),
        date=datetime.now(timezone.utc).date().isoformat(),
        seconds=round(seconds, 1),
        is_whole=all(not o.trouble for o in outcomes),
    )


def versions_told(client: Client, versions: dict[str, str]) -> str:
    """Put versions into a cell: alone of the package that the client is named after."""
    if not versions:
        return "-"
    first = next(iter(versions))
    if client.name.startswith(first) or first.endswith(client.name):
        return versions[first]
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def stored(folder: Path, name: str) -> Record | None:
    """Return the record of a client, if it ran on this machine."""
    file = folder / f"{name}.json"
    return Record(**json.loads(file.read_text())) if file.exists() else None


def store(folder: Path, record: Record) -> None:
    """Keep a record for the next call."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record.client}.json").write_text(json.dumps(asdict(record), indent=1))


def write_table(records: Sequence[Record], clients: Sequence[str], page: Path = PAGE) -> None:
    """Write the rows of records into the table, which keeps those of other clients.

    Args:
        records: Results to enter.
        clients: Names of all clients; rows of others are taken out.
        page: File with the two markers.
    """
    rows = {record.client: record.row for record in records}
    write_rows(rows, sorted(clients), page, (BEGIN, END), HEAD)


def write_rows(
    rows: dict[str, str],
    names: Sequence[str],
    page: Path,
    marks: tuple[str, str],
    head: Sequence[str],
) -> None:
    """Write rows into the table between two markers of a page.

    Args:
        rows: New rows by the name in their first column; rows of other names are kept.
        names: All names in the order of the table; other rows are taken out.
        page: File with the table.
        marks: Lines before and behind the table.
        head: The first lines of the table.
    """
    begin, end = marks
    before, _, rest = page.read_text().partition(begin)
    table, _, after = rest.partition(end)
    kept = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[len(head) :]}
    kept |= rows
    lines = [*head, *(kept[name] for name in names if name in kept)]
    page.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")
