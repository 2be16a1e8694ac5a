"""The protocol over gRPC: GRPCInferenceService."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Protocol, TypeVar

import grpc
import numpy as np

from oneflow.kernels.array import Array
from oneflow.protos import open_inference_pb2 as pb
from oneflow.protos.open_inference_pb2_grpc import GRPCInferenceServiceServicer
from oneflow.serving.kserve.failures import Refusal
from oneflow.serving.kserve.repository import Version
from oneflow.serving.kserve.service import EXTENSIONS, Service
from oneflow.serving.kserve.values import Given, type_name
from oneflow.version import __version__

Q = TypeVar("Q")
A = TypeVar("A")


class Context(Protocol):
    """The parts of grpc.aio.ServicerContext that are used here."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the metadata that the client sent beside the request."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline."""

    async def abort(self, code: object, details: str) -> None:
        """End the call with a status; this raises."""


def _refusing(
    method: Callable[[Inference, Q, Context], Awaitable[A]],
) -> Callable[[Inference, Q, Context], Awaitable[A]]:
    """Check the key, and turn a Refusal into a status."""

    @wraps(method)
    async def call(self: Inference, request: Q, context: Context) -> A:
        try:
            self.check(context)
            return await method(self, request, context)
        except Refusal as refusal:
            code = getattr(grpc.StatusCode, refusal.code)
            await context.abort(code, str(refusal))
            raise  # abort has raised

    return call


class Inference(GRPCInferenceServiceServicer):
    """The servicer of one repository."""

    def __init__(self, service: Service) -> None:
        self._service, self._models = service, service.repository

    def check(self, context: Context) -> None:
        """Raise Refusal for a client that does not show the key."""
        shown = dict(context.invocation_metadata() or ())
        self._service.check_key(str(shown.get("authorization", "")))

    async def ServerLive(
        self, request: pb.ServerLiveRequest, context: Context
    ) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: Context
    ) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._models.is_ready)

    @_refusing
    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        try:
            self._models.find(request.name, request.version)
        except Refusal as refusal:
            if refusal.status == 404:
                raise
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    @_refusing
    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name="oneflow-actors", version=__version__, extensions=EXTENSIONS
        )

    @_refusing
    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        version = self._models.find(request.name, request.version)
        return pb.ModelMetadataResponse(**self._service.metadata(version))

    @_refusing
    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        entries = self._service.index(request.ready)
        models = [pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in entries]
        return pb.RepositoryIndexResponse(models=models)

    @_refusing
    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        await self._models.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    @_refusing
    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        await self._models.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    @_refusing
    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        begin = time.monotonic()
        with self._service.metrics.measured(request.model_name, "grpc"):
            version = self._models.find(request.model_name, request.model_version)
            inputs = inputs_of(request)
            outputs = await self._models.infer(version, inputs, _timeout(request, context))
            answer = _answer(request, outputs, version)
        self._service.metrics.duration.labels(version.name).observe(time.monotonic() - begin)
        return answer


def _timeout(request: pb.ModelInferRequest, context: Context) -> float:
    """Return the seconds that the client gives; 0.0 for no limit of its own."""
    limits = [left for left in (context.time_remaining(),) if left is not None]
    if "timeout" in request.parameters:
        limits.append(request.parameters["timeout"].int64_param / 1e6)
    return max(min(limits), 0.001) if limits else 0.0


def inputs_of(request: pb.ModelInferRequest) -> dict[str, Array]:
    """Return the inputs of a request by name. Raises Refusal."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise Refusal(400, f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    found: dict[str, Array] = {}
    for i, one in enumerate(request.inputs):
        given = Given(one.name, one.datatype, list(one.shape))
        if given.name in found:
            raise Refusal(400, f"input {given.name[:80]!r} is given twice")
        found[given.name] = given.of_bytes(raw[i]) if raw else given.of_contents(one.contents)
    return found


def _answer(
    request: pb.ModelInferRequest, outputs: dict[str, Array], version: Version
) -> pb.ModelInferResponse:
    answer = pb.ModelInferResponse(
        model_name=version.name, model_version=version.number, id=request.id
    )
    for name in [one.name for one in request.outputs] or list(outputs):
        if name not in outputs:
            raise Refusal(400, f"there is no output {name[:80]!r}; there are {', '.join(outputs)}")
        array = np.ascontiguousarray(outputs[name])
        answer.outputs.add(name=name, datatype=type_name(array.dtype.name), shape=array.shape)
        answer.raw_output_contents.append(array.tobytes())
    return answer
