"""The read-only page: one HTML file and the JSON that it asks for. Nothing can be changed here.

The HTML says nothing and needs no token; the JSON does, as `authorization: Bearer`. Browsers keep
other sites from reading it (no CORS header is sent, Origin and Host are checked), from framing the
page and from running any other script in it (Content-Security-Policy with the script's digest).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.cluster.auth import Guard
from oneflow.scheduler.cluster.driver import by_id
from oneflow.scheduler.cluster.points import RankWaits
from oneflow.scheduler.cluster.refusals import NotFoundError, status_of
from oneflow.scheduler.cluster.state import State
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.services.metrics_http import Answer

HTML_FILE = Path(__file__).with_name("page.html")
JSON_TYPE = "application/json"
ANSWER_S = 10.0
MAX_JOBS = 200
MAX_POINTS = 2000  # of a curve; a longer one is thinned out
METHOD = "/oneflow.Jobs/Get"  # whoever may call it may see this
_HTTP_STATUS = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}


class Page:
    """Routes for `MetricsPage`. Answers are made on `loop`, where what they tell of lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard, state: State) -> None:
        self._loop, self._guard = loop, guard
        self._driver, self._points, self._plans = state.driver, state.points, state.plans

    def route(self, path: str, headers: Mapping[str, str], peer: str) -> Answer | None:
        """Called in a thread of the HTTP server."""
        try:
            parts = urlsplit(path)
        except ValueError:
            return Answer(400, b"that is no address of a page\n")
        if parts.path in ("/", "/ui"):
            return html()
        if not parts.path.startswith("/api/"):
            return None
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
        try:
            self._guard.admit_secret(METHOD, secret, peer)
            return _json(await self._find(path, query))
        except OneFlowError as error:
            status = _HTTP_STATUS.get(status_of(error), 400)
            return _json({"error": str(error)}, status)

    async def _find(self, path: str, query: Mapping[str, str]) -> Any:
        match path.split("/"):
            case ["cluster"]:
                return self._cluster()
            case ["jobs"]:
                newest = by_id(self._driver.jobs)[:MAX_JOBS]
                return {"jobs": [self._job(record) for record in newest]}
            case ["jobs", job_id]:
                return self._whole_job(self._driver.job(job_id))
            case ["jobs", job_id, "points"]:
                self._driver.job(job_id)
                return await self._curve(job_id, _number(query.get("from", "0")))
        raise NotFoundError("there is no such page")

    # -- what is told ------------------------------------------------------------------------------

    def _cluster(self) -> dict[str, Any]:
        daemons = sorted(self._driver.table.daemons.values(), key=lambda d: d.id)
        return {
            "daemons": [
                {"id": d.id, "node": d.node, "device": d.device, "state": str(d.state)}
                | {"job": d.job, "version": d.version}
                for d in daemons
            ]
        }

    def _job(self, record: JobRecord) -> dict[str, Any]:
        return {
            "id": record.id,
            "name": record.spec.name,
            "kind": record.spec.kind.value,
            "devices": f"{record.spec.devices} {record.spec.device_type}",
            "state": record.state.value,
            "reason": record.reason,
            "cause": record.cause,
            "exit_code": record.exit_code,
            "attempt": record.attempt,
            "step": record.last_step,
            "total_steps": record.total_steps,
            "pending": self._plans.progress(record) or record.pending,
            "owner": record.owner,
            "submitted_at": record.submitted_at,
            "started_at": record.started_at,
            "finished_at": record.finished_at,
        }

    def _whole_job(self, record: JobRecord) -> dict[str, Any]:
        attempt = self._driver.table.attempts.live.get(record.id)
        phases = {r.number: r.phase.value for r in attempt.ranks} if attempt is not None else {}
        waits = {w.rank: w for w in self._points.waits.of(record.id)}
        ranks = [
            {"rank": a.rank, "node": a.node, "device": a.device}
            | {"phase": phases.get(a.rank, "over"), "failed": a.rank == record.first_failed_rank}
            | _waits(waits.get(a.rank))
            for a in record.assignments
        ]
        more = {"ranks": ranks, "metrics": _finite(record.metrics)}
        checkpoint = {"checkpoint_step": record.last_checkpoint_step}
        return self._job(record) | more | checkpoint

    async def _curve(self, job_id: str, start: int) -> dict[str, Any]:
        points = [p async for p in self._points.read(job_id, start, follow=False)]
        every = max(1, -(-len(points) // MAX_POINTS))
        kept = points[::every] + ([points[-1]] if points and (len(points) - 1) % every else [])
        following = points[-1].index + 1 if points else start
        rows = [{"step": p.step, "values": _finite(p.values)} for p in kept]
        return {"points": rows, "next": following}


def _waits(found: RankWaits | None) -> dict[str, Any]:
    """Return the waits of a rank's actors, if the rank has told them."""
    if found is None:
        return {"waiting": "", "idle": {}}
    return {"waiting": found.waiting, "idle": _finite(found.shares)}


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN and no infinity."""
    return {k: v if v - v == 0 else None for k, v in values.items()}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _json(value: object, status: int = 200) -> Answer:
    body = json.dumps(value, default=str, allow_nan=False).encode()
    return Answer(status, body, JSON_TYPE)


@cache
def html() -> Answer:
    """The page, which may run its own script and style and nothing else."""
    text = HTML_FILE.read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        f"script-src {_digest_of(text, 'script')}",
        f"style-src {_digest_of(text, 'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    return Answer(200, text.encode(), "text/html; charset=utf-8", headers)


def _digest_of(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    inside = found[1] if found else ""
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
