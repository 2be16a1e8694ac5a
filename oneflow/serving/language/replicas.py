"""Worker processes, each with the whole model: started, fed, watched and started anew.

A request goes to the replica with the fewest. When a replica is lost, its requests that gave
nothing yet go to another one; the others end with an error. Requests of other replicas notice
nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from oneflow.core.errors import ModelError, OneFlowError
from oneflow.core.log import get_logger
from oneflow.core.processors import usable_processors
from oneflow.serving.language.messages import (
    REPORTS,
    REQUESTS,
    Cancel,
    Made,
    Opened,
    Request,
    Steps,
    Submit,
)

log = get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_END_S = 10.0
_LOST = "the worker that computed this request has ended; ask again"


class ReplicaLostError(OneFlowError):
    """A worker that ended before the answer that it computed."""

    reason = "PEER_LOST"


class NoFirstTokenError(TimeoutError):
    """A sequence that has waited for its first token as long as the server allows."""


Inbox = asyncio.Queue[Made | Exception]


@dataclass
class Replica:
    """A worker and its connection. opened: None while it starts. last: its last report."""

    number: int
    process: asyncio.subprocess.Process | None = None
    writer: asyncio.StreamWriter | None = None
    opened: Opened | None = None
    last: Steps | None = None
    inboxes: dict[int, Inbox] = field(default_factory=dict)
    """Inboxes of requests, by their ids."""

    def send(self, message: Request) -> None:
        if self.writer is not None:
            self.writer.write(REQUESTS.encode(message))


class Replicas:
    """The workers of a model. ranks: processes of each. arguments: of the worker's program."""

    def __init__(self, folder: Path, count: int, ranks: int, arguments: Sequence[str]) -> None:
        self.folder, self.ranks, self.arguments = folder, ranks, arguments
        self.all = [Replica(i) for i in range(count)]
        self.num_lost = 0
        self._ids = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None

    @property
    def ready(self) -> list[Replica]:
        return [replica for replica in self.all if replica.opened is not None]

    async def start(self) -> Opened:
        """Start all workers; return when one takes work. Raises ModelError if one ends before."""
        self._failed = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._keep(replica)) for replica in self.all]
        ready = asyncio.create_task(self._ready.wait())
        either: list[asyncio.Future[Any]] = [ready, self._failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            ready.cancel()
            self._failed.result()
        opened = self.ready[0].opened
        assert opened is not None  # `ready` says so
        return opened

    async def close(self) -> None:
        """End all workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(
        self, submit: Submit, until: float, first_until: float
    ) -> AsyncGenerator[Made, None]:
        """Yield the tokens of a request as they come. Closing the generator cancels the request.

        until: the time of the event loop at which it is to have ended. Raises TimeoutError then;
        NoFirstTokenError if nothing has come until `first_until`; ReplicaLostError if the worker
        was lost and had given something, or no other is ready.
        """
        has_given = False
        while True:
            replica = self._fewest()
            async with aclosing(self._ask(replica, submit, until, first_until)) as found:
                try:
                    async for made in found:
                        has_given = True
                        yield made
                    return
                except ReplicaLostError:
                    if has_given:
                        raise

    async def _ask(
        self, replica: Replica, submit: Submit, until: float, first_until: float
    ) -> AsyncGenerator[Made, None]:
        number, inbox = next(self._ids), Inbox()
        loop, late = asyncio.get_running_loop(), TimeoutError("the answer took too long")
        timer = loop.call_at(until, inbox.put_nowait, late)
        behind = NoFirstTokenError("no token has come in the time allowed")

        def give_up() -> None:
            if inbox.empty():  # a token that came and was not read yet is a token
                inbox.put_nowait(behind)

        first = loop.call_at(first_until, give_up)
        replica.inboxes[number] = inbox
        replica.send(msgspec.structs.replace(submit, id=number))
        has_ended = False
        try:
            while not has_ended:
                made = await inbox.get()
                if isinstance(made, Exception):
                    raise made
                first.cancel()
                has_ended = bool(made.end)
                yield made
        finally:
            timer.cancel()
            first.cancel()
            replica.inboxes.pop(number, None)
            if not has_ended:
                replica.send(Cancel(number))

    def _fewest(self) -> Replica:
        if not self.ready:
            raise ReplicaLostError("no worker is ready; ask again in a moment")
        return min(self.ready, key=lambda replica: len(replica.inboxes))

    # ---- one replica -----------------------------------------------------------------------------

    async def _keep(self, replica: Replica) -> None:
        """Run a worker, and start it anew whenever it ends."""
        pause_s = _FIRST_PAUSE_S
        while True:
            was_ready = await self._run(replica)
            if was_ready:
                pause_s = _FIRST_PAUSE_S
            elif not self._ready.is_set():
                self._give_up(replica)
                return
            self.num_lost += 1
            log.warning("replica %d has ended; it starts again", replica.number)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _give_up(self, replica: Replica) -> None:
        if self._failed is not None and not self._failed.done():
            text = f"replica {replica.number} ended before it was ready; see its messages above"
            self._failed.set_exception(ModelError(text))

    async def _run(self, replica: Replica) -> bool:
        """Run a worker until it ends; return whether it was ever ready."""
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connected.done():
                writer.close()
            else:
                connected.set_result((reader, writer))

        was_ready = False
        with tempfile.TemporaryDirectory(prefix="oneflow-serve-") as folder:
            path = str(Path(folder) / "worker")
            server = await asyncio.start_unix_server(accept, path)
            replica.process = await self._launch(path)
            ended = asyncio.create_task(replica.process.wait())
            try:
                either: list[asyncio.Future[Any]] = [connected, ended]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if connected.done():
                    reader, replica.writer = connected.result()
                    was_ready = await self._read(replica, reader)
            finally:
                server.close()
                self._lose(replica)
                await _end(replica.process, ended)
        return was_ready

    async def _launch(self, path: str) -> asyncio.subprocess.Process:
        own = ("-m", "oneflow.serving.language.worker", "--folder", str(self.folder))
        launcher = ("-m", "oneflow.distributed.launch", "--nproc_per_node", str(self.ranks))
        command = (*launcher, *own) if self.ranks > 1 else own
        processes = self.ranks * len(self.all)
        threads = str(max(1, usable_processors() // processes))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--socket",
            path,
            *self.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is the server's, which ends workers in order
            env={"OMP_NUM_THREADS": threads} | os.environ,
        )

    async def _read(self, replica: Replica, reader: asyncio.StreamReader) -> bool:
        was_ready = False
        while (report := await REPORTS.receive_async(reader)) is not None:
            match report:
                case Opened():
                    replica.opened = report
                    self._ready.set()
                    was_ready = True
                case Steps():
                    replica.last = report
                    for made in report.made:
                        inbox = replica.inboxes.get(made.id)
                        if inbox is not None:  # else it was cancelled
                            inbox.put_nowait(made)
        return was_ready

    def _lose(self, replica: Replica) -> None:
        """Fail the requests of a worker that has ended."""
        if replica.writer is not None:
            replica.writer.close()
        replica.writer = replica.opened = replica.last = None
        inboxes, replica.inboxes = replica.inboxes, {}
        for inbox in inboxes.values():
            inbox.put_nowait(ReplicaLostError(_LOST))


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    """Let a worker end, whose connection is closed, and its ranks with it."""
    try:
        await asyncio.wait_for(asyncio.shield(ended), _END_S)
    except asyncio.TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await ended
