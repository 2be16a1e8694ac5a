"""A daemon's part for real workers: starts those of a job, talks to them, keeps their words."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from oneflow.core.frames import Frames
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.ports import free_port
from oneflow.services.forking import ANSWER, READY, SETTLED, ask
from tests.support.processes import stat_fields
from tests.support.waiting import WAIT_S, wait_until

GRAPH, INFERENCE = 1, 2
USUAL = {"ONEFLOW_TIMEOUT_SECONDS": "60"}
_PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """A child that was forked from the server; as much of Popen as tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout_s: float = WAIT_S) -> int:
        wait_until(lambda: self.poll() is not None, "the worker ends", timeout_s)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


class ForkServer:
    """The process that a daemon has workers forked from: it imports the modules of all of them
    once.

    It ends with the process of the tests.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        argv = [sys.executable, "-m", "oneflow.jobs.fork_server", "--fd", str(fd)]
        with theirs:
            process = subprocess.Popen(argv, pass_fds=[fd], env=os.environ | USUAL)
        process.returncode = 0  # nobody waits for it
        assert self._receive() == READY

    def _receive(self) -> bytes:
        while (said := self._control.recv(ANSWER.size)) == SETTLED:
            pass
        return said

    def fork(self, stdout: int, stderr: int, control: int) -> Forked:
        """A worker with these descriptors. It is our child: we adopt the children of
        the process between, for so long only.
        """
        known, knows = os.pipe()
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            with open(known), open(knows, "w") as is_known, open(os.devnull, "w") as pulse:
                ask(self._control, known, [stdout, stderr, pulse.fileno(), control])
                (pid,) = ANSWER.unpack(self._receive())
                assert pid > 0, os.strerror(-pid)
                is_known.close()  # until then, the process between waits
                wait_until(lambda: int(stat_fields(pid)[1]) == os.getpid(), "the worker is ours")
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return Forked(pid)


@cache
def fork_server() -> ForkServer:
    """One for all tests of this process."""
    return ForkServer()


class Worker:
    """One process: forked, unless it has an environment or a command of its own.

    messages: all it has said so far.
    """

    def __init__(
        self, folder: Path, rank: int, env: dict[str, str], prefix: Sequence[str] = ()
    ) -> None:
        ours, theirs = socket.socketpair()
        self.errors = folder / f"stderr-{rank}-{time.monotonic_ns()}"
        self.process: Forked | subprocess.Popen[bytes]
        with self.errors.open("wb") as errors:
            if env or prefix:
                self.process = subprocess.Popen(
                    [*prefix, sys.executable, "-m", "oneflow.jobs.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=os.environ | USUAL | env,
                    stdout=errors,
                    stderr=errors,
                )
            else:
                self.process = fork_server().fork(errors.fileno(), errors.fileno(), theirs.fileno())
        theirs.close()
        self._socket = ours
        self.rank = rank
        self.frames = Frames(ours, pb.WorkerMessage)
        self.messages: list[Any] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                message = self.frames.receive()
            except OSError:
                message = None
            with self._news:
                if message is None:
                    self.messages.append(None)
                    self._news.notify_all()
                    return
                self.messages.append(message)
                self._news.notify_all()

    def wait_for(self, wanted: Callable[[Any], Any], timeout_s: float = WAIT_S) -> Any:
        """The first message for which `wanted` holds."""
        with self._news:
            self._news.wait_for(lambda: self._found(wanted) or None in self.messages, timeout_s)
            found = self._found(wanted)
        assert found, f"rank {self.rank}: nothing of the kind came\n{self.text()}"
        return found[0]

    def _found(self, wanted: Callable[[Any], Any]) -> list[Any]:
        return [m for m in self.messages if m is not None and wanted(m)]

    def text(self) -> str:
        return self.errors.read_text()[-6000:]

    def send(self, **command: Any) -> None:
        self.frames.send(pb.WorkerCommand(**command))

    def close(self) -> None:
        """Stop listening, when it has ended and all that it said is read."""
        self._reader.join(WAIT_S)
        self.frames.close()

    def hang_up(self) -> None:
        """Hangs up, as if the daemon were gone."""
        self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def progress(self) -> list[Any]:
        return [m.progress for m in self.messages if m and m.WhichOneof("kind") == "progress"]

    @property
    def failed(self) -> Any:
        """The code that it said it would exit with, or None."""
        found = [m.failed for m in self.messages if m and m.WhichOneof("kind") == "failed"]
        return found[-1] if found else None


class Attempt:
    """One attempt of a job on `num_ranks` workers. prefixes: of their commands, by rank."""

    def __init__(
        self,
        job_file: Path,
        job_dir: Path,
        num_ranks: int,
        *,
        kind: int = GRAPH,
        number: int = 1,
        resume_from: str = "",
        plan_file: str = "",
        env: dict[str, str] | None = None,
        steps: int = 0,
        spec_resume_from: str = "",
        prefixes: Sequence[Sequence[str]] = (),
        **spec: Any,
    ) -> None:
        job_dir.mkdir(parents=True, exist_ok=True)
        self.job_dir = job_dir
        before = [*prefixes, *[()] * (num_ranks - len(prefixes))]
        self.workers = [Worker(job_dir, r, env or {}, before[r]) for r in range(num_ranks)]
        port = free_port()
        for worker in self.workers:
            worker.wait_for(lambda m: m.WhichOneof("kind") == "ready")
            prepare = pb.Prepare(
                id=pb.AttemptId(job_id="job1", attempt=number, rank=worker.rank),
                spec=pb.JobSpec(
                    kind=kind,
                    devices=num_ranks,
                    device_type="cpu",
                    resume_from=spec_resume_from,
                    **spec,
                ),
                world_size=num_ranks,
                job_key="secret",
                resume_from=resume_from,
                total_steps=steps,
                local_rank=worker.rank,
            )
            begin = pb.Begin(
                prepare=prepare,
                master_addr="127.0.0.1",
                master_port=port,
                job_file=str(job_file),
                plan_file=plan_file,
                job_dir=str(job_dir),
                env={"OMP_NUM_THREADS": "1"} if num_ranks > 1 else {},
            )
            worker.send(begin=begin)

    def wait(self, timeout_s: float = WAIT_S) -> list[int]:
        """The exit codes by rank."""
        end = time.monotonic() + timeout_s
        try:
            return [w.process.wait(max(0.1, end - time.monotonic())) for w in self.workers]
        finally:
            self.kill()

    def succeeds(self) -> Attempt:
        codes = self.wait()
        assert not any(codes), f"{codes}\n" + "\n".join(w.text() for w in self.workers)
        return self

    def kill(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGKILL)
                worker.process.wait()
            worker.close()

    def until_step(self, step: int, rank: int = 0) -> Any:
        """Waits until so many steps are done."""
        return self.workers[rank].wait_for(lambda m: m.progress.step >= step).progress

    def order_trace(self, what: str, number: int, **order: Any) -> list[str]:
        """Asks all ranks about a trace; returns how each of them is. number: of the question."""
        inspect = pb.Inspect(request=number, what="trace", trace=pb.TraceOrder(what=what, **order))
        for worker in self.workers:
            worker.send(inspect=inspect)
        found = [
            w.wait_for(lambda m: m.inspected.request == number).inspected for w in self.workers
        ]
        assert not any(f.error for f in found), found
        return [f.trace.state for f in found]

    def until_checkpoint(self, step: int) -> Any:
        """Waits until a checkpoint of that step or a later one is complete."""
        return self.workers[0].wait_for(lambda m: m.progress.checkpoint_step >= step).progress

    @property
    def curve(self) -> list[tuple[int, str]]:
        """Step and loss, to the last bit."""
        lines = (self.job_dir / "outputs" / "metrics.jsonl").read_text().splitlines()
        return [(v["step"], float(v["loss"]).hex()) for v in map(json.loads, lines)]
