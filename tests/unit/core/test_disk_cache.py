"""Entries on disk: whole or not at all, private, and no more bytes than the limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from oneflow.core.disk_cache import DiskCache

MIB = 1 << 20


def opened(folder: Path | None, limit: int = MIB) -> DiskCache:
    return DiskCache(folder, ".x", limit, "things", "ONEFLOW_KERNEL_CACHE")


def test_an_entry_is_found_by_another_cache_of_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    opened(folder).put("one", b"entry")
    assert opened(folder).get("one") == b"entry"
    assert opened(folder).get("two") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["one.x"]


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed", "made longer"])
def test_a_damaged_entry_is_none_and_is_written_anew(tmp_path: Path, damage: str) -> None:
    cache = opened(tmp_path)
    cache.put("one", b"entry" * 100)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    changed = bytes([data[0] ^ 1]) + data[1:]
    path.write_bytes(
        {"cut": data[:-1], "emptied": b"", "changed": changed, "made longer": data + b"x"}[damage]
    )
    assert cache.get("one") is None
    cache.put("one", b"entry" * 100)
    assert cache.get("one") == b"entry" * 100


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    opened(tmp_path).put("one", b"entry")
    tmp_path.chmod(0o777)
    cache = opened(tmp_path)
    assert not cache.is_open
    assert cache.get("one") is None
    tmp_path.chmod(0o700)


def test_a_private_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).put("one", b"theirs")
    tmp_path.chmod(0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    cache = opened(tmp_path)
    cache.put("two", b"mine")
    assert cache.get("one") is None
    assert [path.name for path in tmp_path.iterdir()] == ["one.x"]


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for cache in (opened(None), opened(tmp_path / "file")):
        cache.put("one", b"entry")
        assert cache.get("one") is None


def test_what_was_used_last_stays_when_the_limit_is_reached(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=1000)
    for number, name in enumerate("abcd"):
        cache.put(name, b"x" * 200)
        os.utime(tmp_path / f"{name}.x", (number, number))
    assert cache.get("a") is not None  # used just now
    cache.put("e", b"x" * 200)
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "d", "e"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_an_entry_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=100)
    cache.put("one", b"x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    old, new = tmp_path / "a.partial", tmp_path / "b.partial"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    opened(tmp_path).put("one", b"entry")
    assert {path.name for path in tmp_path.iterdir()} == {"b.partial", "one.x"}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache = opened(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    cache.put("one", b"entry")
    assert list(tmp_path.iterdir()) == []


def test_writers_of_one_entry_at_once_leave_one_whole(tmp_path: Path) -> None:
    def write(number: int) -> None:
        cache = opened(tmp_path)
        for _ in range(20):
            cache.put("one", bytes([number]) * 5000)
            assert set(cache.get("one") or b"") <= set(range(4))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = opened(tmp_path).get("one")
    assert found is not None and len(found) == 5000 and len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["one.x"]
