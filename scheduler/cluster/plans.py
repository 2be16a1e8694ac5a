"""Plans of graph jobs: compiled once for a job file and a set of devices, and kept as blobs.

The compiler works elsewhere (compiler.py), one graph at a time, owners in turn. Daemons are told to
prepare when the plan is there, so a gang never waits for one rank that compiles. A graph
that cannot be compiled fails the job with the compiler's words.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from oneflow import __version__
from oneflow.core.errors import ConfigError, JobSpecError, OneFlowError, StoreError
from oneflow.core.folders import write_private
from oneflow.core.job_config import NO_OVERRIDES
from oneflow.core.log import facts, get_logger
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.blobs import DIGEST, Blobs
from oneflow.scheduler.cluster.compiler import (
    CompileLimitError,
    CompilerLostError,
    Compilers,
    FileRefusedError,
)
from oneflow.scheduler.cluster.refusals import UnavailableError
from oneflow.scheduler.jobs.events import Event, Heard, TellPrepare
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState

MAX_PLANS = 10_000
PLANS_FILE = "plans.json"
LIMITED_S = 300.0  # what passed a limit is not tried again for so long: the machine may be busy
CHECK_QUEUE_S = 30.0  # a submission waits so long for the files of others to be judged

log = get_logger(__name__)


@dataclass(frozen=True)
class _Failure:
    """A failure to make a plan, remembered for a while. until: it is taken for true so long,
    time.monotonic.
    """

    reason: str
    message: str
    exit_code: int = 0  # as the reason means
    until: float = math.inf

    @classmethod
    def of(cls, error: OneFlowError) -> _Failure:
        now = time.monotonic()
        kind = error.kind if isinstance(error, FileRefusedError) else type(error).__name__
        said = f"{kind}: {error}"
        match error:
            case StoreError():
                return cls("DISK_FULL", said, until=now)  # it may work another time
            case CompilerLostError():
                return cls(error.reason, said, until=now)
            case CompileLimitError():
                return cls(error.reason, str(error), error.exit_code, now + LIMITED_S)
        return cls(error.reason, said, error.exit_code)


@dataclass
class _Compile:
    """One that is under way. waiting: messages to daemons when it is done.  jobs: ids of those
    that need it.
    """

    devices: int
    started: float = field(default_factory=time.monotonic)
    where: str = "waits for the compiler"
    waiting: dict[tuple[str, int, int], TellPrepare] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)

    def progress(self, name: str, done: int, total: int) -> None:
        self.where = f"pass {done} of {total} done ({name})"


class Plans:
    """The plans of jobs: made once per pattern of hosts, kept, and told to daemons.

    compiler: None takes every job file, and leaves plans to rank 0 of each job. tell: of the
    driver. send: tells a daemon to prepare, with the digest of a plan or "". is_wanted: whether
    that is still to be told. is_live: whether a job may yet run.
    """

    def __init__(
        self,
        folder: Path,
        blobs: Blobs,
        compiler: Compilers | None,
        tell: Callable[[Event], None],
        send: Callable[[TellPrepare, str], None],
        is_wanted: Callable[[TellPrepare], bool],
        is_live: Callable[[str], bool] = lambda job_id: True,
    ) -> None:
        self._path, self._blobs, self._compiler = folder / PLANS_FILE, blobs, compiler
        self._tell, self._send, self._is_wanted = tell, send, is_wanted
        self._is_live = is_live
        self._digests = _load(self._path)
        self._last_key: tuple[JobRecord | None, str] = None, ""
        self._under_way: dict[str, _Compile] = {}
        self._failed: dict[str, _Failure] = {}
        self._fitting: dict[tuple[object, ...], int] = {}  # files, as what they fit -> most steps
        self._thread = ThreadPoolExecutor(1, "oneflow-compiler")
        self._checker = ThreadPoolExecutor(1, "oneflow-checker")
        self._compiling, self._judging = Turns(), Turns()
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def of_graphs(self, graphs: Iterable[str]) -> set[str]:
        """Digests of the plans of these job files."""
        named = set(graphs)
        return {plan for key, plan in self._digests.items() if key.partition(":")[0] in named}

    def graphs_of(self, plan: str) -> set[str]:
        """Digests of the job files of which this is a plan."""
        return {key.partition(":")[0] for key, found in self._digests.items() if found == plan}

    def close(self) -> None:
        """Stop; a compile under way is nobody's failure and is done again by the next scheduler."""
        self._is_closed = True
        for thread in (self._thread, self._checker):
            thread.shutdown(wait=False, cancel_futures=True)

    # -- jobs --------------------------------------------------------------------------------------

    async def check(self, spec: JobSpec, owner: str) -> None:
        """Check the file of a job before the job is accepted. Raises JobSpecError for a file that
        cannot be run as asked.
        """
        compiler = self._compiler
        if compiler is None or spec.kind is JobKind.SCRIPT:
            return
        for devices in range(spec.devices, spec.most + 1):
            await self._check_size(compiler, spec, devices, owner)

    async def _check_size(
        self, compiler: Compilers, spec: JobSpec, devices: int, owner: str
    ) -> None:
        """Check the file of a job for one of the numbers of devices that it may run on."""
        path, steps = self._blobs.path(spec.graph), spec.steps
        place = path, spec.kind.value, devices, spec.device_type
        if (*place, steps) in self._fitting or 0 < steps <= self._fitting.get(place, 0):
            return  # a file of that digest is what it was
        try:
            most = await self._judge(partial(compiler.check_fit, *place, steps), owner)
        except (CompilerLostError, UnavailableError):
            raise
        except OneFlowError as error:
            said = str(error).replace(str(path.absolute()), "the job file")
            raise JobSpecError(f"this job cannot run: {said}") from None
        self._fitting |= {place: most, (*place, steps): 0}
        _forget_oldest(self._fitting)

    async def _judge(self, check: Callable[[], int], owner: str) -> int:
        """One after another, in a thread that nothing else needs."""
        try:
            async with self._judging.turn(owner, CHECK_QUEUE_S):
                if self._is_closed:
                    raise UnavailableError("the scheduler stops: submit again when it is back")
                return await asyncio.get_running_loop().run_in_executor(self._checker, check)
        except asyncio.TimeoutError:
            raise UnavailableError("the scheduler is busy with other files: try again") from None

    def prepare(self, record: JobRecord) -> None:
        """Compiles ahead, while the job waits for its devices, as if all were on one host."""
        key = _key(record, ())
        is_waiting = not record.state.is_final and not record.assignments
        if self._is_ours(record) and is_waiting and not self._plan_of(key):
            self._begin(record, key)

    def tell_prepare(self, action: TellPrepare) -> None:
        """Tells a daemon to prepare as soon as the plan is there."""
        record = action.record
        if not self._is_ours(record):
            self._send(action, "")
            return
        key = self._key_of(record)
        if plan := self._plan_of(key):
            self._send(action, plan)
        elif (failure := self._failed.get(key)) and time.monotonic() < failure.until:
            self._refuse(action, failure)
        else:
            compile_ = self._begin(record, key)
            compile_.waiting[record.id, record.attempt, action.rank] = action

    def progress(self, record: JobRecord) -> str:
        """Return the reason shown for a job that is queued behind the compiler, or ""."""
        if record.state not in (JobState.QUEUED, JobState.STARTING) or not self._under_way:
            return ""
        found = self._under_way.get(_key(record, record.assignments))
        if found is None or (record.state is JobState.QUEUED and record.pending):
            return ""
        passed_s = time.monotonic() - found.started
        return f"compiling for {found.devices} devices: {found.where}, {passed_s:.1f} s"

    def plan_of(self, record: JobRecord) -> str:
        """Return the digest of the plan that a job's ranks run; "" if there is none here."""
        if not self._is_ours(record) or not record.assignments:
            return ""
        return self._plan_of(_key(record, record.assignments))

    def waiting(self) -> set[str]:
        """Ids of jobs that wait for the compiler with devices in hand."""
        compiles = self._under_way.values()
        return {job_id for compile_ in compiles for job_id, _, _ in compile_.waiting}

    def _key_of(self, record: JobRecord) -> str:
        """Return the key of an attempt's plan: found once for all its ranks, as it names all."""
        if self._last_key[0] is not record:
            self._last_key = record, _key(record, record.assignments)
        return self._last_key[1]

    def _is_ours(self, record: JobRecord) -> bool:
        return self._compiler is not None and record.spec.kind is not JobKind.SCRIPT

    def _plan_of(self, key: str) -> str:
        """The plan's digest; "" if there is none yet, or its bytes are gone."""
        plan = self._digests.get(key, "")
        return plan if plan in self._blobs else ""

    # -- compiling ---------------------------------------------------------------------------------

    def _begin(self, record: JobRecord, key: str) -> _Compile:
        found = self._under_way.get(key)
        if found is None:
            found = self._under_way[key] = _Compile(_num_ranks(record, record.assignments))
            hosts = _pattern(record.assignments)
            task = asyncio.ensure_future(self._compile(key, found, record, hosts))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found.jobs.add(record.id)
        return found

    async def _compile(
        self, key: str, compile_: _Compile, record: JobRecord, hosts: tuple[str, ...]
    ) -> None:
        plan, failure = "", None
        try:
            loop = asyncio.get_running_loop()
            async with self._compiling.turn(record.owner):
                if self._is_closed or not any(map(self._is_live, compile_.jobs)):
                    self._under_way.pop(key, None)
                    return  # nobody waits for it any more
                plan = await loop.run_in_executor(self._thread, self._work, compile_, record, hosts)
                await self._keep(key, plan)
        except OneFlowError as error:
            failure = _Failure.of(error)
        except Exception as error:  # a fault of ours: rank 0 may do better, or say more
            log.error("the compiler failed for job %s", record.id, exc_info=error)
        if self._is_closed:
            return
        del self._under_way[key]
        self._failed.pop(key, None)
        if failure is not None:
            self._failed[key] = failure
            _forget_oldest(self._failed)
        for action in compile_.waiting.values():
            if not self._is_wanted(action):
                continue  # it was cancelled meanwhile: the daemon must never begin it
            if failure is not None:
                self._refuse(action, failure)
            else:
                self._send(action, plan)

    def _work(self, compile_: _Compile, record: JobRecord, hosts: tuple[str, ...]) -> str:
        """Compile in the compiler's thread. Returns the plan's digest."""
        if self._compiler is None:
            return ""
        spec, started = record.spec, time.monotonic()
        compile_.started = started
        compile_.where = "reading the job file"
        path = self._blobs.path(spec.graph)
        compile_plan = self._compiler.compile_plan
        place = path, compile_.devices, spec.device_type, hosts
        data = compile_plan(*place, compile_.progress, spec.overrides)
        seconds = time.monotonic() - started
        log.info("compiled job %s", record.id, extra=facts(seconds=seconds, nbytes=len(data)))
        return self._blobs.put(data)

    async def _keep(self, key: str, plan: str) -> None:
        self._digests[key] = plan
        _forget_oldest(self._digests)
        self._digests = {k: digest for k, digest in self._digests.items() if digest in self._blobs}
        await asyncio.to_thread(_save, self._path, self._digests)  # it waits for the disk

    def _refuse(self, action: TellPrepare, failure: _Failure) -> None:
        record = action.record
        refusal = pb.Prepared(
            id=attempt_id(record, action.rank),
            error=f"the graph cannot be compiled: {failure.message}",
            reason=failure.reason,
            exit_code=failure.exit_code,
        )
        message = pb.DaemonMessage(epoch=action.epoch, prepared=refusal)
        self._tell(Heard(record.assignments[action.rank].daemon, message))


