"""The process that runs a rank of a job: `python -m oneflow.jobs.worker N`.

A daemon has it forked (fork_server.py) once all is there that its job needs, and speaks
WorkerCommand and WorkerMessage with it over a pair of sockets (oneflow/core/frames.py). It imports
the modules that are not imported yet, says `ready`, waits for `begin`, runs one attempt and exits.
Its exit code and reason are those of docs/JOBS.md; before it exits with another code than 0 it says
so in `failed`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import queue
import socket
import sys
import threading
from collections.abc import Mapping

from oneflow.core.config import Config, set_config
from oneflow.core.errors import (
    DeviceMemoryError,
    InternalError,
    OneFlowError,
    ProtocolError,
    is_disk_full,
)
from oneflow.core.frames import Frames
from oneflow.core.log import get_logger
from oneflow.distributed import ending
from oneflow.distributed.worker import answer_for_stacks
from oneflow.distributed.world import close_world
from oneflow.jobs.stopping import Stop, StoppedError, stop_behind
from oneflow.jobs.tracing import Tracing
from oneflow.kernels.registry import load
from oneflow.kernels.threads import set_limit
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.compiler.passes import MODULES
from oneflow.services import failpoints, pulse

log = get_logger(__name__)

WARM = (
    "oneflow.protos.cluster_pb2",
    "oneflow.protos.plan_pb2",
    "oneflow.ops",
    "oneflow.actors.control",
    "oneflow.actors.job",
    "oneflow.actors.fabric",
    "oneflow.scheduler.server",
    "oneflow.scheduler.compiler.pipeline",
    *MODULES.values(),
    "oneflow.boxing.collectives.shared_memory",
    "oneflow.distributed.groups",
    "oneflow.jobs.attempt",
    "oneflow.jobs.serving",
    "oneflow.jobs.training",
    "grpc.aio",
)
WARM_LATER = (
    "oneflow.kernels.philox",
    "oneflow.kernels.elementwise",
    "oneflow.kernels.expressions.compiled_loop",
    "encodings.idna",  # names of hosts
)
"""Imports that the fork server does when nothing is asked of it."""
MAX_CAUSE_CHARS = 2000
ORPHANED = 143


class HostMemoryError(OneFlowError):
    """This host has no memory left for the job."""

    exit_code = 137
    reason = "OOM_HOST"


class DiskFullError(OneFlowError):
    """This host has no room left on a disk."""

    exit_code = 86
    reason = "DISK_FULL"


class Commands:
    """Reads the daemon's messages on a thread of its own: `begin` and requests into queues, `stop`
    at once. When the daemon is gone, so is this process."""

    def __init__(self, frames: Frames[pb.WorkerCommand], stop: Stop) -> None:
        self.frames, self.stop = frames, stop
        self.tracing = Tracing()
        self.begins: queue.SimpleQueue[pb.Begin] = queue.SimpleQueue()
        self.requests: queue.Queue[pb.Infer] = queue.Queue(maxsize=4096)
        threading.Thread(target=self._run, name="commands", daemon=True).start()

    def _queue(self, request: pb.Infer) -> None:
        """A request that finds too many before it is refused at once."""
        try:
            self.requests.put_nowait(request)
        except queue.Full:
            full = f"{self.requests.maxsize} requests wait already; try again later"
            data = pb.InferData(request=request.request, error=full)
            self.frames.send(pb.WorkerMessage(infer=data))

    def _answer(self, request: pb.Inspect) -> None:
        try:
            self.frames.send(pb.WorkerMessage(inspected=self.tracing.answer(request)))
        except OSError as error:  # `receive` sees it too, and ends the process
            print(f"oneflow: the daemon's line broke: {error}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        while True:
            try:
                command = self.frames.receive()
            except (OSError, ProtocolError) as error:
                print(f"oneflow: the daemon's line broke: {error}", file=sys.stderr, flush=True)
                command = None
            if command is None:
                os._exit(ORPHANED)
            kind = command.WhichOneof("kind")
            if kind == "begin":
                self.begins.put(command.begin)
            elif kind == "infer":
                self._queue(command.infer)
            elif kind == "inspect":
                self._answer(command.inspect)
            elif kind == "stop" and command.stop:
                self.stop.ask("the daemon")


def main(descriptor: int) -> None:
    """Runs one attempt; ends the process with its exit code.

    descriptor: of the socket to the daemon.
    """
    answer_for_stacks()
    failpoints.arm(os.environ)
    roots = Config.from_env().data_roots  # as whoever runs the daemon allows, not the job
    pulse.start(os.environ)
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    frames, stop = Frames(sock, pb.WorkerCommand), Stop()
    stop.install()
    ending.watch(
        lambda _: False, lambda: False
    )  # exit codes of errors, also before there are peers
    ending.show_briefly(_is_declared)
    load_modules(WARM)
    commands = Commands(frames, stop)
    frames.send(pb.WorkerMessage(ready=pb.Empty()))
    try:
        begin = commands.begins.get()
    except StoppedError as error:  # there was no job yet
        stop.end()
        sys.exit(error.exit_code)
    try:
        from oneflow.jobs.attempt import run_attempt

        configure(begin)
        run_attempt(begin, commands, roots)
    except Exception as error:
        stop.end()
        ours = stop_behind(error) or as_ours(error)
        _say_failed(frames, begin, ours)
        if isinstance(ours, StoppedError):
            print(f"oneflow: {ours}", file=sys.stderr, flush=True)
            if ours.is_agreed:
                close_world()  # in order: nobody failed
            sys.exit(ours.exit_code)
        if ours is error:
            raise
        raise ours from error


def load_modules(names: tuple[str, ...]) -> None:
    """Imports them, and then all kernels."""
    for name in names:
        importlib.import_module(name)
    load()


def as_ours(error: Exception) -> OneFlowError:
    """The error with the exit code and the reason that it means for a job."""
    if isinstance(error, OneFlowError):
        return error
    if isinstance(error, MemoryError):
        return HostMemoryError(f"no memory left: {error}")
    if is_disk_full(error):
        return DiskFullError(str(error))
    if type(error).__name__ == "OutOfMemoryError":  # CuPy's, which is not always there
        return DeviceMemoryError(f"no memory left on the device: {error}")
    # No user's code runs here, so the mistake is ours.
    return InternalError(f"{type(error).__name__}: {error}")


def _is_declared(error: BaseException) -> bool:
    """No code of a user runs here: a traceback shows only where we found a mistake of theirs, or of
    the host's. Of our own it shows all."""
    return isinstance(error, OneFlowError) and error.exit_code not in (1, InternalError.exit_code)


