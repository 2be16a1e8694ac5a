"""Checkpoints of a running job: the state is copied, then written by a thread while training goes
on; the ranks agree at their meetings on when it is complete.

A checkpoint is a folder of shards as `flow.save` writes it (oneflow/io), so `flow.load` reads it:
{"format", "step", "cursor", "variables"}, and where there are embeddings "rows", the snapshot of
each by its name. It is written beside its place and renamed when all is on
the disk; `last_checkpoint`, a file that names it, comes last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.boxing.boxes import local_slices, shard_box
from oneflow.core.errors import CheckpointError, RowStoreError, is_disk_full
from oneflow.core.folders import sync_folder
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.whole_files import write_whole
from oneflow.distributed.world import world
from oneflow.io.manifest import MANIFEST_FILE, shard_name
from oneflow.io.save_shards import Piece, ShardFile, Written, layout_of, plan_pieces
from oneflow.io.tree import Encoder
from oneflow.jobs.order import Cursor
from oneflow.jobs.running import Variable
from oneflow.jobs.tables import NO_SNAPSHOTS, Snapshots
from oneflow.kernels.array import Array
from oneflow.services.failpoints import failpoint
from oneflow.tensor.devices import to_host
from oneflow.tensor.eager_global import empty_shard
from oneflow.tensor.tensor import Tensor, wrap_global

log = get_logger(__name__)

FORMAT = "oneflow job state"
LAST = "last_checkpoint"
HINT = ": name a folder there with --checkpoint-dir"
FOLDER = re.compile(r"step-(\d{1,18})")
EXPECTED = (OSError, RowStoreError, CheckpointError)
"""Errors of disks and files, which say all themselves."""
_LEFT_OVER = re.compile(r"\.step-\d{1,18}\.[0-9a-f]{16}")


class Saver:
    """Writes checkpoints of one job into `folder`, one at a time, and keeps the newest `keep`.

    on_saved: called on rank 0, from a thread, with path and step of each complete checkpoint.
    on_failed: called with why there is none of a step.
    rows: of embeddings, of which each checkpoint has a snapshot.
    Every rank calls `begin` and `hear` alike; `said` is this rank's message at a meeting.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        key: str,
        on_saved: Callable[[str, int], None],
        on_failed: Callable[[str], None] = lambda text: None,
        rows: Snapshots = NO_SNAPSHOTS,
    ) -> None:
        self._folder, self._keep, self._key, self._rows = folder, keep, key, rows
        self._on_saved, self._on_failed = on_saved, on_failed
        self._save: _Save | None = None
        self.last_step = -1
        """Step of the last complete checkpoint; -1: none."""
        self.failures = 0
        self.last_failure = ""
        self._causes: Counter[str] = Counter()  # since the last complete checkpoint

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written; equal on all ranks."""
        return self._save is not None

    def begin(
        self, step: int, cursor: Cursor, variables: Mapping[str, Variable], moment_ns: int = 0
    ) -> None:
        """Copies the state and starts to write it. Returns when the copy is made, and rows of
        embeddings are saved: only those that changed are written.

        moment_ns: the time, the same on all ranks, where there are rows.
        """
        text = f"{self._key}.{step}"
        save_id = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self._save = _Save(self._folder, step, cursor, save_id, variables, self._rows, moment_ns)

    def said(self) -> Any:
        """Return how far this rank is, as JSON can say it."""
        return self._save.said() if self._save else None

    def hear(self, heard: list[Any]) -> None:
        """Take the messages of all ranks at one meeting."""
        save = self._save
        if save is None:
            return
        failed = [rank for rank, h in enumerate(heard) if h and "failed" in h]
        if failed:
            if all(h and not h.get("busy") for h in heard):
                self._give_up(save, failed[0], heard[failed[0]])
        elif heard[0] and heard[0].get("committed"):
            self.last_step, self._save = save.step, None
            self._causes.clear()
            self._rows.keep(saved_steps(self._folder))
        elif save.phase == "written" and all(h and "written" in h for h in heard):
            save.phase = "committing"
            if world().rank == 0:
                save.commit([h["written"] for h in heard], self._tell)

    def _tell(self, path: Path, step: int) -> None:
        """Tell of a checkpoint on the thread that made it complete."""
        self._on_saved(str(path), step)
        _remove_older(self._folder, self._keep)

    def _give_up(self, save: _Save, rank: int, said: dict[str, str]) -> None:
        """The previous checkpoint stays; training goes on. The rank that it failed at logs it: each
        cause once, then at every tenfold of times, since it may stay as it is for long."""
        save.clean_up()
        self._save = None
        self.failures += 1
        self.last_failure = said["failed"]
        self._causes[said["cause"]] += 1
        in_a_row, times = self._causes.total(), self._causes[said["cause"]]
        text = f"checkpoint of step {save.step} was not written: {self.last_failure}"
        text += f" ({in_a_row} in a row were not)" if in_a_row > 1 else ""
        if world().rank == rank and str(times).strip("0") == "1":
            log.warning("%s", text)
        if world().rank == 0:
            self._on_failed(text)


class _Save:
    """One checkpoint in progress on this rank. phase: writing, written, committing, committed or
    failed."""

    def __init__(
        self,
        folder: Path,
        step: int,
        cursor: Cursor,
        save_id: str,
        variables: Mapping[str, Variable],
        rows: Snapshots,
        moment_ns: int,
    ) -> None:
        here = world()
        self.step, self._folder, self._save_id = step, folder, save_id
        self._beside = folder / f".step-{step}.{save_id}"
        self._rank = here.rank
        self._written: dict[str, Any] = {}
        self._failure = self._cause = ""
        self.phase = "writing"
        self._guarded(partial(rows.save, step, save_id, moment_ns))
        self._tree = _tree(step, cursor, variables, rows.of(step))
        self._found = self._tree.name(lambda i, _: f"t{i}")
        self._types = {n: layout_of(f) for n, f in self._found.items()}
        self._pieces = plan_pieces(self._types, here.world_size)
        started = time.perf_counter()
        self._copies = self._copied()
        METRICS.saves["gather"].observe(time.perf_counter() - started)
        if self.phase == "writing":
            self._thread = self._start(self._write)

    def _copied(self) -> dict[str, tuple[Piece, Array]]:
        """Copy the arrays that this rank writes into host memory of its own."""
        copies = {}
        for piece in self._pieces:
            if piece.writer != self._rank:
                continue
            x: Any = self._found[piece.name].value
            type_, placement, nd_sbp = self._types[piece.name]
            own = shard_box(type_.shape, nd_sbp, placement, self._rank)
            at: Any = (*local_slices(piece.box, own), ...)
            copies[piece.name] = piece, np.array(to_host(x._array[at]), copy=True, order="C")
        return copies

    def said(self) -> dict[str, Any]:
        if self.phase == "failed":
            return {"failed": self._failure, "cause": self._cause}
        if self.phase == "committed":
            return {"committed": True}
        if self.phase in ("written", "committing"):
            is_busy = self.phase == "committing" and self._rank == 0
            return {"written": self._written, "busy": is_busy}
        return {"busy": True}

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=partial(self._guarded, work), name="checkpoint")
        thread.daemon = True
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # told to all ranks at the next meeting
            reason, self._cause = _reason(error)
            METRICS.checkpoint_failures[reason] += 1
            said = str(error) if isinstance(error, EXPECTED) else f"{self._cause}: {error}"
            kind = f"{reason}: " if reason == "DISK_FULL" else ""
            self._failure = f"{kind}rank {self._rank}: {said}"
            self.phase = "failed"

    # ---- each rank's file ------------------------------------------------------------------------

    def _write(self) -> None:
        failpoint("ckpt.write")
        started = time.perf_counter()
        self._beside.mkdir(parents=True, exist_ok=True)
        if self._copies:
            self._written = self._shard_written()
        self._copies = {}
        METRICS.saves["write"].observe(time.perf_counter() - started)
        self.phase = "written"

    def _shard_written(self) -> dict[str, Any]:
        shapes = {n: (a.dtype, a.shape) for n, (_, a) in self._copies.items()}
        path = self._beside / shard_name(self._save_id, self._rank)
        shard = ShardFile(path, self._save_id, shapes)
        try:
            for name, (piece, array) in self._copies.items():
                shard.add(name, array, piece.box.starts)
            failpoint("ckpt.before_sync")
        except BaseException:
            shard.abort()
            raise
        return shard.commit()

    # ---- rank 0 ----------------------------------------------------------------------------------

    def commit(self, written: list[dict[str, Any]], tell: Callable[[Path, int], None]) -> None:
        """All files are on the disk: makes them a checkpoint."""
        self._thread = self._start(lambda: self._commit(written, tell))

    def _commit(self, said: list[dict[str, Any]], tell: Callable[[Path, int], None]) -> None:
        started = time.perf_counter()
        written = Written(self._beside, self._save_id, said, HINT)
        failpoint("ckpt.before_manifest")
        data = written.manifest(self._tree.form, written.tensors(self._pieces, self._types))
        write_whole(self._beside / MANIFEST_FILE, data)
        sync_folder(self._beside)
        target = self._folder / f"step-{self.step}"
        older = self._folder / f".step-{self.step}.{secrets.token_hex(8)}"
        failpoint("ckpt.before_rename")
        if target.exists():  # of an attempt that went another way
            os.rename(target, older)
        os.rename(self._beside, target)
        sync_folder(self._folder)
        shutil.rmtree(older, ignore_errors=True)
        failpoint("ckpt.before_last")
        write_whole(self._folder / LAST, f"{target.name}\n".encode())
        sync_folder(self._folder)
        failpoint("ckpt.after_last")
        METRICS.saves["commit"].observe(time.perf_counter() - started)
        tell(target, self.step)
        self.phase = "committed"

    def clean_up(self) -> None:
        """Remove a checkpoint that was begun; each rank may come first."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._beside)


