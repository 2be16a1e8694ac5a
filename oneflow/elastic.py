"""`flow.elastic`: scripts of jobs whose ranks come and go (`--nnodes MIN:MAX`, docs/LAUNCH.md).

    sampler = flow.elastic.Sampler(rows, batch_size=48, seed=1)
    state = flow.elastic.State("state", model=model, optimizer=optimizer, sampler=sampler)
    state.resume()
    while sampler.epoch < epochs:
        for rows in sampler:                        # this rank's part of each batch
            loss = criterion(ddp(x[rows]), y[rows]) * sampler.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.commit()                          # a step is done on this rank

When ranks come or go, all are ended and start again in another number. `commit` keeps a copy of the
state of the step, and when the rank ends, by SIGTERM or the loss of a peer, the copy is
written on the way out. `resume` goes on from the newest copy that any rank finds: a rank may be one
step ahead of another when both are ended, and its copy is whole.

The batch is that of all ranks together, so it stays the same when their number changes, and so do
the losses, but for the order in which they are summed. The rows of a batch are a function of the
seed, the epoch and the position in it alone.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.errors import ArgumentError, CheckpointError
from oneflow.distributed.objects import all_gather_object
from oneflow.distributed.world import world
from oneflow.io.checkpoint import load, save
from oneflow.jobs.order import Order
from oneflow.jobs.saving import saved_steps
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor

STOPPED_CODE = 143
KEEP = 2
"""Steps that stay on the disk: the newest may be on one node's alone."""
FORMAT = "oneflow elastic state"
CHUNK_NBYTES = 64 << 20


class Stateful(Protocol):
    """A part of the state: a module, an optimizer, a learning rate schedule, a Sampler."""

    def state_dict(self) -> Any:
        """Return a state for `load_state_dict`."""

    @property
    def load_state_dict(self) -> Callable[..., object]:
        """Go back to the state at the call of `state_dict`."""


