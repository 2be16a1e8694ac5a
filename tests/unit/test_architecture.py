"""docs/ARCHITECTURE.md names every room and no file that is not there; files begin with a sentence
on themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
TOP = ("protos", "kernels", "boxing", "actors", "scheduler", "launcher")
SMALL = {  # rooms of a few files that their parent's row tells enough of
    "oneflow/backends",
    "oneflow/signal",
}


def table() -> list[tuple[list[str], list[str]]]:
    """Rooms of each row, and the files by which a reader enters them."""
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    found = [
        (re.findall(r"`(.+?)/`", row[1]), re.findall(r"`([\w/]+\.\w+)`", row[3])) for row in rows
    ]
    assert len(found) > 30
    return found


def sources() -> list[Path]:
    """Source files, each under its own path and not under a link's."""
    listed = [path for room in (*TOP, "oneflow") for path in (ROOT / room).rglob("*.py")]
    return [
        p
        for p in listed
        if not any(q.is_symlink() for q in (p, *p.parents)) and "_pb2" not in p.name
    ]


def test_every_room_has_a_row() -> None:
    named = {room for rooms, _ in table() for room in rooms} | SMALL
    rooms = {path.parent.relative_to(ROOT) for path in sources()}
    below = {str(room) for room in rooms if len(room.parts) == 2 and room.parts[0] == "oneflow"}
    assert not {*below, *TOP} - named


def test_rooms_and_files_are_there() -> None:
    for rooms, files in table():
        assert all((ROOT / room).is_dir() for room in rooms), rooms
        for name in files:
            # A row of two rooms names its files from their parent on.
            places = [ROOT / room / name for room in rooms]
            places += [(ROOT / room).parent / name for room in rooms]
            assert any(place.is_file() for place in places), f"{rooms}: {name}"


def test_files_of_the_walks_are_there() -> None:
    walks = PAGE.partition("## A training step")[2]
    short = {"graph": "oneflow", "cluster": "oneflow", "tensor": "oneflow"}
    found = set(re.findall(r"[a-z_]+(?:/[a-z_]+)+\.py", walks))
    assert len(found) > 25
    for name in found:
        place = ROOT / short.get(name.split("/")[0], "") / name
        assert place.is_file(), name


def test_every_file_says_what_it_is() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources()}
    silent = [name for name, text in texts.items() if text and not text.startswith('"""')]
    assert not silent, f"these need a docstring: {silent}"


def test_files_that_contributors_are_sent_to_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", page)) | set(
        re.findall(r"\]\(([\w/.]+)\)", page)
    )
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]
