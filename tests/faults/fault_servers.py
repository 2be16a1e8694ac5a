"""Answers of a running cluster to bytes that nobody means: gRPC, HTTP/2, HTTP, slow and greedy
clients; while another client asks for its status all the time.
"""

from __future__ import annotations

import math
import random
import selectors
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
from oneflow.services.line import line_options
from tests.support.cluster import Rig
from tests.support.proving import proven
from tests.support.waiting import CALL_S, WAIT_S, wait_until

from .fuzz_inputs import (
    WORDS,
    Verdict,
    give_time,
    judged,
    mutated,
    random_message,
    watched,
    wire_bytes,
)
from .fuzz_peers import Call, feed_calls

SKIPPED = {"Shutdown"}  # it would do what it says
DECLARED = frozenset((
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION",
    "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED",
    "UNIMPLEMENTED", "OUT_OF_RANGE", "DEADLINE_EXCEEDED", "CANCELLED",
))  # fmt: skip
CODES = {200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 417, 421, 429, 431, 501, 503, 505}
MAX_GROWTH_NBYTES, MAX_MORE = 64 << 20, 8
SETTLE_S = 120.0
ASK_S = 0.05
MAX_STATUS_S = 60.0
IDS = ("done", "done", "done", "waits", "nobody", "j1", "../x", "")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


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
    """Another client, who asks for the status again and again. seconds: of each answer."""

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

    feed_calls(verdict, seeds, rig.address, make, (admin, daemon), DECLARED)


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
    """One of a few that are not there; it says what daemons say, or what none would."""
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


# ---- HTTP/2 --------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, content: bytes, size: int = -1) -> bytes:
    """size: what the header says, if not the truth."""
    length = len(content) if size < 0 else size
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def header_block(pairs: list[tuple[str, str]]) -> bytes:
    """Literals without a table: what HPACK needs at least."""
    found = b""
    for name, value in pairs:
        found += b"\0" + _literal(name.encode()) + _literal(value.encode())
    return found


def _literal(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    rest, found = size - 127, bytearray((127,))
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found) + text


def request_headers(path: str = "/oneflow.Cluster/Status", *more: tuple[str, str]) -> bytes:
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    return header_block([*pairs, ("content-type", "application/grpc"), ("te", "trailers"), *more])


def fuzz_http2(verdict: Verdict, seeds: range, rig: Rig) -> None:
    """Frames of every type, right and wrong, on gRPC's own port. Its answers are not judged: that
    it hangs up or answers in time, and goes on, is."""
    address = split_address(rig.address)
    feed_lines(verdict, seeds, [address], _connection_bytes, None)


def _connection_bytes(rng: random.Random) -> bytes:
    chance = rng.random()
    if chance < 0.1:
        return rng.randbytes(rng.choice((0, 1, 24, 1000)))
    if chance < 0.15:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if chance < 0.2:  # a TLS client's first words
        return bytes.fromhex("16030100b8010000b40303") + rng.randbytes(176)
    found = PREFACE + frame(4, 0, 0, b"")
    for _ in range(rng.choice((1, 3, 10, 40))):
        found += _odd_frame(rng)
    return mutated(rng, found) if rng.random() < 0.2 else found


