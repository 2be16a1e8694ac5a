"""An inference job on one rank: loads the graph once, then answers requests until it is stopped.

A graph that was traced in one place is loaded by every rank, each for itself: any rank answers. One
that spans ranks is run by all of them together; rank 0 gets the requests and sends the others the
rows to feed. Requests that come within BATCH_S share a step; while it runs the next ones are read,
and the answers of the one before are sent.
"""

from __future__ import annotations

import dataclasses
import json
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.config import current_config, set_config
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import OneFlowError
from oneflow.core.frames import Frames
from oneflow.core.log import get_logger
from oneflow.distributed.world import world
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.meeting import exchange
from oneflow.jobs.reporting import Reporter
from oneflow.jobs.requests import Interface, Request, RequestError, Share
from oneflow.jobs.running import Bound, bind_job, join_ranks, spans_ranks
from oneflow.jobs.stopping import Stop, StoppedError
from oneflow.kernels.array import Array
from oneflow.protos import cluster_pb2 as pb
from oneflow.tensor.devices import to_host

if TYPE_CHECKING:
    from oneflow.actors.executor import Executor
    from oneflow.jobs.tracing import Tracing
    from oneflow.jobs.worker import Commands

log = get_logger(__name__)

BATCH_S = 0.002
"""So long a request waits for others to share its step."""
IDLE_S = 0.1
_IDLE, _STEP, _END = b"\0", b"\1", b"\2"


def serve(file: JobFile, begin: pb.Begin, daemon: Commands) -> None:
    """Raises StoppedError when it was told to stop and all requests are answered."""
    if not spans_ranks(file):
        set_config(dataclasses.replace(current_config(), rank=0, world_size=1, launched=False))
    p, stop = begin.prepare, daemon.stop
    device, folder = p.spec.device_type or "cpu", Path(begin.job_dir)
    join_ranks()
    reporter = Reporter(daemon.frames, p.id, 0)
    bind = partial(bind_job, file, device, begin.plan_file, folder)
    header = {"job": p.id.job_id, "attempt": p.id.attempt}
    trace = partial(daemon.tracing.begin, job_dir=folder, rank=p.id.rank, header=header)
    server = Server(bind, Replies(daemon.frames), reporter, daemon.tracing, trace)
    reporter.progress(0, {})
    stop.begin_steps()
    try:
        if world().rank == 0:
            server.answer_all(daemon.requests, stop)
        else:
            server.follow(daemon.requests)
    finally:
        server.close()
        reporter.close()
    error = StoppedError(f"stopped by {stop.requested or 'rank 0'}")
    error.is_agreed = True
    raise error


