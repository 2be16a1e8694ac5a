"""The ground of scenes about resources: a cluster of their own, disks of a given size."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.cluster.client import Cluster
from oneflow.cluster.connection import Connection, Patience
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import DEVICES, Rig
from tests.support.waiting import SceneError

from .resume import Bits, bits_of

END_S = 90.0
MIB = 1 << 20
STEPS = 120


def missing_right() -> str:
    """The reason that this cannot be run here, or ""."""
    if os.geteuid() != 0:
        return "mounts and control groups need root"
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "the programs unshare and mount are not installed"
    if os.system("unshare -m mount -t tmpfs none /mnt 2>/dev/null"):
        return "mounts are not permitted"
    return ""


@dataclass(frozen=True)
class Ground:
    """Things that scenes share. bits: of an undisturbed run of `dense` with STEPS steps."""

    folder: Path
    jobs: Path
    bits: Bits

    @contextmanager
    def cluster(self, disk: Path | None = None, **given: dict[str, Any]) -> Iterator[Rig]:
        """disk: where the scheduler keeps its state.  given: of scheduler, or of daemons."""
        rig = make_rig(self.folder, **given)
        if disk is not None:
            (disk / "state").mkdir(mode=0o700)
            (rig.folder / "scheduler").symlink_to(disk / "state")
        with rig:
            yield rig


def make_rig(folder: Path, **given: dict[str, Any]) -> Rig:
    place = Path(tempfile.mkdtemp(prefix="rig", dir=folder))
    rig = Rig(place)
    rig.env["ONEFLOW_DATA_ROOTS"] = str(folder)
    rig.given["scheduler"] = given.get("scheduler", {})
    for device in DEVICES:
        rig.given[device] = {"metrics_addr": "127.0.0.1:0", **given.get("daemon", {})}
    return rig


def impatient(rig: Rig) -> Cluster:
    """A client that does not wait for better times."""
    secret = read_token_file(rig.folder / "scheduler" / "token")
    return Cluster(Connection(rig.address, lambda: secret, None, Patience(0.5, 0.5)))


def train(rig: Rig, ground: Ground, **options: Any) -> Any:
    return rig.client().submit(str(ground.jobs / "dense.job"), devices=2, steps=STEPS, **options)


def ends_well(job: Any, ground: Ground, attempts: int = 1) -> None:
    record = job.wait(END_S)
    if str(record.state) != "SUCCEEDED" or record.attempt > attempts:
        raise SceneError(f"{record.state} {record.reason} {record.attempt}: {record.cause}")
    if bits_of(job) != ground.bits:
        raise SceneError("losses or variables differ")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SceneError(what)


def expect_next(rig: Rig, ground: Ground) -> None:
    """A5: the same cluster trains a job, to the same bits."""
    rig.wait_attached()
    ends_well(train(rig, ground), ground)


# ---- disks ---------------------------------------------------------------------------------------


class Disk:
    """A disk of nbytes at `path`, while it is entered."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path, self._nbytes = path, nbytes

    def __enter__(self) -> Disk:
        self.path.mkdir(exist_ok=True)
        options = f"size={self._nbytes},mode=700"
        _run("mount", "-t", "tmpfs", "-o", options, "rig", str(self.path))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "-l", str(self.path))

    @contextmanager
    def read_only(self) -> Iterator[None]:
        _run("mount", "-o", "remount,ro", str(self.path))
        try:
            yield
        finally:
            _run("mount", "-o", "remount,rw", str(self.path))


@contextmanager
def fill(folder: Path, leaving: int = 0) -> Iterator[None]:
    """No room on the disk of `folder` but for `leaving` bytes."""
    path = folder / "filler"
    try:
        found = os.statvfs(folder)
        left = found.f_bavail * found.f_frsize - leaving
        with open(path, "wb", buffering=0) as file, suppress(OSError):
            while left > 0:  # others write as well: it is full when nothing more can be written
                left -= file.write(bytes(min(left, MIB)))
        yield
    finally:
        path.unlink(missing_ok=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SceneError(f"{' '.join(words)}: {done.stderr.strip()}")
