"""The web page: its files, and the JSON that it asks for.

The files say nothing and need no token; the JSON does, as `authorization: Bearer`. Browsers keep
other sites from reading it (no CORS header is sent, Origin and Host are checked), from framing the
page and from running any other script in it (files.py has the policy). GET changes nothing; a
POST cancels, restarts or traces a job, for a token that may do so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.cluster.auth import Guard, act_as
from oneflow.scheduler.cluster.changes import Changes
from oneflow.scheduler.cluster.outputs import Outputs
from oneflow.scheduler.cluster.page.facts import Facts
from oneflow.scheduler.cluster.page.files import files
from oneflow.scheduler.cluster.page.logs import LogTails
from oneflow.scheduler.cluster.page.plan import Pictures
from oneflow.scheduler.cluster.page.timeline import Timelines
from oneflow.scheduler.cluster.refusals import DeniedError, NotFoundError, status_of
from oneflow.scheduler.cluster.state import State
from oneflow.scheduler.jobs.records import JobRecord, TokenRecord
from oneflow.services.metrics_http import Answer

JSON_TYPE = "application/json"
ANSWER_S = 12.0  # two questions to a daemon (logs.py) take less
MAX_NAMES, MAX_NAMES_NBYTES = 200, 64 << 10  # of outputs
_HTTP_STATUS = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
    "DEADLINE_EXCEEDED": 504,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True)
class _Request:
    """One request for JSON. path: below /api/, in its parts. secret: the token that it shows."""

    path: list[str]
    query: Mapping[str, str]
    secret: str
    peer: str
    is_post: bool


class Page:
    """Routes for `MetricsPage`. Answers are made on `loop`, where the state lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard, state: State) -> None:
        self._loop, self._guard, self._driver = loop, guard, state.driver
        self._facts, self._tails = Facts(state), LogTails(state)
        self._outputs, self._changes = Outputs(state), Changes(state)
        self._pictures, self._timelines = Pictures(state), Timelines(state)

    def route(self, path: str, headers: Mapping[str, str], peer: str) -> Answer | None:
        """Answer a GET. Called in a thread of the HTTP server."""
        return self._route(path, headers, peer, is_post=False)

    def change(self, path: str, headers: Mapping[str, str], peer: str) -> Answer | None:
        """Answer a POST. Called in a thread of the HTTP server."""
        return self._route(path, headers, peer, is_post=True)

    def _route(
        self, path: str, headers: Mapping[str, str], peer: str, is_post: bool
    ) -> Answer | None:
        try:
            parts = urlsplit(path)
        except ValueError:
            return Answer(400, b"that is no address of a page\n")
        if not parts.path.startswith("/api/"):
            return None if is_post else files().get(parts.path)
        kind, _, secret = headers.get("authorization", "").partition(" ")
        secret = secret.strip() if kind.lower() == "bearer" else ""
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        names = parts.path.removeprefix("/api/").split("/")
        work = self._answer(_Request(names, query, secret, f"http:{peer}", is_post))
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(ANSWER_S)
        except FutureTimeoutError:
            future.cancel()
            return _json({"error": "the scheduler is busy"}, 503)

    async def _answer(self, asked: _Request) -> Answer:
        """Runs as a task of its own, whose caller is the one of this secret."""
        try:
            find = self._change if asked.is_post else self._find
            return _json(await find(asked))
        except OneFlowError as error:
            status = _HTTP_STATUS.get(status_of(error), 400)
            return _json({"error": str(error)}, status)

    async def _find(self, asked: _Request) -> Any:
        self._admit(asked, "/oneflow.Jobs/Get")  # all who may look may see all of it
        match asked.path:
            case ["cluster"]:
                return self._facts.cluster()
            case ["jobs"]:
                return self._facts.jobs(asked.query)
            case ["jobs", job_id]:
                return self._facts.whole_job(self._driver.job(job_id))
            case ["jobs", job_id, "points"]:
                return await self._facts.curve(job_id, _number(asked.query.get("from", "0")))
            case ["jobs", job_id, "logs"]:
                return await self._tails.read(job_id, asked.query)
            case ["jobs", job_id, "failure"]:
                return await self._tails.failure(job_id)
            case ["jobs", job_id, "plan"]:
                return await self._pictures.of(self._driver.job(job_id))
            case ["jobs", job_id, "timeline"]:
                return await self._timelines.of(self._driver.job(job_id))
            case ["jobs", job_id, "outputs"]:
                return {"names": await self._names(job_id)}
        raise NotFoundError("there is no such page")

    async def _change(self, asked: _Request) -> Any:
        match asked.path:
            case ["jobs", job_id, "cancel"]:
                method, work = "/oneflow.Jobs/Cancel", self._changes.cancel
            case ["jobs", job_id, "restart"]:
                method, work = "/oneflow.Jobs/Restart", self._changes.restart
            case ["jobs", job_id, "trace"]:
                method, work = "/oneflow.Jobs/Trace", partial(self._trace, asked)
            case _:
                self._admit(asked, "/oneflow.Jobs/Get")
                raise NotFoundError("there is nothing to change there")
        token = self._admit(asked, method)
        try:
            return {"state": (await work(job_id)).state.value}
        except DeniedError:
            self._guard.denied(method, token, asked.peer)
            raise

    async def _trace(self, asked: _Request, job_id: str) -> JobRecord:
        await self._timelines.start(job_id, _number(asked.query.get("steps", "")))
        return self._driver.job(job_id)

    def _admit(self, asked: _Request, method: str) -> TokenRecord:
        """Let in a request that may call this method: its caller is the task's from now on."""
        token, who, _ = self._guard.admit_secret(method, asked.secret, asked.peer)
        act_as(who)
        return token

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
