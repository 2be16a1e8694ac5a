"""One attempt of a job on this node: starts its ranks, watches them, ends them together."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from oneflow.core.errors import ConfigError
from oneflow.core.exits import note_exited
from oneflow.core.processors import share_of_processors
from oneflow.launcher.flags import Settings
from oneflow.launcher.forks import Forks
from oneflow.launcher.logs import Pump, line_prefix
from oneflow.launcher.processes import descendants, num_oom_kills, reap, send_signal, spawn
from oneflow.launcher.rank_env import RankPlace, bootstrap_path, rank_env
from oneflow.launcher.report import ErrorRecord, cause_of, final_line, read_error
from oneflow.launcher.supervision import (
    DUMP_SIGNAL,
    DumpStacks,
    Exited,
    Looked,
    Phase,
    SendSignal,
    Signalled,
    Supervision,
    ToldToEnd,
    Verdict,
)
from oneflow.launcher.torchrun import elastic_env
from oneflow.launcher.values import STDERR, STDOUT

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOPPING_LOOK_S = 0.05
STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt, with the facts for its report."""

    verdict: Verdict
    record: ErrorRecord | None
    log: str | None
    ran_out_of_memory: bool

    @property
    def cause(self) -> str:
        return cause_of(self.verdict.cause, self.record, self.ran_out_of_memory)


def say(outcome: Outcome, job: str, attempt: int, state: str | None = None) -> None:
    """Print the line about an attempt that did not succeed."""
    found = outcome.record, outcome.log, state, outcome.ran_out_of_memory
    print(final_line(outcome.verdict, job, attempt, *found), file=sys.stderr, flush=True)


class Peers(Protocol):
    """The launchers of an elastic job's other nodes."""

    def is_to_end(self) -> bool:
        """Whether the ranks that run now are to be ended."""

    def leave(self, code: int, cause: str) -> None:
        """Tell that this launcher was told to end."""


