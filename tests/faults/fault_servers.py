"""What a running scheduler answers to bytes that nobody means: gRPC calls and HTTP requests."""

from __future__ import annotations

import random
import socket
import time
import urllib.request
from typing import Any

import grpc
from fault_fuzz import Verdict, judged, mutated, random_message
from fault_rig import Rig

from oneflow.core.config import split_address
from oneflow.core.control_channel import TOKEN_KEY, channel_options
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.tokens import read_token_file

SKIPPED = {"Shutdown", "Drain", "RotateToken", "RevokeToken"}  # they would do what they say
DECLARED = {
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION",
    "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED",
    "UNIMPLEMENTED", "OUT_OF_RANGE", "DEADLINE_EXCEEDED",
}  # fmt: skip
CALL_S = 0.5
CODES = {200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 421, 431, 501, 505}
REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/plain\r\nContent-Length: 0\r\n\r\n"
)


class UndeclaredError(Exception):
    """A status that means a defect of ours."""


def fuzz_servers(rig: Rig, inputs: int, seed: int) -> list[Verdict]:
    """Half of the inputs each; the scheduler must serve afterwards, and be no larger."""
    from fault_fuzz import MAX_GROWTH_NBYTES, say

    found = []
    for name, feed in (("grpc", _feed_grpc), ("http", _feed_http)):
        verdict, start = Verdict(name), time.monotonic()
        feed(rig, Verdict("warm"), range(seed, seed + min(inputs // 2, 100)))
        before = rig.usage()["scheduler"][1].nbytes
        feed(rig, verdict, range(seed, seed + inputs // 2))
        grown = rig.usage()["scheduler"][1].nbytes - before
        if grown > MAX_GROWTH_NBYTES:
            verdict.bad.append(f"the scheduler grew by {grown >> 20} MB")
        _still_serves(rig, verdict)
        say(verdict, time.monotonic() - start, grown)
        found.append(verdict)
    return found


def _still_serves(rig: Rig, verdict: Verdict) -> None:
    status = rig.client().status()
    if not rig.is_alive("scheduler") or len(status.daemons) < 2:
        verdict.bad.append("the scheduler does not serve any more")
    with urllib.request.urlopen(f"http://{status.metrics_address}/healthz", timeout=5) as page:
        if page.status != 200:
            verdict.bad.append(f"/healthz says {page.status}")


def _methods() -> list[tuple[str, Any, bool, bool]]:
    """(path, kind of request, is the request a stream, the answer one) of every method."""
    found = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            if method.name not in SKIPPED:
                kind = getattr(pb, method.input_type.name)
                path = f"/{service.full_name}/{method.name}"
                found.append((path, kind, method.client_streaming, method.server_streaming))
    return found


def _feed_grpc(rig: Rig, verdict: Verdict, seeds: range) -> None:
    methods = _methods()
    token = read_token_file(rig.folder / "scheduler" / "token")
    with grpc.insecure_channel(rig.address, options=channel_options()) as channel:
        for seed in seeds:
            rng = random.Random(seed)
            path, kind, streams_up, streams_down = methods[seed % len(methods)]
            bodies = [
                mutated(rng, random_message(rng, kind).SerializeToString())
                for _ in range(rng.choice((1, 2)) if streams_up else 1)
            ]
            word = f"Bearer {token}" if rng.random() < 0.9 else "Bearer oft_wrong"
            with judged(verdict, seed, ()):
                code = _call(channel, path, bodies, streams_up, streams_down, word)
                if code not in DECLARED:
                    raise UndeclaredError(f"{path}: {code}")
                verdict.ends[code] += 1


def _call(
    channel: Any, path: str, bodies: list[bytes], streams_up: bool, streams_down: bool, word: str
) -> str:
    kind = f"{'stream' if streams_up else 'unary'}_{'stream' if streams_down else 'unary'}"
    method = getattr(channel, kind)(path)
    request: Any = iter(bodies) if streams_up else bodies[0]
    try:
        answer = method(request, timeout=CALL_S, metadata=((TOKEN_KEY, word),))
        if streams_down:
            for number, _ in enumerate(answer):
                if number > 3:
                    answer.cancel()
                    break
        return "OK"
    except grpc.RpcError as error:
        code = str(error.code().name)  # type: ignore[attr-defined]
        return "OK" if code == "CANCELLED" else code


def _feed_http(rig: Rig, verdict: Verdict, seeds: range) -> None:
    host, port = split_address(rig.client().status().metrics_address)
    for seed in seeds:
        rng = random.Random(seed)
        data = mutated(rng, REQUEST)
        with judged(verdict, seed, ()):
            code = _ask(host, port, data)
            if code and code not in CODES:
                raise UndeclaredError(f"HTTP {code} to {data[:80]!r}")
            verdict.ends[f"HTTP {code}"] += 1


def _ask(host: str, port: int, data: bytes) -> int:
    """The status; 0: the line was closed without one."""
    with socket.create_connection((host, port), 5) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        try:
            head = line.recv(64)
        except ConnectionResetError:
            return 0
    words = head.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
