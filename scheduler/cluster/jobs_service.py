"""The service that users call: submit jobs and see what becomes of them."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from oneflow.core.control_channel import CHUNK_NBYTES
from oneflow.core.errors import JobSpecError, ProtocolError
from oneflow.core.rpc import CallContext
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.audit import Audit
from oneflow.scheduler.cluster.auth import Caller, caller
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.data_roots import check_checkpoint_dir
from oneflow.scheduler.cluster.debugging import Debugger
from oneflow.scheduler.cluster.driver import Driver, by_id
from oneflow.scheduler.cluster.lines import Line, Lines
from oneflow.scheduler.cluster.logs import LogRelay, Wanted
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.plans import Plans
from oneflow.scheduler.cluster.points import Paces, Points
from oneflow.scheduler.cluster.refusals import (
    DeniedError,
    ExhaustedError,
    ExistsError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from oneflow.scheduler.cluster.tracing import Tracer
from oneflow.scheduler.jobs.events import CancelAsked, RemoveAsked, RestartAsked, Submitted
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import REASONS, JobKind, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.specs import check_job_id, check_spec, record_to_proto, spec_from_proto

SUBMIT = "/oneflow.Jobs/Submit"
FILTERS = ("state", "name", "owner", "kind", "reason", "device_type")
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_FILTER_CHARS = 1024
MAX_OUTPUT_NAME = 300
INFER_S = 60.0
MAX_INFER_S = 3600.0
OUTPUT_IDLE_S = 30.0


class JobsService(cluster_pb2_grpc.JobsServicer):
    """Every method's rights are in auth.py; what belongs to another user is guarded here.

    check_still: raises AuthError if the caller of a method may not call it any more.
    """

    def __init__(
        self,
        driver: Driver,
        lines: Lines,
        blobs: Blobs,
        plans: Plans,
        points: Points,
        paces: Paces,
        audit: Audit,
        metrics: ClusterMetrics,
        spool_dir: Path,
        allow_scripts: bool,
        is_stopping: Callable[[], bool],
        check_still: Callable[[str, Caller], None],
    ) -> None:
        self._driver, self._lines, self._blobs = driver, lines, blobs
        self._plans, self._points, self._audit = plans, points, audit
        self._metrics, self._spool_dir, self._paces = metrics, spool_dir, paces
        self._allow_scripts, self._is_stopping = allow_scripts, is_stopping
        self._check_still = check_still
        self._submitting: dict[str, asyncio.Event] = {}  # by job id; set when it is done
        self._logs = LogRelay(driver, lines)
        self._debugger = Debugger(driver, lines)
        self._tracer = Tracer(driver, lines)

    # -- submitting --------------------------------------------------------------------------------

    async def Submit(self, request: pb.SubmitRequest, context: CallContext) -> pb.JobRecord:
        who = caller()
        spec = spec_from_proto(request.spec)
        job_id = request.job_id or _new_id()
        async with self._alone(job_id):
            is_known = job_id in self._driver.jobs
            try:
                check_job_id(job_id)
                check_spec(spec)
                if not is_known:
                    await self._judge(spec, who)
            except (JobSpecError, RefusedError):
                self._metrics.rejected_jobs["spec"] += 1
                raise
            self._check_still(SUBMIT, who)
            await self._submit(job_id, spec, who)
            if not is_known:
                details = {"job": job_id, "kind": spec.kind.value, "name": spec.name}
                self._audit.note("submit", who.name, who.peer, **details, devices=spec.devices)
        record = self._driver.job(job_id)
        self._plans.prepare(record)
        return self._shown(record)

    @asynccontextmanager
    async def _alone(self, job_id: str) -> AsyncIterator[None]:
        """One submission of an id after another: whoever comes second finds the first one's job."""
        while (other := self._submitting.get(job_id)) is not None:
            await other.wait()
        done = self._submitting[job_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._submitting[job_id]
            done.set()

    async def _judge(self, spec: JobSpec, who: Caller) -> None:
        self._check_takeable(spec)
        await check_checkpoint_dir(spec, self._lines.all())
        await self._plans.check(spec, who.name)
        self._check_takeable(spec)  # that may have taken a minute

    def _check_takeable(self, spec: JobSpec) -> None:
        if self._is_stopping():
            raise UnavailableError("the scheduler is about to stop: submit again when it is back")
        if spec.kind is JobKind.SCRIPT and not self._allow_scripts:
            raise DeniedError(
                "this cluster takes no script jobs; its operator may allow them with "
                "--allow-scripts"
            )
        longest_s = self._driver.table.settings.max_time_limit_s
        if longest_s and spec.time_limit_s > longest_s:
            raise JobSpecError(
                f"time_limit_s={spec.time_limit_s:g}: this cluster allows {longest_s:g} seconds"
            )
        for digest in (spec.archive, spec.graph):
            if digest and digest not in self._blobs:
                raise RefusedError(f"there is no file {digest}: upload it first")

    async def _submit(self, job_id: str, spec: JobSpec, who: Caller) -> None:
        key = secrets.token_hex(32)
        refusal = await self._driver.ask(Submitted(job_id, spec, who.name, key, time.time()))
        if refusal is None:
            return
        if job_id in self._driver.table.jobs:
            raise ExistsError(refusal.message)
        raise ExhaustedError(refusal.message)

    # -- looking -----------------------------------------------------------------------------------

    async def Get(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        return self._shown(self._driver.job(request.job_id))

    async def List(self, request: pb.ListRequest, context: CallContext) -> pb.ListReply:
        wanted = _filters(request.filters)
        limit = min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)
        after = _parse_cursor(request.cursor)
        found = []
        for record in by_id(self._driver.jobs):
            if after is not None and (record.submitted_at, record.id) >= after:
                continue
            if _matches(record, wanted):
                found.append(record)
                if len(found) > limit:
                    break
        cursor = _cursor(found[limit - 1]) if len(found) > limit else ""
        return pb.ListReply(jobs=[self._shown(record) for record in found[:limit]], cursor=cursor)

    async def Watch(
        self, request: pb.JobRequest, context: CallContext
    ) -> AsyncIterator[pb.JobRecord]:
        self._driver.job(request.job_id)
        async for record in self._driver.watch(request.job_id):
            yield self._shown(record)
            if record.state.is_final:
                return
        raise NotFoundError(f"job {request.job_id} was removed")

    async def Metrics(
        self, request: pb.MetricsRequest, context: CallContext
    ) -> AsyncIterator[pb.MetricPoint]:
        self._driver.job(request.job_id)
        start: int = getattr(request, "from")
        async for point in self._points.read(request.job_id, start, request.follow):
            yield point

    async def Logs(
        self, request: pb.LogsRequest, context: CallContext
    ) -> AsyncIterator[pb.LogPiece]:
        async for piece in self._logs.read(request.job_id, Wanted.parse(request)):
            yield piece

    # -- changing ----------------------------------------------------------------------------------

    async def Cancel(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        who = self._owner("cancel", request.job_id)
        await self._ask(CancelAsked(request.job_id, who.name, time.time()))
        return self._shown(self._driver.job(request.job_id))

    async def Restart(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        who = self._owner("restart", request.job_id)
        await self._ask(RestartAsked(request.job_id, who.name, time.time()))
        return self._shown(self._driver.job(request.job_id))

    async def Remove(self, request: pb.JobRequest, context: CallContext) -> pb.Empty:
        self._owner("remove", request.job_id)
        await self._ask(RemoveAsked(request.job_id))
        return pb.Empty()

    async def _ask(self, event: CancelAsked | RestartAsked | RemoveAsked) -> None:
        refusal = await self._driver.ask(event)
        if refusal is not None:
            kind = NotFoundError if refusal.reason == "unknown" else RefusedError
            raise kind(refusal.message)

    def _owner(self, verb: str, job_id: str) -> Caller:
        """The caller, who may change this job. Raises NotFoundError, DeniedError."""
        who, record = caller(), self._driver.job(job_id)
        if not who.is_admin and record.owner != who.name:
            raise DeniedError(
                f"job {job_id} belongs to {record.owner!r}: only that token or an admin may "
                f"{verb} it"
            )
        self._audit.note(verb, who.name, who.peer, job=job_id)
        return who

    # -- data --------------------------------------------------------------------------------------

    async def Upload(
        self, request_iterator: AsyncIterator[pb.BlobChunk], context: CallContext
    ) -> pb.BlobInfo:
        return await self._blobs.upload(request_iterator)

    async def FindBlob(self, request: pb.BlobInfo, context: CallContext) -> pb.BlobInfo:
        return await self._blobs.find(request.digest)

    async def Infer(self, request: pb.InferRequest, context: CallContext) -> pb.InferReply:
        record = self._driver.job(request.job_id)
        if record.spec.kind is not JobKind.INFERENCE:
            raise RefusedError(f"job {record.id} is a {record.spec.kind} job: it answers nothing")
        if record.state.is_final:
            raise RefusedError(f"job {record.id} is {record.state}")
        if record.state is not JobState.RUNNING:
            raise UnavailableError(f"job {record.id} is {record.state}: try again soon")
        timeout_s = request.timeout_s or INFER_S
        if not 0 < timeout_s <= MAX_INFER_S:
            raise ProtocolError(f"timeout_s={timeout_s:g}: must be at most {MAX_INFER_S:g}")
        line = self._lines.current(record.assignments[0].daemon)
        if line is None:
            raise UnavailableError(f"rank 0 of job {record.id} is not reachable now")
        id_ = attempt_id(record, 0)
        data = await line.infer(pb.Infer(id=id_, inputs=request.inputs), timeout_s)
        if data.error:
            raise RefusedError(data.error)
        return pb.InferReply(outputs=data.outputs)

    async def Outputs(
        self, request: pb.OutputRequest, context: CallContext
    ) -> AsyncIterator[pb.BlobChunk]:
        record = self._driver.job(request.job_id)
        if len(request.name) > MAX_OUTPUT_NAME:
            raise ProtocolError("the name of an output is not so long")
        line = self._home(record, request.rank)
        wire = pb.ReadFile(job_id=record.id, name=request.name, life=record.life)
        async for data in line.read_file(wire, self._spool_dir, OUTPUT_IDLE_S):
            for start in range(0, len(data), CHUNK_NBYTES):
                yield pb.BlobChunk(data=data[start : start + CHUNK_NBYTES])

    async def Debug(
        self, request: pb.DebugRequest, context: CallContext
    ) -> AsyncIterator[pb.DebugPiece]:
        self._owner("debug", request.job_id)
        async for piece in self._debugger.read(request):
            yield piece

    async def Trace(self, request: pb.TraceRequest, context: CallContext) -> pb.TraceReply:
        if request.order.what != "look":  # who waits for the end looks often
            self._owner("trace", request.job_id)
        return await self._tracer.trace(request)

    def _home(self, record: JobRecord, rank: int) -> Line:
        """A daemon of the node where a rank keeps what it makes."""
        if not record.assignments:
            raise RefusedError(f"job {record.id} has not run yet: it has no outputs")
        if rank >= len(record.assignments):
            raise RefusedError(f"job {record.id} has no rank {rank}")
        place = record.assignments[rank]
        line = self._lines.on_node(place.node, place.daemon)
        if line is None:
            raise UnavailableError(f"no daemon of node {place.node}, where they are, is connected")
        return line

    def _shown(self, record: JobRecord) -> pb.JobRecord:
        """Return the record as this caller may see it: others' commands and environments may hold
        their secrets.
        """
        message = record_to_proto(record)
        who = caller()
        if not who.is_admin and who.name != record.owner:
            for name in message.spec.env:
                message.spec.env[name] = HIDDEN
            message.spec.argv[:] = masked_words(record.spec.argv)
        note = self._plans.progress(record)
        if note:
            message.pending = note
        message.eta_s = self._paces.eta_s(record)
        for w in self._points.waits.of(record.id):
            message.waits.add(rank=w.rank, waiting=w.waiting, shares=w.shares)
        return message


# ---- lists ---------------------------------------------------------------------------------------


def _filters(given: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """name -> values of which a job must have one. Raises ProtocolError."""
    for key, value in given.items():
        if key not in FILTERS:
            raise ProtocolError(f"filter {key[:40]!r}: must be one of {', '.join(FILTERS)}")
        if len(value) > MAX_FILTER_CHARS:
            raise ProtocolError(f"filter {key}: too long")
    wanted = {key: frozenset(value.split(",")) for key, value in given.items()}
    if "state" in wanted:
        wanted["state"] = _known("state", wanted["state"], [state.value for state in JobState])
    if "reason" in wanted:
        wanted["reason"] = _known("reason", wanted["reason"], REASONS)
    return wanted


def _known(key: str, given: frozenset[str], there_are: Sequence[str]) -> frozenset[str]:
    values = frozenset(value.upper() for value in given)
    unknown = sorted(values - set(there_are))
    if unknown:
        raise ProtocolError(
            f"filter {key}={unknown[0][:40]}: must be one of {', '.join(there_are)}"
        )
    return values


def _matches(record: JobRecord, wanted: Mapping[str, frozenset[str]]) -> bool:
    spec = record.spec
    facts = {
        "state": record.state.value,
        "name": spec.name,
        "owner": record.owner,
        "kind": spec.kind.value,
        "reason": record.reason,
        "device_type": spec.device_type,
    }
    return all(facts[key] in values for key, values in wanted.items())


def _cursor(record: JobRecord) -> str:
    return base64.urlsafe_b64encode(f"{record.submitted_at!r}/{record.id}".encode()).decode()


def _parse_cursor(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    try:
        at, _, job_id = base64.urlsafe_b64decode(text[:400]).decode().partition("/")
        return float(at), job_id
    except ValueError:
        raise ProtocolError("that is no cursor of a list of jobs") from None


def _new_id() -> str:
    return "j" + secrets.token_hex(4)


# ---- secrets in commands -------------------------------------------------------------------------


HIDDEN = "***"
MAX_WORD_CHARS = 4096  # of a longer word the rest is hidden, whatever it is
MAX_NAME_CHARS = 256
_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "credential", "credentials")
_KEYS = ("key", "apikey", "accesskey", "secretkey", "privatekey")
_PARTS = re.compile(r"[-_.]+")
_URL = re.compile(r"(://[^/\s:@]{0,256}:)[^/\s@]{1,1024}@")
_KNOWN = re.compile(  # secrets that say themselves what they are
    r"\b(?:oft_|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[baprs]-|AKIA)[\w-]{8,}|"
    r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*",
    re.DOTALL,
)


def masked_words(argv: Iterable[str]) -> list[str]:
    """The words of a command; the value after a flag that is named like a secret goes too."""
    found: list[str] = []
    hides_next = False
    for word in argv:
        is_value = hides_next and not word.startswith("--")
        found.append(HIDDEN if is_value else masked(word))
        hides_next = not is_value and word.startswith("-") and is_secret_name(word)
    return found


def masked(word: str) -> str:
    """One word, without the secret in it."""
    if len(word) > MAX_WORD_CHARS:
        word = word[:MAX_WORD_CHARS] + HIDDEN
    name, equals, _ = word.partition("=")
    if equals and is_secret_name(name):
        return f"{name}={HIDDEN}"
    return _KNOWN.sub(HIDDEN, _URL.sub(rf"\g<1>{HIDDEN}@", word))


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name most likely holds a secret."""
    parts = _PARTS.split(name[:MAX_NAME_CHARS].lower())
    return any(part.endswith(_ENDINGS) or part in _KEYS for part in parts)