class Supervisor:
    """Runs one attempt.

    `port`: where rank 0 listens. restarts: attempts before this one that failed; None: all did.
    peers: of an elastic job, whose next attempt may fork its ranks from the same process (`forks`).
    Only in the main thread of a launcher process.
    """

    def __init__(
        self,
        settings: Settings,
        env: Mapping[str, str],
        attempt: int,
        port: int,
        restarts: int | None = None,
        peers: Peers | None = None,
        forks: Forks | None = None,
    ) -> None:
        self._restarts = attempt - 1 if restarts is None else restarts
        self._peers = peers
        self._settings = settings
        self._env = env
        self._attempt = attempt
        self._port = port
        self._token = env.get("ONEFLOW_JOB_TOKEN") or self._new_token()
        self._ranks: dict[int, int] = {}  # by pid
        self._running: set[int] = set()
        self.forks = forks
        self._records = self._exited_dir = Path()
        self._signals: list[int] = []
        self._not_ours = descendants(os.getpid())  # what ran below us before the job
        is_shared = settings.nproc_per_node > 1
        self._threads = share_of_processors(settings.nproc_per_node) if is_shared else None
        self._machine = Supervision(settings.nproc_per_node, settings.grace_period)

    def run(self) -> Outcome:
        """Starts the ranks and returns when every process of the job has ended."""
        oom_kills = num_oom_kills()
        with tempfile.TemporaryDirectory(prefix="oneflow-launch-") as records, _wake_ups() as wake:
            pump = Pump()
            with self._signals_are_noted():
                try:
                    self._start(Path(records), pump, wake)
                    self._machine.expect(len(self._ranks))
                    verdict = self._watch(wake)
                finally:
                    self._kill_leftovers()
                    pump.finish()
            rank = verdict.cause.rank if verdict.cause else None
            record = None if rank is None else read_error(_record_path(Path(records), rank))
        log = None if rank is None else self._log_path(rank)
        return Outcome(verdict, record, log, num_oom_kills() > oom_kills)

    # -- starting ----------------------------------------------------------------------------------

    def _start(self, records: Path, pump: Pump, wake: selectors.BaseSelector) -> None:
        self._records, self._exited_dir = records, _exited_dir(records)
        self._exited_dir.mkdir()
        try:
            self._prepare_forks(records, wake)
            for local_rank in range(self._settings.nproc_per_node):
                if self._signals:
                    break
                with self._streams(local_rank, pump) as streams:
                    pid = self._start_rank(self._rank_env(local_rank, records), streams)
                self._ranks[pid] = self._rank_of(local_rank)
                self._running.add(pid)
        finally:
            if self._peers is None:
                self._forget_forks()
        pump.start()

    def _prepare_forks(self, records: Path, wake: selectors.BaseSelector) -> None:
        """Have the ranks of a script forked if there are, or may be later, several to import the
        same things.
        """
        settings = self._settings
        is_single = settings.nproc_per_node == 1 and self._peers is None
        if is_single or settings.no_python or settings.no_fork:
            return
        if self.forks is not None and self.forks.is_alive():
            return
        self._forget_forks()
        python, script = self._argv()
        self.forks = Forks(([*python, "--fork"], script), self._rank_env(0, records))
        self._not_ours.append(self.forks.pid)
        if not self.forks.wait_ready(wake, lambda: not self._signals):
            self._forget_forks()

    def _forget_forks(self) -> None:
        if self.forks is not None:
            self.forks.close()
            self.forks = None

    def _start_rank(self, env: Mapping[str, str], streams: Mapping[int, int]) -> int:
        """Return its pid. Raises ConfigError if it cannot be run."""
        python, script = self._argv()
        argv = [*python, *script]
        try:
            if self.forks is not None:
                return self.forks.fork(env, streams)
            process = spawn(argv, env, *(streams.get(number) for number in range(3)))
        except OSError as error:
            raise ConfigError(f"cannot run {argv[0]!r}: {error.strerror or error}") from None
        process.returncode = 0  # its end is ours to see, by its pid: Popen shall not wait for it
        return process.pid

    @contextmanager
    def _streams(self, local_rank: int, pump: Pump) -> Iterator[dict[int, int]]:
        """Return the streams of a rank that are not ours, by their numbers: nowhere, files, or
        pipes to the pump.
        """
        with ExitStack() as opened:
            streams = {} if local_rank == 0 else {0: _nowhere(opened)}
            for number in (STDOUT, STDERR):
                target = self._output(local_rank, number, pump, opened)
                if target is not None:
                    streams[number] = target
            yield streams

    def _output(self, local_rank: int, number: int, pump: Pump, opened: ExitStack) -> int | None:
        """Return the descriptor that a rank writes an output to; None: ours."""
        settings = self._settings
        chosen, template = settings.local_ranks_filter, settings.log_line_prefix_template
        is_shown = not chosen or local_rank in chosen
        has_tee = settings.tee.has(local_rank, number)
        if not is_shown if has_tee else settings.redirects.has(local_rank, number):
            return opened.enter_context(self._log_file(local_rank, number)).fileno()
        if not is_shown:
            return _nowhere(opened)
        if not has_tee and not template:
            return None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, writing)
        copy = self._log_file(local_rank, number) if has_tee else None
        prefix = line_prefix(template, self._rank_of(local_rank), local_rank)
        pump.add(reading, number, prefix, copy)
        return writing

    def _log_file(self, local_rank: int, number: int) -> FileIO:
        folder, name = self._log_folder(local_rank), STREAM_NAMES[number]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return FileIO(folder / name, "wb")
        except OSError as error:
            raise ConfigError(
                f"--logdir {self._settings.logdir!r}: cannot write {str(folder / name)!r}: "
                f"{error.strerror}; choose another folder"
            ) from None

    def _argv(self) -> tuple[list[str], list[str]]:
        """Return the program that runs a script, and the script with its arguments."""
        settings = self._settings
        script = [settings.script, *settings.script_args]
        if settings.no_python:
            return [], script
        module = ["-m"] if settings.module else []
        return [sys.executable, "-u", str(bootstrap_path())], [*module, *script]

    def _rank_env(self, local_rank: int, records: Path) -> dict[str, str]:
        settings, rank = self._settings, self._rank_of(local_rank)
        place = RankPlace(
            master_addr=settings.master_addr,
            master_port=self._port,
            world_size=settings.world_size,
            rank=rank,
            local_rank=local_rank,
            attempt=self._attempt,
            log_dir=self._log_folder(local_rank),
            error_file=_record_path(records, rank),
            exited_dir=_exited_dir(records),
            token=self._token,
            threads=self._threads,
            rdzv_timeout_s=settings.rdzv_timeout,
            job_id=settings.rdzv_id or None,
        )
        env = rank_env(self._env, place)
        return env | elastic_env(settings, rank, self._restarts)

    def _new_token(self) -> str | None:
        """256 random bits; with several nodes nobody could tell the others, so they bring their
        own.
        """
        return secrets.token_hex(32) if self._settings.num_nodes == 1 else None

    def _rank_of(self, local_rank: int) -> int:
        return self._settings.node_rank * self._settings.nproc_per_node + local_rank

    def _log_folder(self, local_rank: int) -> Path:
        return Path(self._settings.logdir) / f"local_rank_{local_rank}"

    def _log_path(self, rank: int) -> str | None:
        settings = self._settings
        local_rank = rank - settings.node_rank * settings.nproc_per_node
        if not any(kind.has(local_rank, STDERR) for kind in (settings.redirects, settings.tee)):
            return None
        return str((self._log_folder(local_rank) / "stderr").resolve())

    # -- watching ----------------------------------------------------------------------------------

    def _watch(self, wake: selectors.BaseSelector) -> Verdict:
        while True:
            for event in self._events():
                for action in self._machine.step(event, time.monotonic()):
                    if isinstance(action, Verdict):
                        return action
                    self._perform(action)
            self._wait(wake)

    def _events(self) -> Iterator[Exited | Signalled | Looked | ToldToEnd]:
        for pid, status in reap():
            if pid in self._ranks:
                self._running.discard(pid)
                if status == 0:
                    self._tell_the_others(self._ranks[pid])
                yield Exited(self._ranks[pid], pid, status)
        while self._signals:
            signum = self._signals.pop(0)
            if self._peers is not None:
                name = signal.Signals(signum).name
                self._peers.leave(128 + signum, f"the launcher of node 0 got {name}")
            yield Signalled(signum)
        if self._peers is not None and self._peers.is_to_end():
            yield ToldToEnd()
        yield Looked(self._num_alive(), self._has_told())

    def _has_told(self) -> bool:
        """Asked while nobody but followers has ended. A rank that has told may yet need a while to
        exit, or stand still.
        """
        if self._machine.phase is not Phase.SETTLING:
            return False
        running = (self._ranks[pid] for pid in self._running)
        return any(_record_path(self._records, rank).exists() for rank in running)

    def _num_alive(self) -> int:
        """Costs a walk through /proc, so only once the ranks themselves are to end."""
        is_ending = self._machine.phase in (Phase.STOPPING, Phase.KILLING)
        return len(self._alive()) if is_ending else len(self._ranks)

    def _alive(self) -> list[int]:
        return descendants(os.getpid(), besides=self._not_ours)

    def _tell_the_others(self, rank: int) -> None:
        """That `rank` exited 0: a rank that waits for it to join would not hear of it."""
        try:
            note_exited(self._exited_dir, rank)
        except OSError as error:  # a full disk must not end a job that may be fine
            print(f"oneflow: cannot tell that rank {rank} exited 0: {error}", file=sys.stderr)

    def _perform(self, action: SendSignal | DumpStacks) -> None:
        if isinstance(action, SendSignal):
            pids = self._alive()
            send_signal(pids, action.signum)
            send_signal(pids, signal.SIGCONT)  # one that is stopped could not heed it
        elif not self._settings.no_python:  # another program would only die of it
            send_signal(self._running, DUMP_SIGNAL)

    def _wait(self, wake: selectors.BaseSelector) -> None:
        is_running = self._machine.phase is Phase.RUNNING
        limit_s = self._settings.monitor_interval if is_running else STOPPING_LOOK_S
        for key, _ in wake.select(max(limit_s, 0.001)):
            os.read(key.fd, 4096)

    def _kill_leftovers(self) -> None:
        """Only after an error of our own: a normal end leaves nothing."""
        send_signal(self._alive(), signal.SIGKILL)
        reap()

    @contextmanager
    def _signals_are_noted(self) -> Iterator[None]:
        def note(signum: int, frame: object) -> None:
            self._signals.append(signum)

        # One that is ignored stays so: nohup and background jobs of a shell mean it.
        heeded = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        before = {signum: signal.signal(signum, note) for signum in heeded}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _nowhere(opened: ExitStack) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    opened.callback(os.close, null)
    return null


@contextmanager
def _wake_ups() -> Iterator[selectors.BaseSelector]:
    """A selector that becomes readable with every signal, so that waiting ends at once."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    selector = selectors.DefaultSelector()
    selector.register(reading, selectors.EVENT_READ)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield selector
    finally:
        signal.set_wakeup_fd(before)
        selector.close()
        os.close(reading)
        os.close(writing)


def _record_path(records: Path, rank: int) -> Path:
    return records / f"rank{rank}.json"


def _exited_dir(records: Path) -> Path:
    return records / "exited"
