"""Files that a .onefignore leaves out of a working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.launcher.daemon.archive import ArchiveError, pack, unpack
from oneflow.launcher.daemon.ignoring import FILE, is_left_out, read_rules


def left_out(folder: Path, rules: str, path: str, is_folder: bool = False) -> bool:
    (folder / FILE).write_text(rules)
    return is_left_out(read_rules(folder), path, is_folder)


@pytest.mark.parametrize(
    ("rules", "path", "wanted"),
    [
        ("*.pt", "model.pt", True),
        ("*.pt", "runs/a/model.pt", True),
        ("*.pt", "model.pth", False),
        ("/data", "data", True),
        ("/data", "src/data", False),
        ("src/*.c", "src/a.c", True),
        ("src/*.c", "src/b/a.c", False),
        ("src/**/a.c", "src/b/c/a.c", True),
        ("src/**/a.c", "src/a.c", True),
        ("**/logs", "x/logs", True),
        ("log?", "log1", True),
        ("log[0-9]", "log7", True),
        ("log[!0-9]", "log7", False),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("# *.py\n\n", "a.py", False),
        (r"\#odd", "#odd", True),
        ("a.b", "axb", False),
    ],
)
def test_patterns(tmp_path: Path, rules: str, path: str, wanted: bool) -> None:
    assert left_out(tmp_path, rules, path) is wanted


def test_a_pattern_with_a_slash_at_its_end_means_folders(tmp_path: Path) -> None:
    assert left_out(tmp_path, "build/", "x/build", is_folder=True)
    assert not left_out(tmp_path, "build/", "build")


def test_archives_leave_it_out(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    for name in ("train.py", "data/big.bin", "data/keep.txt", "out/a/b.ckpt", "src/x.ckpt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / FILE).write_text("data/*\n!data/keep.txt\nout/\n*.ckpt\n")
    pack(folder, tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "there")
    found = sorted(str(p.relative_to(tmp_path / "there")) for p in (tmp_path / "there").rglob("*"))
    assert found == [FILE, "data", "data/keep.txt", "src", "train.py"]


@pytest.mark.parametrize("rules", ["/", "*" * 40, "a\n" * 2000])
def test_what_is_no_pattern_is_said(tmp_path: Path, rules: str) -> None:
    (tmp_path / FILE).write_text(rules)
    with pytest.raises(ArchiveError, match=FILE):
        pack(tmp_path, tmp_path.parent / "archive")