def _pattern(assignments: Sequence[Assignment]) -> tuple[str, ...]:
    """Describe which ranks share a host, without naming hosts; () if all share one."""
    names: dict[str, str] = {}
    hosts = tuple(names.setdefault(a.node, f"n{len(names)}") for a in assignments)
    return hosts if len(names) > 1 else ()


def _num_ranks(record: JobRecord, assignments: Sequence[Assignment]) -> int:
    """Return the ranks of an attempt; before it has devices, as many as there may be."""
    return len(assignments) or record.spec.most


def _key(record: JobRecord, assignments: Sequence[Assignment]) -> str:
    spec = record.spec
    hosts = ",".join(_pattern(assignments))
    num_ranks = _num_ranks(record, assignments)
    place = f"{spec.graph}:{num_ranks}:{spec.device_type}:{hosts}:{__version__}"
    if spec.overrides == NO_OVERRIDES:
        return place
    return f"{place}:{spec.auto_parallel:d}:{spec.zero}:{spec.amp}"


def _forget_oldest(kept: dict[Any, Any]) -> None:
    while len(kept) > MAX_PLANS:
        del kept[next(iter(kept))]


def _load(path: Path) -> dict[str, str]:
    """A file that cannot be read is no loss: plans are compiled again."""
    try:
        found = json.loads(path.read_bytes())
        return {str(k): v for k, v in found.items() if isinstance(v, str) and DIGEST.fullmatch(v)}
    except (OSError, ValueError, AttributeError):
        return {}


def _save(path: Path, digests: dict[str, str]) -> None:
    try:
        write_private(path, json.dumps(digests))
    except ConfigError as error:
        log.warning("cannot keep the list of plans: %s", error)


# ---- turns ---------------------------------------------------------------------------------------


class Turns:
    """Those who wait are taken by owner in turn, each owner's in the order in which they came."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next owner first

    @asynccontextmanager
    async def turn(self, owner: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """Wait for the owner's turn, then hold it.

        patience_s: None waits for good. Raises asyncio.TimeoutError.
        """
        await self._wait(owner, patience_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: str, patience_s: float | None) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await asyncio.wait_for(turn, patience_s)
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was ours just now
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            while queue:
                turn = queue.popleft()
                if turn.done():
                    continue  # it waits no more
                if queue:
                    self._waiting[owner] = queue  # behind all others
                turn.set_result(None)
                return
        self._is_taken = False
