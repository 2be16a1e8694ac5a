"""The web page: its files, and the JSON that it asks for.

The files say nothing and need no token; the JSON does, as `authorization: Bearer`. Browsers keep
other sites from reading it (no CORS header is sent, Origin and Host are checked), from framing the
page and from running any other script in it (files.py has the policy).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any
from urllib.parse import parse_qs, urlsplit

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.cluster.auth import Guard, act_as
from oneflow.scheduler.cluster.outputs import Outputs
from oneflow.scheduler.cluster.page.facts import Facts
from oneflow.scheduler.cluster.page.files import files
from oneflow.scheduler.cluster.page.logs import LogTails
from oneflow.scheduler.cluster.refusals import NotFoundError, status_of
from oneflow.scheduler.cluster.state import State
from oneflow.services.metrics_http import Answer

JSON_TYPE = "application/json"
ANSWER_S = 12.0  # two questions to a daemon (logs.py) take less
MAX_NAMES, MAX_NAMES_NBYTES = 200, 64 << 10  # of outputs
LOGS, OUTPUTS = "/oneflow.Jobs/Logs", "/oneflow.Jobs/Outputs"
GET, METRICS, STATUS = "/oneflow.Jobs/Get", "/oneflow.Jobs/Metrics", "/oneflow.Cluster/Status"
_HTTP_STATUS = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "DEADLINE_EXCEEDED": 504,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}


class Page:
    """Routes for `MetricsPage`. Answers are made on `loop`, where what they tell of lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard, state: State) -> None:
        self._loop, self._guard, self._driver = loop, guard, state.driver
        self._facts, self._tails, self._outputs = Facts(state), LogTails(state), Outputs(state)

    def route(self, path: str, headers: Mapping[str, str], peer: str) -> Answer | None:
        """Called in a thread of the HTTP server."""
        try:
            parts = urlsplit(path)
        except ValueError:
            return Answer(400, b"that is no address of a page\n")
        if not parts.path.startswith("/api/"):
            return files().get(parts.path)
        kind, _, secret = headers.get("authorization", "").partition(" ")
        secret = secret.strip() if kind.lower() == "bearer" else ""
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        work = self._answer(parts.path.removeprefix("/api/"), query, secret, f"http:{peer}")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(ANSWER_S)
        except FutureTimeoutError:
            future.cancel()
            return _json({"error": "the scheduler is busy"}, 503)

    async def _answer(self, path: str, query: Mapping[str, str], secret: str, peer: str) -> Answer:
        """Runs as a task of its own, whose caller is the one of this secret."""
        try:
            return _json(await self._find(path.split("/"), query, secret, peer))
        except OneFlowError as error:
            status = _HTTP_STATUS.get(status_of(error), 400)
            return _json({"error": str(error)}, status)

    async def _find(self, path: list[str], query: Mapping[str, str], secret: str, peer: str) -> Any:
        def admit(method: str) -> None:
            act_as(self._guard.admit_secret(method, secret, peer)[1])

        match path:
            case ["cluster"]:
                admit(STATUS)
                return self._facts.cluster()
            case ["jobs"]:
                admit(GET)
                return self._facts.jobs(query)
            case ["jobs", job_id]:
                admit(GET)
                return self._facts.whole_job(self._driver.job(job_id))
            case ["jobs", job_id, "points"]:
                admit(METRICS)
                return await self._facts.curve(job_id, _number(query.get("from", "0")))
            case ["jobs", job_id, "logs"]:
                admit(LOGS)
                return await self._tails.read(job_id, query)
            case ["jobs", job_id, "failure"]:
                admit(LOGS)
                return await self._tails.failure(job_id)
            case ["jobs", job_id, "outputs"]:
                admit(OUTPUTS)
                return {"names": await self._names(job_id)}
        admit(GET)
        raise NotFoundError("there is no such page")

    async def _names(self, job_id: str) -> list[str]:
        """The names of a job's outputs, the first of them."""
        names = b""
        async for data in self._outputs.read(job_id, ""):
            names += data
            if len(names) > MAX_NAMES_NBYTES:
                break
        return names.decode(errors="replace").splitlines()[:MAX_NAMES]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _json(value: object, status: int = 200) -> Answer:
    body = json.dumps(value, default=str, allow_nan=False).encode()
    return Answer(status, body, JSON_TYPE)
