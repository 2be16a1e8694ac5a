"""The way of a job in numbers: source files and kinds of process from `job submit` to a step.

    python benchmarks/job_path.py [--json FILE]

A cluster of one daemon is up and has run the job once. Then every process of it, and the client,
notes each source file of this project in which a function is called, from the start of the client
until the job has told its first step. Work of processes before (importing, starting) does
not count; imports for the job do.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "ONEFLOW_TEST_TOUCHED"  # where processes note what they touch
MANY = 1_000_000  # steps: the job ends when it is told to
SWITCH = "switch"  # a byte: the number of the round that is noted, 0: none


# ---- in each process that is watched -------------------------------------------------------------


class Notes:
    """The notes of this process: a line in a file for each source file that is new to a round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        fd = os.open(folder / SWITCH, os.O_RDONLY)
        self._switch = mmap.mmap(fd, 1, prot=mmap.PROT_READ)
        os.close(fd)
        self._round = 0
        self._seen: set[str] = set()
        os.register_at_fork(after_in_child=self._seen.clear)

    def begin(self) -> None:
        threading.setprofile(self.called)
        sys.setprofile(self.called)

    def called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (number := self._switch[0]):
            return
        if number != self._round:
            self._round = number
            self._seen.clear()
        if (name := frame.f_code.co_filename) in self._seen:
            return
        self._seen.add(name)
        line = f"{number}\t{name}\n".encode()
        fd = os.open(self._folder / f"{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line)
        os.close(fd)


def watch() -> None:
    """Called by `sitecustomize` when an interpreter of the cluster starts."""
    if folder := os.environ.get(FOLDER):
        Notes(Path(folder)).begin()


# ---- the measurement -----------------------------------------------------------------------------


def switch(folder: Path, number: int) -> None:
    """Begins a round, or ends it; in place, for the file is mapped by many."""
    fd = os.open(folder / SWITCH, os.O_WRONLY)
    os.pwrite(fd, bytes([number]), 0)
    os.close(fd)


def touched(folder: Path, number: int) -> dict[int, set[str]]:
    """pid -> source files of this project that it touched in a round."""
    found: dict[int, set[str]] = {}
    for path in folder.glob("[0-9]*"):
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        names = {os.path.realpath(name) for each, name in rows if int(each) == number}
        own = {os.path.relpath(name, ROOT) for name in names if name.startswith(f"{ROOT}/")}
        own = {name for name in own if not name.startswith(("benchmarks/", "../"))}
        if own:
            found[int(path.name)] = own
    return found


def kind_of(files: set[str]) -> str:
    """The kind of a process, by the files that only that kind touches; the first that fits."""
    for kind, file in (
        ("client", "oneflow/cli/submit.py"),
        ("worker", "oneflow/jobs/attempt.py"),
        ("compiler", "scheduler/cluster/compiler_process.py"),
        ("daemon", "launcher/daemon/daemon.py"),
        ("scheduler", "scheduler/cluster/driver.py"),
        ("fork server", "oneflow/services/forking.py"),
        ("worker", "oneflow/core/loop.py"),  # one that was forked for the next job
    ):
        if file in files:
            return kind
    return "other"


def measure() -> dict[str, object]:
    from own_cluster import OwnCluster, export_training, make_setup

    cluster = OwnCluster(daemons=1)
    site, notes = cluster.folder / "site", cluster.folder / "touched"
    for folder in (site, notes):
        folder.mkdir()
    (notes / SWITCH).write_bytes(b"\0")
    here = str(Path(__file__).parent)
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({here!r})\nimport job_path\njob_path.watch()\n"
    )
    cluster.env |= {"PYTHONPATH": os.pathsep.join((str(site), str(ROOT))), FOLDER: str(notes)}
    job = cluster.folder / "training.job"
    with cluster:
        export_training(make_setup(cluster.folder / "setup.npz"), job, MANY)
        cluster.run("job", "submit", str(job), "--steps", "5", "--wait")
        switch(notes, 1)
        job_id = cluster.run("job", "submit", str(job), "--steps", str(MANY)).split()[-1]
        with cluster.connect() as connected:
            while not connected.job(job_id).status().last_step:
                time.sleep(0.01)
            switch(notes, 0)
            connected.job(job_id).cancel()
        files = touched(notes, 1)
    kinds: dict[str, set[str]] = {}
    for each in files.values():
        kinds.setdefault(kind_of(each), set()).update(each)
    return {
        "files": len(set().union(*files.values())),
        "processes": len(files),
        "kinds": {kind: len(each) for kind, each in sorted(kinds.items())},
        "rooms": _by_room(set().union(*files.values())),
    }


def _by_room(files: set[str]) -> dict[str, int]:
    rooms: dict[str, int] = {}
    for file in files:
        room = os.path.dirname(file)
        rooms[room] = rooms.get(room, 0) + 1
    return dict(sorted(rooms.items(), key=lambda item: -item[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measure()
    print(f"files touched: {found['files']}, in {found['processes']} processes")
    for what in ("kinds", "rooms"):
        print(f"{what}: " + ", ".join(f"{name} {n}" for name, n in found[what].items()))  # type: ignore[attr-defined]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
