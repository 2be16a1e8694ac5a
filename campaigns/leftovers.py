"""Leftovers of dead processes, and journals that are damaged."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oneflow.core.processes import start_time
from oneflow.launcher.daemon.cgroups import find_hierarchies
from oneflow.launcher.daemon.orphans import MARK
from tests.support.cluster import Rig, program
from tests.support.processes import pids
from tests.support.waiting import wait_until

from .ground import Ground, ends_well, expect, expect_next, make_rig, train

GONE = "9"  # never the start time of a process that lives


def leftovers(ground: Ground) -> str:
    """Things named after dead processes go at a daemon's start, those of living ones stay."""
    rig = make_rig(ground.folder)
    dead = max(pids()) + 20_000
    alive = f"{os.getpid()}-{start_time(os.getpid())}"
    temp, shm = rig.folder / "tmp", Path(f"/dev/shm/rig-{os.getpid()}")
    stale, kept = [], []
    for mark, found in ((f"{dead}-{GONE}", stale), (alive, kept)):
        found.append(temp / f"oneflow-job-{mark}-x")
        found += [base / f"oneflow-{mark}-7" for base in find_hierarchies().folders]
    foreign = temp / "oneflow-job-of-somebody"
    for path in (*stale, *kept, foreign):
        path.mkdir()
    shm.write_bytes(b"x")
    cache = rig.folder / "node" / "cache"
    cache.mkdir(parents=True)
    stale.append(cache / f"{'a' * 64}.{dead}.part")
    kept.append(cache / f"{'b' * 64}.{os.getpid()}.part")
    for path in (stale[-1], kept[-1]):
        path.write_text("x")
    (rig.folder / "scheduler").mkdir()
    (rig.folder / "scheduler" / "scheduler.lock").write_text(f"{dead}\n")
    (rig.folder / "scheduler" / "blobs").mkdir()
    stale.append(rig.folder / "scheduler" / "blobs" / f"{'c' * 64}.00.part")
    stale[-1].write_text("x")
    strays = [_sleeper(f"{dead}-{GONE}"), _sleeper(alive)]
    try:
        rig.start()
        left = [str(path) for path in stale if path.exists()]
        expect(not left, f"not swept: {left}")
        gone = [str(path) for path in (*kept, foreign, shm) if not path.exists()]
        expect(not gone, f"taken from somebody who lives: {gone}")
        wait_until(lambda: strays[0].poll() is not None, "a dead daemon's process ends")
        expect(strays[1].poll() is None, "a living process's child was killed")
        ends_well(train(rig, ground), ground)
        expect(shm.exists(), "a foreign name in /dev/shm was removed")
        return f"{len(stale) + 1} swept, {len(kept) + 3} left alone, a stale lock taken over"
    finally:
        rig.stop()
        for stray in strays:
            stray.kill()
            stray.wait()
        for path in (*stale, *kept, foreign):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        shm.unlink(missing_ok=True)


def _sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "120"], env={MARK: mark}, start_new_session=True)


def start_scheduler(rig: Rig, **given: str) -> tuple[int, str]:
    """Another one, until it has ended: exit code and last line."""

    argv = program("scheduler", rig._scheduler() | given)
    done = subprocess.run(
        argv, env=rig.env, cwd=rig.folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stderr + done.stdout).strip()


# ---- journals ------------------------------------------------------------------------------------


def _cut(nbytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, min(nbytes, path.stat().st_size))


def _scribbled(path: Path) -> None:
    """A page in the middle, and the pages of the last transactions."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for at in (100, size // 2, size - 2000):
            file.seek(max(at, 0))
            file.write(b"\xa5" * 1000)


def _other_program(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE birds (name TEXT)")
    connection.commit()
    connection.close()


def _newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()


def _rubbish(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def _nothing(path: Path) -> None:
    return


DAMAGE: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "cut in its header": (_cut(60), 70, "damaged"),
    "cut in the middle": (_cut(9000), 70, "damaged"),
    "pages overwritten": (_scribbled, 70, "damaged"),
    "rubbish": (_rubbish, 70, "damaged"),
    "of another program": (_other_program, 78, "another program"),
    "of a newer version": (_newer, 78, "version 99"),
}


def damaged_journals(ground: Ground) -> str:
    """Refused, with the remedy; a torn tail is dropped; and the very file works again."""
    rig = make_rig(ground.folder)
    state = rig.folder / "scheduler"
    with rig:
        first = train(rig, ground)
        ends_well(first, ground)
        os.kill(rig.pid("scheduler"), signal.SIGKILL)
        wait_until(lambda: not rig.is_alive("scheduler"), "it ends")
        kept = rig.folder / "kept"
        shutil.copytree(state, kept)
        for name, (harm, wanted, word) in DAMAGE.items():
            _restore(kept, state, merged=True)
            harm(state / "cluster.db")
            code, text = start_scheduler(rig)
            expect(code == wanted and word in text, f"{name}: {code} {text[-300:]}")
            expect("Traceback" not in text, f"{name}: {text[-600:]}")
        _restore(kept, state)
        wal = state / "cluster.db-wal"
        expect(wal.exists(), "there is no log beside the journal")
        os.truncate(wal, wal.stat().st_size - 700)  # as a power cut tears it
        rig.repair()
        expect(str(first.status().state) in ("SUCCEEDED", "RUNNING"), "its job is not there")
        wait_until(lambda: first.status().state.is_final, "the last report is told again")
        expect_next(rig, ground)
        return f"{len(DAMAGE)} kinds refused with 70 or 78; a torn tail is dropped, jobs are there"


def _restore(kept: Path, state: Path, merged: bool = False) -> None:
    """merged: all of it in the one file."""
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    if merged:
        connection = sqlite3.connect(state / "cluster.db")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