class Replies:
    """Sends answers from a thread of its own, in order."""

    def __init__(self, frames: Frames[pb.WorkerCommand]) -> None:
        self._frames = frames
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="replies", daemon=True)
        self._thread.start()

    def say(self, number: int, outputs: Sequence[tuple[str, Array]], error: str = "") -> None:
        """Answer a request, or refuse it with an error."""
        self._queue.put((number, outputs, error))

    def close(self) -> None:
        """Returns when all is sent."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (found := self._queue.get()) is not None:
            number, outputs, error = found
            tensors = [
                pb.Tensor(name=n, dtype=a.dtype.name, shape=a.shape, data=a.tobytes())
                for n, a in outputs
            ]
            data = pb.InferData(request=number, outputs=tensors, error=error)
            try:
                self._frames.send(pb.WorkerMessage(infer=data))
            except OneFlowError as problem:  # an answer that is too long
                refusal = pb.InferData(request=number, error=str(problem))
                self._frames.send(pb.WorkerMessage(infer=refusal))
            except OSError:
                return  # the reader of commands sees it too, and ends the process


class Server:
    """Answers requests, or runs its part of their steps.

    bind: makes the job; again after a step that failed, which leaves it unusable.  trace: lets
    `tracing` record the steps of an executor.
    """

    def __init__(
        self,
        bind: Callable[[], Bound],
        replies: Replies,
        reporter: Reporter,
        tracing: Tracing,
        trace: Callable[[Executor], None],
    ) -> None:
        self._bind, self._replies, self._reporter = bind, replies, reporter
        self._tracing, self._trace = tracing, trace
        self._bound = self._make()
        self._interface = Interface.of(self._bound.file)
        self._waiting: deque[tuple[Request, int]] = deque()
        self._num_requests = self._num_steps = 0

    def _make(self) -> Bound:
        bound = self._bind()
        self._trace(bound.job.executor)
        return bound

    def close(self) -> None:
        self._replies.close()
        self._tracing.close()
        self._bound.close()

    # ---- rank 0, or a rank alone -----------------------------------------------------------------

    def answer_all(self, requests: queue.Queue[pb.Infer], stop: Stop) -> None:
        """Until it is told to stop, and all that came before is answered."""
        while True:
            self._gather(requests)
            if self._waiting:
                self._step(self._interface.take(self._waiting))
            elif stop.requested:
                self._share(_END)
                return
            else:
                self._share(_IDLE)

    def _gather(self, requests: queue.Queue[pb.Infer]) -> None:
        """Waits for a request, then a moment for more that share its step."""
        end = time.monotonic() + (BATCH_S if self._waiting else IDLE_S)
        while not self._is_full():
            try:
                message = requests.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            if not self._waiting:
                end = time.monotonic() + BATCH_S
            self._take_in(message)

    def _is_full(self) -> bool:
        rows = sum(r.rows - start for r, start in self._waiting)
        return bool(self._waiting) and rows >= self._interface.batch

    def _take_in(self, message: pb.Infer) -> None:
        try:
            request = self._interface.request(message)
        except RequestError as error:
            self._replies.say(message.request, [], str(error))
            return
        self._waiting.append((request, 0))

    def _step(self, shares: list[Share]) -> None:
        """One step for all of them; if it fails, one for each: only the cause is refused."""
        try:
            results = self._run(self._interface.feeds(shares))
        except Exception as error:
            if world().world_size > 1:
                raise  # the other ranks stand in the middle of the step
            self._bound.job.close()
            self._bound = self._make()
            self._step_failed(shares, error)
            return
        self._num_steps += 1
        for request in self._interface.divide(shares, results):
            self._num_requests += 1
            self._replies.say(request.number, self._interface.answer(request))
        numbers = {"requests": float(self._num_requests), "steps": float(self._num_steps)}
        self._reporter.progress(self._num_steps, numbers)

    def _step_failed(self, shares: list[Share], error: Exception) -> None:
        if len(shares) > 1:
            for share in shares:
                self._step([dataclasses.replace(share, at=0)])
            return
        request = shares[0].request
        log.warning("request %d failed: %s: %s", request.number, type(error).__name__, error)
        while self._waiting and self._waiting[0][0] is request:
            self._waiting.popleft()
        self._replies.say(request.number, [], f"{type(error).__name__}: {error}"[:2000])

    def _run(self, feeds: dict[str, Array]) -> dict[int, Array]:
        self._share(_STEP + b"".join(a.tobytes() for a in feeds.values()))
        return self._run_own(feeds)

    def _run_own(self, feeds: dict[str, Array]) -> dict[int, Array]:
        own = {}
        for port in self._interface.inputs:
            name = f"input.{port.index}"
            if name in self._bound.inputs:
                box = self._bound.inputs[name][1]
                part: Any = (*box.slices, ...)  # the Ellipsis makes it a view of a 0-d array too
                own[name] = feeds[port.name][part]
        return {i: to_host(a) for i, a in self._bound.job.run(own).items()}

    # ---- ranks of one graph ----------------------------------------------------------------------

    def _share(self, message: bytes) -> bytes:
        """Send all ranks the message of rank 0; all say besides whether they are to be traced."""
        here, said = world(), self._tracing.said()
        if here.world_size == 1:
            self._tracing.hear([said], exchange)
            return message
        own = json.dumps(said).encode() + b"\n" + message
        found = here.everyone.gather_bytes(own, "what to feed")
        words = [json.loads(m[: m.index(b"\n")]) for m in found]
        self._tracing.hear(words, exchange)
        return found[0][found[0].index(b"\n") + 1 :]

    def follow(self, requests: queue.Queue[pb.Infer]) -> None:
        """Run the steps that rank 0 announces, until it says that it is over."""
        while (heard := self._share(b""))[:1] != _END:
            if heard[:1] == _STEP:
                self._run_own(self._feeds_of(heard[1:]))
                self._num_steps += 1
                self._reporter.progress(self._num_steps, {})
            while not requests.empty():
                self._replies.say(requests.get().request, [], "rank 0 answers for this job")

    def _feeds_of(self, data: bytes) -> dict[str, Array]:
        feeds, at = {}, 0
        for port in self._interface.inputs:
            kind = dtype_of(port.dtype).np
            count = math.prod(port.shape)
            feeds[port.name] = np.frombuffer(data, kind, count, at).reshape(port.shape)
            at += count * kind.itemsize
        return feeds