def _say_failed(frames: Frames[pb.WorkerCommand], begin: pb.Begin, error: OneFlowError) -> None:
    failed = pb.Exited(
        id=begin.prepare.id,
        exit_code=error.exit_code,
        reason=error.reason,
        cause=ending.describe(error)[:MAX_CAUSE_CHARS],
        last_step=getattr(error, "last_step", 0),
        pid=os.getpid(),
    )
    try:
        frames.send(pb.WorkerMessage(failed=failed))
    except OSError:
        return  # the daemon is gone; the exit code says the same


def configure(begin: pb.Begin) -> Config:
    """The rank's configuration: the environment of `begin`, and the facts of the attempt."""
    os.environ.pop("OPENBLAS_NUM_THREADS", None)  # that of the fork server
    os.environ.update(begin.env)
    p = begin.prepare
    config = dataclasses.replace(
        Config.from_env(),
        rank=p.id.rank,
        world_size=p.world_size or 1,
        local_rank=p.local_rank,
        master_addr=begin.master_addr or "127.0.0.1",
        master_port=begin.master_port,
        launched=True,
        job_token=p.job_key or None,
        job_id=p.id.job_id or "local",
        attempt=max(1, p.id.attempt),
        counts_file=None,  # it has a line of its own
        trace_dir=None,  # a job of data alone writes to no folder of its own choice
    )
    set_config(config)
    limit_threads(os.environ)
    return config


def limit_threads(given: Mapping[str, str]) -> None:
    """Take as many threads as OMP_NUM_THREADS says, where it does.

    A forked worker learns only with its job how many ranks share the host.
    """
    text = given.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text):
        set_limit(int(text))


if __name__ == "__main__":
    main(int(sys.argv[1]))