class Sampler:
    """The rows of each batch that this rank computes: every row of an epoch exactly once, with
    any number of ranks and changes of it.

    data: the number of rows, or an object with a length. batch_size: rows of a batch, of all ranks
    together. seed: of the order; None: the order of the data. drop_last: rows left of an epoch
    that make no whole batch are skipped.
    Iterating yields lists of row numbers to the end of the epoch, and moves nothing, so that a
    DataLoader (`batch_sampler=`) may fetch ahead: `advance`, which `State.commit` calls, does.
    """

    def __init__(
        self,
        data: int | Sized,
        batch_size: int,
        *,
        seed: int | None = 0,
        drop_last: bool = False,
    ) -> None:
        num_rows = data if isinstance(data, int) else len(data)
        config = current_config()
        if batch_size < config.world_size:
            raise ArgumentError(
                f"elastic.Sampler: a batch of {batch_size} rows has none for some of "
                f"{config.world_size} ranks; batch_size is that of all ranks together"
            )
        if num_rows < (batch_size if drop_last else 1):
            raise ArgumentError(f"elastic.Sampler: {num_rows} rows make no batch of {batch_size}")
        self.batch_size, self.epoch, self.position = batch_size, 0, 0
        self._num_rows = num_rows - num_rows % batch_size if drop_last else num_rows
        self._order = Order(num_rows, seed)
        self._rank, self._world_size = config.rank, config.world_size

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        for start in range(self.position, self._num_rows, self.batch_size):
            first, last = self._part(start)
            rows: list[int] = self._order.rows(epoch, first, max(last, first + 1)).tolist()
            yield rows

    def __len__(self) -> int:
        """Batches that are left of the epoch."""
        return -(-(self._num_rows - self.position) // self.batch_size)

    @property
    def weight(self) -> float:
        """The factor of this rank's loss in the present batch that makes the average over ranks,
        as DistributedDataParallel takes it, the average over rows: 1.0 where they have equally
        many. 0.0: the rest of an epoch has fewer rows than there are ranks, and this one's counts
        on another.
        """
        first, last = self._part(self.position)
        num_rows = min(self.batch_size, self._num_rows - self.position)
        return (last - first) * self._world_size / num_rows

    def _part(self, start: int) -> tuple[int, int]:
        """Positions of this rank's rows, of the batch that begins at `start`."""
        num_rows = min(self.batch_size, self._num_rows - start)
        cuts = [num_rows * r // self._world_size for r in (self._rank, self._rank + 1)]
        if cuts[0] == cuts[1]:
            return start, start
        return start + cuts[0], start + cuts[1]

    def advance(self) -> None:
        """Go on to the next batch."""
        self.position += self.batch_size
        if self.position >= self._num_rows:
            self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        self.epoch, self.position = state_dict["epoch"], state_dict["position"]


class State:
    """The state of a training that goes on when ranks come and go: the same on all ranks.

    folder: where it is kept; nodes need not share it. save_every: steps after which it is written
    besides, for the case that all ranks are killed at once; 0: only when the rank ends.
    parts: objects with `state_dict` and `load_state_dict`. Samplers among them advance with
    `commit`.
    step: the steps done.

    SIGTERM ends the process with exit code 143 from here on, wherever it is.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, save_every: int = 0, **parts: Stateful
    ) -> None:
        odd = [name for name, part in parts.items() if not hasattr(part, "load_state_dict")]
        if odd or not parts:
            got = f"{odd[0]} has no load_state_dict" if odd else "it has no parts"
            raise ArgumentError(
                f"elastic.State: {got}; give it what changes from step to step, as model=model, "
                "optimizer=optimizer, sampler=sampler"
            )
        if save_every < 0:
            raise ArgumentError(f"elastic.State: save_every is a number of steps, got {save_every}")
        self.step = 0
        self._folder, self._save_every, self._parts = Path(folder), save_every, parts
        self._kept: tuple[int, dict[str, Any]] | None = None
        self._written = -1
        self._pid = os.getpid()
        world()  # its way out comes after ours, which was registered later
        atexit.register(self._end)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _stop)

    def commit(self) -> None:
        """A step is done: keep its state for a start in another number of ranks."""
        self.step += 1
        for part in self._parts.values():
            if isinstance(part, Sampler):
                part.advance()
        # One assignment: a signal may come between any two, and finds one step or the other.
        self._kept = self.step, {n: _copied(p.state_dict(), n) for n, p in self._parts.items()}
        if self._save_every and self.step % self._save_every == 0:
            self._write()

    def resume(self) -> int:
        """Go on from the newest state that any rank finds; all ranks call it. Returns the steps
        done, 0 if there is no state.

        Raises CheckpointError on all ranks if it is one of something else or is damaged.
        """
        steps = saved_steps(self._folder)
        mine = steps[-1] if steps else -1
        found = all_gather_object(mine) if world().world_size > 1 else [mine]
        newest = max(found)
        if newest < 0:
            return 0
        source = found.index(newest)
        data = self._path(newest).read_bytes() if world().rank == source else b""
        if min(found) < newest:
            data = _shared(data, source)
        elif world().rank != source:
            data = self._path(newest).read_bytes()
        self._take(load(io.BytesIO(data)), newest)
        return self.step

    def _take(self, found: object, step: int) -> None:
        parts: dict[str, Any] = {}
        if isinstance(found, dict) and found.get("format") == FORMAT:
            parts = found["parts"]
        if set(parts) != set(self._parts):
            names = ", ".join(sorted(parts)) or "something else"
            raise CheckpointError(
                f"{self._path(step)} is not the state of {', '.join(sorted(self._parts))}: it is "
                f"that of {names}; choose another folder"
            )
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        self.step = self._written = step

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def _write(self) -> None:
        """Write the kept state: one rank of each node does, as only one node may live on."""
        if self._kept is None or self._kept[0] <= self._written or world().local_rank != 0:
            return
        step, parts = self._kept
        self._folder.mkdir(parents=True, exist_ok=True)
        save({"format": FORMAT, "step": step, "parts": parts}, self._path(step))
        self._written = step
        for older in saved_steps(self._folder)[:-KEEP]:
            self._path(older).unlink(missing_ok=True)

    def _end(self) -> None:
        """Write on the way out, however the process ends; a second SIGTERM does not disturb."""
        if os.getpid() != self._pid:  # a fork of the rank, such as a data loader's worker
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._write()


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(STOPPED_CODE)


def _copied(value: object, where: str) -> object:
    """Copy the objects that a step may change: tensors, and containers with them."""
    if isinstance(value, Tensor):
        if value.is_global:
            raise ArgumentError(
                f"elastic.State: {where} is a global tensor; only what every rank holds whole can "
                "be kept. Graph jobs of a cluster keep global tensors, and resume in any layout"
            )
        return value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _copied(one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(one, f"{where}[{i}]") for i, one in enumerate(value))
    return value


def _shared(data: bytes, source: int) -> bytes:
    """Return the bytes of rank `source`, on all ranks."""
    everyone = world().everyone
    size = int(everyone.broadcast(np.array([len(data)], np.int64), source, "elastic state")[0])
    parts = []
    for start in range(0, size, CHUNK_NBYTES):
        stop = min(start + CHUNK_NBYTES, size)
        mine: Array = np.empty(stop - start, np.uint8)
        if everyone.rank == source:
            mine = np.frombuffer(data[start:stop], np.uint8)
        parts.append(everyone.broadcast(mine, source, "elastic state").tobytes())
    return b"".join(parts)
