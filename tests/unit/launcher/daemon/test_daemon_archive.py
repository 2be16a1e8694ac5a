"""Working directories as archives: all that goes in comes out, and nothing else gets anywhere."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oneflow.launcher.daemon import archive
from oneflow.launcher.daemon.archive import ArchiveError, digest_of, pack, unpack


def tree(folder: Path) -> Path:
    (folder / "pkg" / "__pycache__").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "empty").mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "pkg" / "data.bin").write_bytes(random.Random(1).randbytes(200_000))
    (folder / "pkg" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / "link").symlink_to("pkg/data.bin")
    return folder


def crafted(path: Path, *entries: tuple[str, dict[str, Any], bytes]) -> Path:
    """An archive with these entries: name, fields, content."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, fields, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_hidden_files_are_sent_if_they_are_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".ssh").mkdir(parents=True)
    for name in (".env", ".ssh/key", ".keep", "a.py"):
        (source / name).write_text("x")
    (source / ".onefignore").write_text("!.keep\n")
    found = {}
    for hidden in (True, False):
        pack(source, tmp_path / "archive", hidden)
        unpack(tmp_path / "archive", tmp_path / f"out{hidden}")
        found[hidden] = {p.name for p in (tmp_path / f"out{hidden}").iterdir()}
    assert found[True] >= {".env", ".ssh", ".keep", "a.py"}
    assert found[False] == {".keep", "a.py"}


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("*.ckpt", "data/ data/big.bin data/keep.txt out/ out/data/ out/data/x src/ train.py"),
        ("/data\nout/", "src/ src/x.ckpt train.py"),
        ("data", "out/ src/ src/x.ckpt train.py"),
        ("out/data/*\nsrc/**/x.*", "data/ data/big.bin data/keep.txt out/ out/data/ src/ train.py"),
        (
            "# a comment\n\ndata/*\n!data/keep.txt\nout\ntrain.py/",
            "data/ data/keep.txt src/ src/x.ckpt train.py",
        ),
    ],
)
def test_what_is_ignored_stays_behind(tmp_path: Path, rules: str, left: str) -> None:
    folder, out = tmp_path / "work", tmp_path / "out"
    for name in ("train.py", "data/big.bin", "data/keep.txt", "out/data/x", "src/x.ckpt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".onefignore").write_text(rules)
    pack(folder, tmp_path / "archive")
    unpack(tmp_path / "archive", out)
    found = [str(p.relative_to(out)) + "/" * p.is_dir() for p in out.rglob("*")]
    assert sorted(found) == [".onefignore", *left.split()]


@pytest.mark.parametrize("rules", ["!", "a\n" * 40_000])
def test_what_is_no_pattern_is_said(tmp_path: Path, rules: str) -> None:
    (tmp_path / ".onefignore").write_text(rules)
    with pytest.raises(ArchiveError, match=r"\.onefignore"):
        pack(tmp_path, tmp_path.parent / "archive")


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    digest = pack(source, tmp_path / "archive")
    assert digest == digest_of(tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "out")
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*"))
    assert found == ["empty", "link", "pkg", "pkg/data.bin", "run.sh", "train.py"]
    for name in ("train.py", "pkg/data.bin", "run.sh"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert os.readlink(tmp_path / "out" / "link") == "pkg/data.bin"
    assert (tmp_path / "out" / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not list(tmp_path.glob(".out*"))


def test_pythons_without_filters_of_archives_unpack_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 of Debian 12 is one."""
    for name in ("data_filter", "FilterError"):
        monkeypatch.delattr(tarfile, name, raising=False)
    source = tree(tmp_path / "source")
    pack(source, tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "out")
    assert (tmp_path / "out" / "link").read_bytes() == (source / "pkg" / "data.bin").read_bytes()
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_virtual_environments_stay_behind_as_caches_do(tmp_path: Path) -> None:
    source, same = tree(tmp_path / "source"), tree(tmp_path / "same")
    for base in (source / ".venv", source / "pkg" / "env"):
        (base / "bin").mkdir(parents=True)
        (base / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (base / "bin" / "python").symlink_to("/usr/bin/python3")
    assert pack(source, tmp_path / "archive") == pack(same, tmp_path / "other")
    (source / "python").symlink_to("/usr/bin/python3")
    with pytest.raises(ArchiveError, match=r"a line /python in \.onefignore leaves it behind"):
        pack(source, tmp_path / "archive")
    (source / ".onefignore").write_text("/python\n")
    pack(source, tmp_path / "archive")


def test_files_with_several_names_come_out_under_each(tmp_path: Path) -> None:
    """Hard links, as package managers and `cp -l` make them."""
    source, same = tree(tmp_path / "source"), tree(tmp_path / "same")
    for name in ("a.py", "pkg/z.py"):
        (source / name).hardlink_to(source / "train.py")
        (same / name).write_bytes((same / "train.py").read_bytes())
    assert pack(source, tmp_path / "archive") == pack(same, tmp_path / "other")
    unpack(tmp_path / "archive", tmp_path / "out")
    for name in ("a.py", "pkg/z.py", "train.py"):
        assert (tmp_path / "out" / name).read_bytes() == (source / "train.py").read_bytes()


def test_the_same_files_have_the_same_digest(tmp_path: Path) -> None:
    first, second = tree(tmp_path / "a"), tree(tmp_path / "b")
    os.utime(second / "train.py", (1, 1))
    assert pack(first, tmp_path / "1") == pack(second, tmp_path / "2")
    (second / "train.py").write_text("print('other')\n")
    assert pack(first, tmp_path / "1") != pack(second, tmp_path / "2")


def test_a_link_that_leads_out_is_not_packed(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    (source / "out").symlink_to("../secret")
    with pytest.raises(ArchiveError, match="not in the working directory") as found:
        pack(source, tmp_path / "archive")
    assert found.value.exit_code == 64
    assert not list(tmp_path.glob("archive*"))


ATTACKS: dict[str, list[tuple[str, dict[str, Any], bytes]]] = {
    "parent": [("../evil", {}, b"x")],
    "deep parent": [("a/../../evil", {}, b"x")],
    "absolute": [("/tmp/evil", {}, b"x")],
    "device": [("dev", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b"")],
    "block device": [("dev", {"type": tarfile.BLKTYPE, "devmajor": 8}, b"")],
    "fifo": [("pipe", {"type": tarfile.FIFOTYPE}, b"")],
    "link out": [("l", {"type": tarfile.SYMTYPE, "linkname": "../../evil"}, b"")],
    "link to absolute": [("l", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, b"")],
    "hard link": [("l", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, b"")],
    "through a link": [
        ("d", {"type": tarfile.SYMTYPE, "linkname": "."}, b""),
        ("d/evil", {}, b"x"),
    ],
    "over a link": [
        ("d", {"type": tarfile.SYMTYPE, "linkname": "e"}, b""),
        ("d", {}, b"x"),
    ],
    "below a file": [("f", {}, b"x"), ("f/g", {}, b"x")],
    "deep": [("/".join("d" * 100), {}, b"x")],
    "long header": [("f", {"pax_headers": {"comment": "x" * 100_000}}, b"x")],
    "long name": [("n" * 5000, {}, b"x")],
    "time that is none": [("f", {"pax_headers": {"mtime": "nan"}}, b"x")],
    "endless time": [("f", {"pax_headers": {"mtime": "inf"}}, b"x")],
    "time beyond all": [("f", {"pax_headers": {"mtime": "1e300"}}, b"x")],
    "sparse without sizes": [("f", {"pax_headers": {"GNU.sparse.map": "a,b"}}, b"x")],
    "sparse of a later form": [
        ("f", {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}}, b"x")
    ],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    box = tmp_path / "box"
    path = crafted(tmp_path / "archive", ("good", {}, b"x"), *ATTACKS[name])
    with pytest.raises(ArchiveError) as found:
        unpack(path, box / "work")
    assert found.value.exit_code == 64
    assert list(box.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "box"]
    assert not Path("/tmp/evil").exists()


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    path = crafted(tmp_path / "archive", ("zeros", {}, b"\0" * (64 << 20)))
    assert path.stat().st_size < 100_000
    with pytest.raises(ArchiveError, match="unpacks to more than"):
        unpack(path, tmp_path / "work")


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 50)
    entries: list[tuple[str, dict[str, Any], bytes]] = [(f"f{n}", {}, b"") for n in range(51)]
    with pytest.raises(ArchiveError, match="more than 50 entries"):
        unpack(crafted(tmp_path / "archive", *entries), tmp_path / "work")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(51):
        (source / str(number)).touch()
    with pytest.raises(ArchiveError, match="larger than 50 entries"):
        pack(source, tmp_path / "packed")


def test_bits_that_give_power_are_taken_away(tmp_path: Path) -> None:
    path = crafted(tmp_path / "archive", ("tool", {"mode": 0o6777, "uid": 0}, b"x"))
    unpack(path, tmp_path / "work")
    mode = (tmp_path / "work" / "tool").stat().st_mode
    assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _repack(data: bytes, rng: random.Random) -> bytes:
    """Damages the tar inside: the outer sums do not catch it."""
    return gzip.compress(_flip(gzip.decompress(data), rng), 1)


@pytest.mark.parametrize("damage", [_truncate, _flip, _repack])
def test_damage_is_refused_or_harmless(
    tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(3)
    entries: list[tuple[str, dict[str, Any], bytes]] = [
        (f"dir/f{n}", {"pax_headers": {"comment": "é"}}, b"text %d" % n) for n in range(5)
    ]
    entries.append(("dir/l", {"type": tarfile.SYMTYPE, "linkname": "f1"}, b""))
    whole = crafted(tmp_path / "whole", *entries).read_bytes()
    for number in range(150):
        box = tmp_path / f"box{number}"
        bad = tmp_path / "bad"
        bad.write_bytes(damage(whole, rng))
        try:
            unpack(bad, box / "work")
        except ArchiveError:
            assert not box.exists() or list(box.iterdir()) == []
        else:
            assert [p.name for p in box.iterdir()] == ["work"]
    assert not Path("/tmp/evil").exists()


def test_what_is_no_archive_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ArchiveError, match="neither gzip nor zstd"):
        unpack(tmp_path / "text", tmp_path / "work")
    with pytest.raises(ArchiveError, match="is not a folder"):
        pack(tmp_path / "nowhere", tmp_path / "archive")