def _odd_frame(rng: random.Random) -> bytes:
    stream = rng.choice((0, 1, 1, 3, 5, 2, 2**31 - 1))
    kind = rng.choice((0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255))
    content = {
        0: rng.choice((b"", b"\0\0\0\0\0", b"\1\0\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0\0\0\3abc")),
        1: rng.choice((request_headers(), mutated(rng, request_headers()), rng.randbytes(50), b"")),
        2: rng.randbytes(5),
        3: rng.randbytes(4),
        4: rng.choice((b"", bytes((0, rng.randrange(10))) + rng.randbytes(4), rng.randbytes(7))),
        5: rng.randbytes(20),
        6: rng.randbytes(rng.choice((8, 8, 7))),
        7: rng.randbytes(8),
        8: rng.choice((b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\1", b"")),
        9: rng.choice((b"", request_headers(), rng.randbytes(100))),
    }.get(kind, rng.randbytes(9))
    size = rng.choice((-1, -1, -1, -1, 0, len(content) + 1, 2**24 - 1))
    return frame(kind, rng.choice((0, 1, 4, 5, 5, 8, 0x20, 255)), stream, content, size)


# ---- HTTP ----------------------------------------------------------------------------------------

PATHS = (
    "/metrics", "/healthz", "/readyz", "/", "/ui", "/api/cluster", "/api/jobs", "/api/jobs/done",
    "/api/jobs/done/points", "/api/jobs/done/points?from=99999999999999999999", "/api/jobs/%2e%2e",
    "/api/jobs/done/points?from=-1&from=\u0663", "/api/", "//x", "http://[/", "http://[::1/api/jobs",
    "http://127.0.0.1/healthz", "*", "/" + "a" * 70_000, "/metrics?" + "x=1&" * 2000,
    "/\x7f", "/%00", "http://\u2100/", "/api/jobs?x=%ff", "/../../etc/passwd", "/ui/../x", "",
)  # fmt: skip
FOREIGN = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "x", "", "[", "localhost.x")
OWN = ("127.0.0.1", "127.0.0.1:80", "localhost", "[::1]:9", "LOCALHOST:1")


@dataclass
class Request:
    """is_foreign: it must not be answered with what a page holds. is_plain: it must be answered."""

    data: bytes
    is_foreign: bool
    is_plain: bool


def fuzz_http(verdict: Verdict, seeds: range, rig: Rig) -> None:
    """The pages of the scheduler and of a daemon: methods, paths, hosts, origins, floods."""
    token = read_token_file(rig.folder / "scheduler" / "token")
    addresses = [split_address(address) for address in _pages(rig)]

    def judge(seed: int, answer: bytes) -> str:
        request = http_request(random.Random(seed), token)
        if not answer and request.is_plain:  # there may have been too many: alone it is answered
            answer = _asked_alone(addresses[seed % len(addresses)], request.data)
        return _judged_answer(request, answer)

    def make(rng: random.Random) -> bytes:
        return http_request(rng, token).data

    feed_lines(verdict, seeds, addresses, make, judge)


def _asked_alone(address: tuple[str, int], data: bytes) -> bytes:
    """Tried for a while: those who came before may still be at it."""
    end = time.monotonic() + LINE_S
    while True:
        with suppress(OSError), socket.create_connection(address, 5) as line:
            line.settimeout(LINE_S)
            line.sendall(data)
            if answer := line.recv(1 << 16):
                return answer
        if time.monotonic() > end:
            return b""
        time.sleep(0.1)


def _pages(rig: Rig) -> list[str]:
    import json

    found = [rig.client().status().metrics_address]
    for path in (rig.folder / "run" / "oneflow").glob("metrics-*.json"):
        found.append(json.loads(path.read_text())["address"])
    return found


def http_request(rng: random.Random, token: str) -> Request:
    host = rng.choice(OWN if rng.random() < 0.7 else FOREIGN)
    method = rng.choice(
        ("GET",) * 8 + ("HEAD", "POST", "OPTIONS", "PUT", "CONNECT", "get", "\0", "")
    )
    version = rng.choice(("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "HTTP/x", ""))
    lines = [f"{method} {rng.choice(PATHS)} {version}".strip()]
    if rng.random() < 0.95:
        lines.append(f"Host: {host}")
    if rng.random() < 0.4:
        lines.append(f"Authorization: Bearer {rng.choice((token, token, 'oft_wrong', ''))}")
    if rng.random() < 0.15:
        lines.append(f"Origin: {rng.choice(('http://evil.example', 'null', ''))}")
    lines += rng.choice(_MORE_HEADERS)
    hosts = [line[6:] for line in lines if line.startswith("Host: ")]
    from_elsewhere = any(line.startswith(("Origin: ", "Sec-Fetch")) for line in lines)
    is_foreign = from_elsewhere or len(hosts) != 1 or hosts[0] not in OWN
    data = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    if rng.random() < 0.1:
        data *= rng.choice((2, 10))  # pipelined
    if rng.random() < 0.15:
        data, is_foreign = mutated(rng, data), False
    is_plain = data.startswith(b"GET /") and b" HTTP/1." in data and len(data) < 1000
    return Request(data, is_foreign, is_plain and b"\r\n\r\n" in data)


_MORE_HEADERS: tuple[list[str], ...] = (
    [],
    [],
    [],
    ["Content-Length: 10"],
    ["Content-Length: -1"],
    ["Content-Length: 99999999999999999999"],
    ["Transfer-Encoding: chunked"],
    ["Expect: 100-continue"],
    ["Connection: keep-alive"],
    ["Upgrade: h2c", "Connection: Upgrade"],
    [f"X-{i}: y" for i in range(150)],
    ["X: " + "y" * 70_000],
    ["X: y"] * 90,
    [" folded: x"],
    ["Host: 127.0.0.1"],
    ["Sec-Fetch-Site: cross-site"],
    ["Range: bytes=0-1,0-1"],
)


def _judged_answer(request: Request, answer: bytes) -> str:
    """The end of this input. Raises UndeclaredError."""
    words = answer[:64].split()
    if not words:
        if request.is_plain:
            raise UndeclaredError(f"no answer to {request.data[:300]!r}")
        return "hung up"
    if not words[0].startswith(b"HTTP/"):
        if request.is_foreign and (b"# HELP" in answer or b"<script>" in answer):
            raise UndeclaredError("an old client of a foreign name was shown a page")
        return "no HTTP/1"
    code = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if code not in CODES:
        raise UndeclaredError(f"HTTP {code} to {request.data[:200]!r}")
    if request.is_foreign and code == 200:
        raise UndeclaredError(f"HTTP 200 to a foreign {request.data[:300]!r}")
    return f"HTTP {code}"


# ---- many lines at a time ------------------------------------------------------------------------

LINES = 24
LINE_S = 100.0


@dataclass
class _Line:
    seed: int
    since: float
    out: bytes
    answer: bytearray = field(default_factory=bytearray)


def feed_lines(
    verdict: Verdict,
    seeds: range,
    addresses: list[tuple[str, int]],
    make: Callable[[random.Random], bytes],
    judge: Callable[[int, bytes], str] | None,
) -> None:
    """A connection for each input, LINES of them at a time. One that is neither answered nor hung
    up on within LINE_S is a defect."""
    coming = watched(seeds)
    with selectors.DefaultSelector() as open_lines:
        while True:
            while len(open_lines.get_map()) < LINES and (seed := next(coming, None)) is not None:
                _open(verdict, open_lines, addresses, seed, make)
            if not open_lines.get_map():
                return
            for key, events in open_lines.select(0.5):
                _move(verdict, open_lines, key, events, judge)
            _drop_late(verdict, open_lines)


def _open(
    verdict: Verdict,
    open_lines: selectors.BaseSelector,
    addresses: list[tuple[str, int]],
    seed: int,
    make: Callable[[random.Random], bytes],
) -> None:
    line = socket.socket()
    line.setblocking(False)
    line.connect_ex(addresses[seed % len(addresses)])
    entry = _Line(seed, time.monotonic(), make(random.Random(seed)))
    open_lines.register(line, selectors.EVENT_READ | selectors.EVENT_WRITE, entry)


def _move(
    verdict: Verdict,
    open_lines: selectors.BaseSelector,
    key: selectors.SelectorKey,
    events: int,
    judge: Callable[[int, bytes], str] | None,
) -> None:
    line: Any = key.fileobj
    entry: _Line = key.data
    try:
        if events & selectors.EVENT_WRITE:
            entry.out = entry.out[line.send(entry.out[: 1 << 16]) :] if entry.out else b""
            if not entry.out:
                line.shutdown(socket.SHUT_WR)
                open_lines.modify(line, selectors.EVENT_READ, entry)
        if not events & selectors.EVENT_READ:
            return
        data = line.recv(1 << 16)
        entry.answer += data
        if data and len(entry.answer) < 1 << 22:
            return
    except BlockingIOError:
        return
    except OSError:
        pass  # it hung up: what it said before counts
    _end(verdict, open_lines, line, entry, judge)


def _end(
    verdict: Verdict,
    open_lines: selectors.BaseSelector,
    line: Any,
    entry: _Line,
    judge: Callable[[int, bytes], str] | None,
) -> None:
    open_lines.unregister(line)
    line.close()
    verdict.slowest_s = max(verdict.slowest_s, time.monotonic() - entry.since)
    with judged(verdict, entry.seed, ()):
        if judge is None:
            verdict.ends["answered" if entry.answer else "hung up"] += 1
        else:
            verdict.ends[judge(entry.seed, bytes(entry.answer))] += 1


def _drop_late(verdict: Verdict, open_lines: selectors.BaseSelector) -> None:
    now = time.monotonic()
    for key in [k for k in open_lines.get_map().values() if now - k.data.since > LINE_S]:
        open_lines.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]
        verdict.note("no end")
        verdict.blame(f"seed {key.data.seed}: no end after {LINE_S:g} s")


# ---- greedy and slow clients ---------------------------------------------------------------------


def fuzz_greedy(verdict: Verdict, rig: Rig, scale: float = 1.0) -> None:
    """10,000 streams on a connection, floods of headers, pings and resets, messages that are too
    large, clients that say a byte now and then. scale: of the numbers."""
    for attack in (_streams, _resets, _pings, _headers, _oversize, _slow_grpc, _slow_http):
        give_time(120.0)
        with judged(verdict, 0, (OSError,)):  # it may hang up
            count = attack(rig, scale)
            verdict.inputs += count - 1
            verdict.ends[attack.__name__[1:]] += count


def _sent(rig: Rig, pieces: Iterator[bytes], wait_s: float) -> None:
    """All at once, and what comes back is read for a while. It may hang up."""
    with socket.create_connection(split_address(rig.address), 5) as line:
        line.sendall(PREFACE + frame(4, 0, 0, b""))
        line.settimeout(0.2)
        end = time.monotonic() + wait_s
        for piece in pieces:
            with suppress(TimeoutError):
                line.sendall(piece)
        while time.monotonic() < end:
            with suppress(TimeoutError):
                if not line.recv(1 << 16):
                    return


def _streams(rig: Rig, scale: float) -> int:
    """Opened and never finished, without a token."""
    count = int(10_000 * scale)
    headers = request_headers("/oneflow.Jobs/Upload")
    _sent(rig, (frame(1, 4, 2 * n + 1, headers) for n in range(count)), 5 * scale)
    return count


def _resets(rig: Rig, scale: float) -> int:
    """Rapid reset: each is called off at once."""
    count = int(10_000 * scale)
    headers = request_headers()
    pairs = (
        frame(1, 5, 2 * n + 1, headers) + frame(3, 0, 2 * n + 1, bytes(4)) for n in range(count)
    )
    _sent(rig, pairs, 2 * scale)
    return count


def _pings(rig: Rig, scale: float) -> int:
    count = int(20_000 * scale)
    _sent(rig, (frame(6, 0, 0, bytes(8)) + frame(4, 0, 0, b"") for _ in range(count)), 2 * scale)
    return count


def _headers(rig: Rig, scale: float) -> int:
    """One block of headers without an end, in pieces."""
    count = int(2000 * scale)
    piece = header_block([("x" * 100, "y" * 4000)])

    def pieces() -> Iterator[bytes]:
        yield frame(1, 0, 1, request_headers())
        for _ in range(count):
            yield frame(9, 0, 1, piece)

    _sent(rig, pieces(), 2 * scale)
    return count


def _oversize(rig: Rig, scale: float) -> int:
    """Messages of 2 to 8 MiB, and a frame that says it has 4 GiB."""
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
    data = frame(0, 0, 1, b"\0\xff\xff\xff\xff" + bytes(10_000))
    _sent(rig, iter((frame(1, 4, 1, request_headers()), data)), 0.5)
    return count + 1


def _slow_grpc(rig: Rig, scale: float) -> int:
    return _drip(split_address(rig.address), PREFACE, int(200 * scale), 6 * scale)


def _slow_http(rig: Rig, scale: float) -> int:
    """More of them than there are threads, who must all be gone when their time is over."""
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


def fuzz_health(verdict: Verdict, seeds: range, rig: Rig) -> None:
    """The health service of a daemon, which listens in a folder of its own."""
    path = f"{rig.folder}/health0"

    def make(rng: random.Random) -> bytes:
        return _connection_bytes(rng)

    for seed in watched(seeds):
        with judged(verdict, seed, (OSError,)), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(CALL_S)
            line.connect(path)
            line.sendall(make(random.Random(seed)))
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=CALL_S)
        if not answer:
            verdict.blame("a daemon's health service says nothing")
