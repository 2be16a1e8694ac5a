"""The service that users call: submit jobs and follow them."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from oneflow.core.control_channel import CHUNK_NBYTES
from oneflow.core.errors import ProtocolError
from oneflow.core.rpc import CallContext
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.auth import Guard, caller
from oneflow.scheduler.cluster.changes import Changes
from oneflow.scheduler.cluster.logs import LogRelay, Wanted
from oneflow.scheduler.cluster.outputs import Outputs
from oneflow.scheduler.cluster.ranks import Ranks, check_command
from oneflow.scheduler.cluster.refusals import (
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from oneflow.scheduler.cluster.submissions import Submissions
from oneflow.scheduler.cluster.usage import Usage
from oneflow.scheduler.cluster.views import Views, masked_words
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import JobKind, JobState

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

INFER_S = 60.0
MAX_INFER_S = 3600.0


class JobsService(cluster_pb2_grpc.JobsServicer):
    """Every method's rights are in auth.py; changes.py guards the jobs of other users."""

    def __init__(self, state: State, guard: Guard) -> None:
        self._state = state
        self._submissions = Submissions(state, guard)
        self._views = Views(state)
        self._logs = LogRelay(state.driver, state.lines)
        self._ranks = Ranks(state.driver, state.lines)
        self._outputs, self._changes = Outputs(state), Changes(state)
        self._usage = Usage(state.driver)

    async def Submit(self, request: pb.SubmitRequest, context: CallContext) -> pb.JobRecord:
        return self._views.shown(await self._submissions.take(request))

    # -- looking -----------------------------------------------------------------------------------

    async def Get(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        return self._views.shown(self._state.driver.job(request.job_id))

    async def List(self, request: pb.ListRequest, context: CallContext) -> pb.ListReply:
        return self._views.page(request)

    async def Watch(
        self, request: pb.JobRequest, context: CallContext
    ) -> AsyncIterator[pb.JobRecord]:
        self._state.driver.job(request.job_id)
        async for record in self._state.driver.watch(request.job_id):
            yield self._views.shown(record)
            if record.state.is_final:
                return
        raise NotFoundError(f"job {request.job_id} was removed")

    async def Metrics(
        self, request: pb.MetricsRequest, context: CallContext
    ) -> AsyncIterator[pb.MetricPoint]:
        self._state.driver.job(request.job_id)
        start: int = getattr(request, "from")
        async for point in self._state.points.read(request.job_id, start, request.follow):
            yield point

    async def Logs(
        self, request: pb.LogsRequest, context: CallContext
    ) -> AsyncIterator[pb.LogPiece]:
        async for piece in self._logs.read(request.job_id, Wanted.parse(request)):
            yield piece

    async def Usage(self, request: pb.UsageRequest, context: CallContext) -> pb.UsageReply:
        return await self._usage.of(caller(), request)

    # -- changing ----------------------------------------------------------------------------------

    async def Cancel(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        return self._views.shown(await self._changes.cancel(request.job_id))

    async def Restart(self, request: pb.JobRequest, context: CallContext) -> pb.JobRecord:
        return self._views.shown(await self._changes.restart(request.job_id))

    async def Remove(self, request: pb.JobRequest, context: CallContext) -> pb.Empty:
        await self._changes.remove(request.job_id)
        return pb.Empty()

    async def Change(self, request: pb.ChangeRequest, context: CallContext) -> pb.JobRecord:
        is_held = request.is_held if request.HasField("is_held") else None
        priority = request.priority if request.HasField("priority") else None
        record = await self._changes.change(request.job_id, is_held, priority)
        return self._views.shown(record)

    # -- data --------------------------------------------------------------------------------------

    async def Upload(
        self, request_iterator: AsyncIterator[pb.BlobChunk], context: CallContext
    ) -> pb.BlobInfo:
        return await self._state.blobs.upload(request_iterator)

    async def FindBlob(self, request: pb.BlobInfo, context: CallContext) -> pb.BlobInfo:
        return await self._state.blobs.find(request.digest)

    async def Infer(self, request: pb.InferRequest, context: CallContext) -> pb.InferReply:
        record = self._state.driver.job(request.job_id)
        if record.spec.kind is not JobKind.INFERENCE:
            raise RefusedError(f"job {record.id} is a {record.spec.kind} job: it answers nothing")
        if record.state.is_final:
            raise RefusedError(f"job {record.id} is {record.state}")
        if record.state is not JobState.RUNNING:
            raise UnavailableError(f"job {record.id} is {record.state}: try again soon")
        timeout_s = request.timeout_s or INFER_S
        if not 0 < timeout_s <= MAX_INFER_S:
            raise ProtocolError(f"timeout_s={timeout_s:g}: must be at most {MAX_INFER_S:g}")
        line = self._state.lines.current(record.assignments[0].daemon)
        if line is None:
            raise UnavailableError(f"rank 0 of job {record.id} is not reachable now")
        question = pb.Infer(id=attempt_id(record, 0), inputs=request.inputs)
        data = await line.ask(question, pb.InferData, timeout_s)
        if data.error:
            raise RefusedError(data.error)
        return pb.InferReply(outputs=data.outputs)

    async def Outputs(
        self, request: pb.OutputRequest, context: CallContext
    ) -> AsyncIterator[pb.BlobChunk]:
        async for data in self._outputs.read(request.job_id, request.name, request.rank):
            for start in range(0, len(data), CHUNK_NBYTES):
                yield pb.BlobChunk(data=data[start : start + CHUNK_NBYTES])

    async def Debug(
        self, request: pb.DebugRequest, context: CallContext
    ) -> AsyncIterator[pb.DebugPiece]:
        self._changes.owner("debug", request.job_id)
        async for piece in self._ranks.debug(request):
            yield piece

    async def Exec(
        self, request: pb.ExecRequest, context: CallContext
    ) -> AsyncIterator[pb.ExecPiece]:
        self._state.driver.job(request.job_id)
        check_command(request)
        words = shlex.join(masked_words(request.argv))
        self._changes.owner("exec", request.job_id, rank=request.rank, command=words)
        async for piece in self._ranks.execute(request, self._state.settings.allow_scripts):
            yield piece

    async def Trace(self, request: pb.TraceRequest, context: CallContext) -> pb.TraceReply:
        if request.order.what != "look":  # who waits for the end looks often
            self._changes.owner("trace", request.job_id)
        return await self._ranks.trace(request)
