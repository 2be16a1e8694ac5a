"""Answers of a running cluster to calls that nobody means, and to slow and greedy clients; while
another client asks for its status all the time.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from oneflow.core.config import split_address
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import JobState
from oneflow.scheduler.jobs.tokens import read_token_file
from oneflow.services.pinned_channel import line_options
from oneflow.services.proof import SESSION_KEY
from tests.faults.fuzz_inputs import (
    WORDS,
    Verdict,
    give_time,
    judged,
    mutated,
    random_message,
    watched,
    wire_bytes,
)
from tests.support.cluster import Rig
from tests.support.proving import open_proven, proven
from tests.support.waiting import CALL_S, WAIT_S, wait_until

SKIPPED = {"Shutdown"}  # it would do what it says
DECLARED = frozenset((
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION",
    "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED",
    "UNIMPLEMENTED", "OUT_OF_RANGE", "DEADLINE_EXCEEDED", "CANCELLED",
))  # fmt: skip
MAX_GROWTH_NBYTES, MAX_MORE = 64 << 20, 8
SETTLE_S = 120.0
IN_FLIGHT, CONNECTIONS = 32, 4  # calls at a time, and what they go over
SHORT_S = 0.3  # for a call: streams that follow have no end
ASK_S = 0.05
MAX_STATUS_S = 60.0
IDS = ("done", "done", "done", "waits", "nobody", "j1", "../x", "")


class UndeclaredError(Exception):
    """An answer that means a defect of ours."""


def started(folder: Path, job_file: Path) -> Rig:
    """A cluster whose daemons listen too. `done` is a job that has ended, `waits` never starts,
    `serves` answers requests. job_file: of tiny_job.
    """
    cluster = Rig(folder, armed=False)
    for number in range(2):
        health = f"unix:{folder}/health{number}"
        daemon = {"metrics_addr": "127.0.0.1:0", "health_addr": health}
        cluster.given[f"cpu:{number}"] = daemon
    cluster.start()
    submit_script = cluster.client().submit_script
    code = "print('out'); import sys; print('err', file=sys.stderr)"
    submit_script(["python3", "-c", code], job_id="done", working_dir="").wait(60)
    submit_script(["python3", "-c", ""], job_id="waits", devices=64, working_dir="")
    serves = cluster.client().submit(job_file, job_id="serves", devices=1)
    wait_until(lambda: serves.status().state is JobState.RUNNING, "it serves")
    _answers(cluster)
    return cluster


def _answers(rig: Rig) -> None:
    """The inference job does."""
    found = rig.client().job("serves").run({"x": np.ones((4, 3), np.float32)})
    if next(iter(found.values())).shape != (4, 2):
        raise UndeclaredError("a request has another answer than it should")


# ---- the cluster meanwhile -----------------------------------------------------------------------


@dataclass
class Onlooker:
    """Another client, which asks for the status again and again. seconds: of each answer."""

    rig: Rig
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_over: bool = False

    def run(self) -> None:
        token = read_token_file(self.rig.folder / "scheduler" / "token")
        with proven(self.rig.address, token) as (channel, metadata):
            ask = channel.unary_unary("/oneflow.Cluster/Status")
            while not self.is_over:
                started = time.monotonic()
                try:
                    ask(b"", timeout=MAX_STATUS_S, metadata=metadata)
                except grpc.RpcError as error:
                    self.errors.append(f"{error.code()}: {error.details()}"[:200])  # type: ignore[attr-defined]
                self.seconds.append(time.monotonic() - started)
                time.sleep(ASK_S)

    def said(self) -> str:
        found = sorted(self.seconds) or [0.0]
        p99 = found[min(int(0.99 * len(found)), len(found) - 1)]
        return f"{len(found)} status calls: p99 {p99 * 1000:.0f} ms, most {found[-1] * 1000:.0f} ms"


@contextmanager
def looked_at(rig: Rig, verdict: Verdict) -> Iterator[None]:
    """The status is told meanwhile, and afterwards nothing has grown and nobody is missing."""
    before = rig.usage()
    onlooker = Onlooker(rig)
    thread = threading.Thread(target=onlooker.run)
    thread.start()
    try:
        yield
    finally:
        onlooker.is_over = True
        thread.join()
    verdict.remark = onlooker.said()
    for error in onlooker.errors[:5]:
        verdict.blame(f"another client's status call: {error}")
    _still_serves(rig, verdict)
    _is_flat(rig, verdict, before)


def _still_serves(rig: Rig, verdict: Verdict) -> None:
    for name in rig.processes:
        if not rig.is_alive(name):
            verdict.blame(f"{name} is no more")
            return
    with suppress(AssertionError):
        wait_until(lambda: _num_up(rig) == 2, "both daemons are up")
    status = rig.client().status()
    if _num_up(rig) != 2:
        verdict.blame(f"{_num_up(rig)} daemons are up")
    if rig.client().job("done").status().exit_code:
        verdict.blame("a job that had ended well has not any more")
    _answers(rig)
    for path, code in (("healthz", 200), ("readyz", 200), ("metrics", 200)):
        with urllib.request.urlopen(
            f"http://{status.metrics_address}/{path}", timeout=CALL_S
        ) as page:
            if page.status != code:
                verdict.blame(f"/{path} says {page.status}")


def _num_up(rig: Rig) -> int:
    pids = {rig.pid(name) for name in rig.processes if name != "scheduler"}
    return len([d for d in rig.client().status().daemons if d.state == "up" and d.pid in pids])


def _is_flat(rig: Rig, verdict: Verdict, before: dict[str, Any]) -> None:
    """Descriptors and threads go back when connections are closed, which takes a moment."""

    def grown() -> list[str]:
        found = []
        for name, (_, then) in before.items():
            now = rig.usage()[name][1]
            if now.fds > then.fds + MAX_MORE or now.threads > then.threads + MAX_MORE:
                found.append(f"{name} has {now.fds} descriptors, {now.threads} threads")
                found[-1] += f"; before {then.fds} and {then.threads}"
            if now.nbytes > then.nbytes + MAX_GROWTH_NBYTES:
                found.append(f"{name} grew by {(now.nbytes - then.nbytes) >> 20} MB")
        return found

    with suppress(AssertionError):
        wait_until(lambda: not grown(), "nothing has grown", SETTLE_S)
    for text in grown():
        verdict.blame(text)
    verdict.grown = max(u.nbytes - before[n][1].nbytes for n, (_, u) in rig.usage().items())


# ---- calls ---------------------------------------------------------------------------------------


def fuzz_grpc(verdict: Verdict, seeds: range, rig: Rig) -> None:
    """Every method but one, with bodies that are right, half right and wrong; three kinds of
    tokens, and none."""
    methods = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            if method.name not in SKIPPED:
                methods.append((f"/{service.full_name}/{method.name}", method))
    admin = read_token_file(rig.folder / "scheduler" / "token")
    daemon = read_token_file(rig.folder / "scheduler" / "daemon.token")

    def make(rng: random.Random, seed: int) -> Call:
        path, method = methods[seed % len(methods)]
        kind = getattr(pb, method.input_type.name)
        up, down = method.client_streaming, method.server_streaming
        count = rng.choice((1, 2, 4)) if up else 1
        bodies = [_body(rng, kind, method.name, place) for place in range(count)]
        right = daemon if method.containing_service.name == "Daemons" else admin
        chance = rng.random()
        token = right if chance < 0.9 else rng.choice((admin, daemon, "oft_wrong", "x" * 9999))
        if chance > 0.99:
            path += rng.choice(("x", "/", "/../Status"))
        return Call(path, bodies, up, down, token)

    asyncio.run(feed_calls(verdict, seeds, rig.address, make, (admin, daemon)))


def _body(rng: random.Random, kind: Any, method: str, place: int) -> bytes:
    """place: in its stream."""
    if rng.random() < 0.3 and method not in ("Drain", "Remove", "Cancel", "RevokeToken"):
        return wire_bytes(rng, kind)
    message = random_message(rng, kind, 0, rng.choice((0.3, 0.8)))
    _make_sense(rng, message, method)
    if method == "Attach":
        _make_daemon(rng, message, place)
    data: bytes = message.SerializeToString()
    return mutated(rng, data) if rng.random() < 0.1 and method not in _CHANGE else data


_CHANGE = {"Drain", "Remove", "Cancel", "RevokeToken", "RotateToken"}


def _make_sense(rng: random.Random, message: Any, method: str) -> None:
    """So much that it gets past the first check."""
    if hasattr(message, "job_id"):
        message.job_id = rng.choice(IDS)
    if method == "Infer" and rng.random() < 0.8:
        _make_request(rng, message)
    if method in ("Remove", "Cancel", "Restart", "Submit"):
        message.job_id = rng.choice(("nobody", "../x", *(f"fuzz{n}" for n in range(20))))
    if method == "Drain":
        message.node = rng.choice(("nobody", "x", "\u00e9"))
    if method in ("CreateToken", "RotateToken", "RevokeToken"):
        message.name = rng.choice(("fuzz1", "fuzz2", "", "a b", "x" * 65))
        message.role = rng.choice(("view", "submit", "daemon", "king"))
    if method in ("Submit", "Upload") and rng.random() < 0.7:
        _make_submittable(rng, message)
    if method == "List":
        message.filters.clear()
        key = rng.choice(("state", "name", "owner", "kind", "x"))
        message.filters[key] = rng.choice(("running", "SUCCEEDED,FAILED", "x", ",", "\u00e9" * 900))


def _make_request(rng: random.Random, message: Any) -> None:
    """Requests to the job that answers: mostly of the shape that it takes."""
    message.job_id = "serves"
    message.timeout_s = rng.choice((0.0, 1.0, 10.0, -1.0, float("nan")))
    shape = rng.choice(((4, 3), (1, 3), (9, 3), (0, 3), (4, 2), (2**40, 3), (3,)))
    nbytes = 4 * math.prod(shape) if math.prod(shape) < 1000 else 12
    dtype = rng.choice(("float32", "float32", "float32", "float64", "object", ""))
    del message.inputs[rng.choice((0, 0, 0, 1)) :]
    tensor = message.inputs.add(name=rng.choice(("x", "x", "x", "y", "")), dtype=dtype, shape=shape)
    tensor.data = rng.randbytes(nbytes + rng.choice((0, 0, 0, 1)))


def _make_submittable(rng: random.Random, message: Any) -> None:
    if hasattr(message, "spec"):
        message.spec.argv[:] = ["/bin/false", *rng.choices(WORDS, k=2)]
        message.spec.graph = message.spec.archive = ""
        message.spec.devices = rng.choice((0, 1, 64, 5000))
        message.spec.name = "fuzz"
    else:
        message.digest = "0" * 64
        message.nbytes = rng.choice((0, 1, 3, 2**40, 2**64 - 1))


def _make_daemon(rng: random.Random, message: Any, place: int) -> None:
    """One of a few that are not there; it says words of daemons, or words that none would say."""
    if rng.random() < 0.7:
        message.epoch = rng.randrange(3, 40)
    if not place or message.WhichOneof("kind") == "hello":
        number = rng.randrange(8)
        message.hello.daemon, message.hello.node = f"fuzz/cuda:{number}", "fuzz"
        message.hello.device_type, message.hello.device_index = "cuda", number
        message.hello.protocol, message.hello.incarnation = 1, rng.randrange(1, 2**64)
        message.hello.address = rng.choice(("", "127.0.0.1", "x y"))
        for running in message.hello.running:
            running.id.job_id = rng.choice(("done", "waits", "x"))
            running.phase = rng.choice(("running", "prepared", "x"))


# ---- calls by the dozen --------------------------------------------------------------------------


@dataclass
class Call:
    """One call that is to be made; up, down: it is a stream that way. token: that its connection
    has proven, or one that is no session's and only shown.
    """

    path: str
    bodies: list[bytes]
    up: bool
    down: bool
    token: str


async def feed_calls(
    verdict: Verdict,
    seeds: range,
    address: str,
    make: Callable[[random.Random, int], Call],
    tokens: tuple[str, ...],
) -> None:
    """IN_FLIGHT calls at a time over a few connections, on which one of `tokens` was proven; each
    ends with a declared code.
    """
    coming = iter(watched(seeds))
    more = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    options = [*line_options(), *more]
    opened = {
        token: [await open_proven(address, token, options) for _ in range(CONNECTIONS)]
        for token in tokens
    }

    async def work(number: int) -> None:
        for seed in coming:
            call = make(random.Random(seed), seed)
            line = opened.get(call.token, opened[tokens[0]])[number % CONNECTIONS]
            shown = ((SESSION_KEY, call.token.encode().hex()),)
            metadata = line.metadata if call.token in opened else shown
            started = time.monotonic()
            code = await _one_call(line.channel, call, metadata)
            verdict.slowest_s = max(verdict.slowest_s, time.monotonic() - started)
            verdict.note(code)
            if code not in DECLARED:
                verdict.blame(f"seed {seed}: {call.path}: {code}")

    await asyncio.gather(*(work(number) for number in range(IN_FLIGHT)))
    for line in (line for lines in opened.values() for line in lines):
        await line.close()


async def _one_call(channel: Any, call: Call, metadata: Any) -> str:
    """The code; DEADLINE_EXCEEDED counts as an answer: streams that follow have no end."""
    kind = f"{'stream' if call.up else 'unary'}_{'stream' if call.down else 'unary'}"
    method = getattr(channel, kind)(call.path)

    async def bodies() -> Any:
        for body in call.bodies:
            yield body

    request: Any = bodies() if call.up else call.bodies[0]
    try:
        answer = method(request, timeout=SHORT_S, metadata=metadata)
        if not call.down:
            await answer
            return "OK"
        number = 0
        async for _ in answer:
            number += 1
            if number > 3:
                answer.cancel()
                break
        return "OK"
    except grpc.aio.AioRpcError as error:
        return _named(error)
    except (asyncio.InvalidStateError, asyncio.CancelledError):
        return "OK"  # it answered while we were still talking


def _named(error: Any) -> str:
    """The code; with its words, if it means a defect."""
    code = str(error.code().name)
    if error.details() == "Internal error from Core":  # the same, as gRPC says it
        return "OK"
    if code in ("UNKNOWN", "INTERNAL"):
        return f"{code}: {error.details()}"[:200]
    return code


# ---- greedy and slow clients ---------------------------------------------------------------------


def fuzz_greedy(verdict: Verdict, rig: Rig, scale: float = 1.0) -> None:
    """Messages that are too large, clients that say a byte now and then. scale: of the numbers."""
    for attack in (_oversize, _slow_http):
        give_time(120.0)
        with judged(verdict, 0, (OSError,)):  # it may hang up
            count = attack(rig, scale)
            verdict.inputs += count - 1
            verdict.ends[attack.__name__[1:]] += count


def _oversize(rig: Rig, scale: float) -> int:
    """Messages of 2 to 8 MiB."""
    token = read_token_file(rig.folder / "scheduler" / "token")
    options = [*line_options(), ("grpc.max_send_message_length", -1)]
    count = max(int(20 * scale), 3)
    with proven(rig.address, token, options) as (channel, metadata):
        for number in range(count):
            method = ("Jobs/Get", "Jobs/List", "Jobs/Submit")[number % 3]
            body = pb.JobRequest(job_id="x" * ((2 + 6 * (number % 2)) << 20)).SerializeToString()
            try:
                channel.unary_unary(f"/oneflow.{method}")(body, timeout=CALL_S, metadata=metadata)
            except grpc.RpcError as error:
                code = error.code().name  # type: ignore[attr-defined]
                if code not in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"):
                    raise UndeclaredError(f"{method} of {len(body)} bytes: {code}") from None
            else:
                raise UndeclaredError(f"{method} of {len(body)} bytes was taken")
    return count


def _slow_http(rig: Rig, scale: float) -> int:
    """More of them than there are threads, which must all be gone when their time is over."""
    address = split_address(rig.client().status().metrics_address)
    count = _drip(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n", int(64 * scale), 6 * scale)
    end = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(
                f"http://{address[0]}:{address[1]}/healthz", timeout=CALL_S
            ):
                return count
        except OSError as error:
            if time.monotonic() > end:
                raise UndeclaredError(f"/healthz after slow readers: {error}") from None
            time.sleep(0.2)


def _drip(address: tuple[str, int], text: bytes, count: int, seconds: float) -> int:
    """A byte of each at a time."""
    lines = []
    try:
        for _ in range(count):
            with suppress(OSError):
                lines.append(socket.create_connection(address, 5))
        for position in range(len(text)):
            for line in lines:
                with suppress(OSError):
                    line.send(text[position : position + 1])
            time.sleep(seconds / len(text))
    finally:
        for line in lines:
            line.close()
    return max(count, 1)