def _reason(error: Exception) -> tuple[str, str]:
    """The reason of a failure, and its cause: equal for those that are told once, though they name
    other steps and files."""
    if is_disk_full(error):
        return "DISK_FULL", "DISK_FULL"
    if isinstance(error, OSError):
        return "IO", os.strerror(error.errno or 0)
    if isinstance(error, RowStoreError):
        return error.reason, error.reason
    return "IO" if isinstance(error, CheckpointError) else "INTERNAL", type(error).__name__


def _tree(
    step: int, cursor: Cursor, variables: Mapping[str, Variable], rows: Mapping[str, str]
) -> Encoder:
    def tensor(v: Variable) -> Tensor:
        shard = empty_shard(v.type, v.placement) if v.array is None else v.array
        return wrap_global(shard, v.type, v.placement, v.sbp)

    tree = Encoder(
        {
            "format": FORMAT,
            "step": step,
            "cursor": {"epoch": cursor.epoch, "position": cursor.position},
            "variables": {name: tensor(v) for name, v in sorted(variables.items())},
            **({"rows": dict(rows)} if rows else {}),
        }
    )
    if tree.error is not None:
        raise tree.error
    return tree


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(m.group(1)) for n in names if (m := FOLDER.fullmatch(n)))


def _remove_older(folder: Path, keep: int) -> None:
    """Remove older checkpoints; a failure is only reported, for the new one is complete."""
    try:
        for step in saved_steps(folder)[:-keep]:
            shutil.rmtree(folder / f"step-{step}")
    except OSError as error:
        log.warning("an older checkpoint is still there: %s", error)


def remove_left_overs(folder: Path) -> None:
    """Checkpoints that an earlier attempt began; called by rank 0 before any is begun."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _LEFT_OVER.fullmatch(name):
                shutil.rmtree(folder / name, ignore_errors=True)
