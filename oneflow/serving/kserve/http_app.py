"""The protocol over HTTP: JSON, and the extension for binary tensors."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oneflow.kernels.array import Array
from oneflow.serving.kserve.failures import Refusal
from oneflow.serving.kserve.service import EXTENSIONS, Service
from oneflow.serving.kserve.values import BINARY_ONLY, Given, type_name
from oneflow.version import __version__

if TYPE_CHECKING:
    from oneflow.serving.kserve.repository import Version

HEADER = "Inference-Header-Content-Length"
"""Bytes of the JSON in front of binary tensors."""
Handler = Callable[[Request], Awaitable[Response]]
Fields = dict[str, Any]


def make_app(service: Service) -> Starlette:
    """Return the application. Requests that are refused get {"error": ...}."""
    handlers = _Handlers(service)
    models = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
    routes = [
        Route("/v2", handlers.server),
        Route("/v2/health/live", handlers.live),
        Route("/v2/health/ready", handlers.ready),
        Route("/v2/repository/index", handlers.index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", handlers.load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", handlers.unload, methods=["POST"]),
        Route("/metrics", handlers.page),
    ]
    for path in models:
        routes += [
            Route(path, handlers.model),
            Route(f"{path}/ready", handlers.model_ready),
            Route(f"{path}/infer", handlers.infer, methods=["POST"]),
        ]
    return Starlette(
        routes=routes, exception_handlers={Refusal: _refused, HTTPException: _no_route}
    )


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": str(error)}, error.status)


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": text}, error.status_code)


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service, self._models = service, service.repository

    def _check(self, request: Request) -> None:
        self._service.check_key(request.headers.get("authorization", ""))

    async def server(self, request: Request) -> Response:
        self._check(request)
        found = {"name": "oneflow-actors", "version": __version__, "extensions": EXTENSIONS}
        return JSONResponse(found)

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        is_ready = self._models.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def page(self, _: Request) -> Response:
        return Response(self._service.metrics.page(), media_type="text/plain; version=0.0.4")

    async def model(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse(self._service.metadata(self._version(request)))

    async def model_ready(self, request: Request) -> Response:
        self._check(request)
        version = self._version(request)
        return JSONResponse({"name": version.name, "ready": True})

    def _version(self, request: Request) -> Version:
        return self._models.find(
            request.path_params["name"], request.path_params.get("version", "")
        )

    # ---- the repository --------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        self._check(request)
        wants_ready = (await self._fields(request)).get("ready", False)
        return JSONResponse(self._service.index(bool(wants_ready)))

    async def load(self, request: Request) -> Response:
        self._check(request)
        await self._models.load(request.path_params["name"])
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        self._check(request)
        await self._models.unload(request.path_params["name"])
        return JSONResponse({})

    async def _fields(self, request: Request) -> Fields:
        body = await self._body(request)
        return _parsed(body) if body else {}

    async def _body(self, request: Request) -> bytes:
        most, body = self._models.limits.body_nbytes, bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise Refusal(413, f"the body is longer than {most} bytes")
        return bytes(body)

    # ---- inference -------------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        self._check(request)
        name, number = request.path_params["name"], request.path_params.get("version", "")
        begin = time.monotonic()
        with self._service.metrics.measured(name, "http"):
            version = self._models.find(name, number)
            body = await self._body(request)
            size = _header_size(request, len(body))
            fields = _parsed(body[:size])
            inputs = inputs_of(fields, memoryview(body)[size:])
            timeout_s = _parameters(fields).get("timeout", 0)
            timeout_s = timeout_s / 1e6 if isinstance(timeout_s, int) else 0.0
            outputs = await self._models.infer(version, inputs, timeout_s)
            answer = _answer(fields, outputs, version)
        self._service.metrics.duration.labels(version.name).observe(time.monotonic() - begin)
        return answer


def _header_size(request: Request, size: int) -> int:
    text = request.headers.get(HEADER)
    if text is None:
        return size
    if not text.isdecimal() or int(text) > size:
        raise Refusal(400, f"{HEADER} is {text[:40]!r}, and the body has {size} bytes")
    return int(text)


def _parsed(data: bytes) -> Fields:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "the request is no JSON object")
    return fields


def _parameters(fields: Fields) -> Fields:
    found = fields.get("parameters", {})
    if not isinstance(found, dict):
        raise Refusal(400, "the parameters are no JSON object")
    return found


def _objects(fields: Fields, key: str) -> list[Fields]:
    found = fields.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Refusal(400, f"{key} is no list of JSON objects")
    return found


def inputs_of(fields: Fields, rest: memoryview) -> dict[str, Array]:
    """Return the inputs of a request by name. rest: the binary tensors behind the JSON. Raises
    Refusal.
    """
    found: dict[str, Array] = {}
    at = 0
    for one in _objects(fields, "inputs"):
        given = Given(one.get("name"), one.get("datatype"), one.get("shape"))
        if given.name in found:
            raise Refusal(400, f"input {given.name[:80]!r} is given twice")
        size = _parameters(one).get("binary_data_size")
        if size is None:
            found[given.name] = given.of_list(one.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise Refusal(400, f"input {given.name[:80]!r}: binary_data_size {size!r:.40} is wrong")
        found[given.name] = given.of_bytes(rest[at : at + size])
        at += size
    if at != len(rest):
        raise Refusal(400, f"{len(rest) - at} bytes behind the JSON belong to no input")
    return found


def _answer(fields: Fields, outputs: dict[str, Array], version: Version) -> Response:
    asked = _objects(fields, "outputs") or [{"name": name} for name in outputs]
    is_binary = bool(_parameters(fields).get("binary_data_output", False))
    described, blobs = [], []
    for one in asked:
        name = one.get("name")
        if not isinstance(name, str) or name not in outputs:
            raise Refusal(400, f"there is no output {name!r:.80}; there are {', '.join(outputs)}")
        array = np.ascontiguousarray(outputs[name])
        datatype = type_name(array.dtype.name)
        entry: Fields = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if _parameters(one).get("binary_data", is_binary):
            blobs.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        elif datatype in BINARY_ONLY:
            raise Refusal(400, f"output {name!r}: {datatype} is sent as binary data only")
        else:
            entry["data"] = array.reshape(-1).tolist()
        described.append(entry)
    answer: Fields = {"model_name": version.name, "model_version": version.number}
    if isinstance(fields.get("id"), str):
        answer["id"] = fields["id"]
    head = json.dumps(answer | {"outputs": described}).encode()
    if not blobs:
        return Response(head, media_type="application/json")
    return Response(
        b"".join((head, *blobs)),
        media_type="application/octet-stream",
        headers={HEADER: str(len(head))},
    )
