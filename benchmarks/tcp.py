"""Collectives of two ranks on different hosts: ours over TCP against a raw copy between sockets.

    python benchmarks/tcp.py [--ops all_gather,broadcast,all_reduce] [--sizes 1048576] [--loopback]

The hosts are two network namespaces joined by a virtual cable, which needs root; --loopback, or
where that is not permitted, lets two processes of this host believe that they are on different
ones. Both sides run in the same two
processes, in turns, each turn after a barrier. The raw side moves the bytes that the collective has
to move over as many connections as are fastest (1, 2 or 4), each with a thread that calls sendall
on its part and one that calls recv_into on memory that is there, in both directions at once where
the collective does. The op `plan` is an all_reduce
through the runtime: actors, registers and their TCP connections. A turn lasts until the slower rank
is done. ratio is the time of the raw copy over ours: paired medians with 10th and 90th percentile;
bytes are those of one rank's input.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import REST_S, arguments, paired, report
from plan_sum import planned

from oneflow.distributed.world import world
from oneflow.scheduler.ports import free_port

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20]
OPS = ("all_gather", "broadcast", "all_reduce")
LOOPBACK = "loopback"
STREAMS = (1, 2, 4)
ADDRESSES = ("10.214.0.1", "10.214.0.2")
Array = np.ndarray[Any, Any]


class RawCopy:
    """Connections of its own between the two ranks; each way has a thread for each of them."""

    def __init__(self) -> None:
        self._sockets = self._connect()
        self._threads = ThreadPoolExecutor(2 * max(STREAMS))

    def _connect(self) -> list[socket.socket]:
        here, count = world(), max(STREAMS)
        if here.rank == 0:
            host = os.environ["BENCHMARK_HOST"]
            with socket.create_server((host, 0), backlog=count) as listener:
                here.client.put("raw", f"{host} {listener.getsockname()[1]}".encode())
                return [listener.accept()[0] for _ in range(count)]
        address, port = here.client.get("raw", 60.0).decode().split()
        return [socket.create_connection((address, int(port))) for _ in range(count)]

    def run(self, streams: int, send: Array | None, into: Array | None) -> None:
        """Each stream moves a part of its own, all at once."""
        doing: list[Future[None]] = []
        for i, connection in enumerate(self._sockets[:streams]):
            for act, array in ((_receive, into), (_send, send)):
                if array is not None:
                    part = np.array_split(array, streams)[i].data.cast("B")
                    doing.append(self._threads.submit(act, connection, part))
        for done in doing:
            done.result()


def _send(connection: socket.socket, part: memoryview) -> None:
    connection.sendall(part)


def _receive(connection: socket.socket, part: memoryview) -> None:
    while part:
        part = part[connection.recv_into(part) :]


def sides_of(op: str, x: Array, raw: RawCopy) -> dict[str, Callable[[], Any]]:
    """Ours, and the copy by each number of streams."""
    here, is_first = world().everyone, world().rank == 0
    into, out = np.ones_like(x), np.ones_like(x)
    ours: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: here.all_gather(x),
        "broadcast": lambda: here.broadcast(x, 0),
        "all_reduce": lambda: here.all_reduce(x, out=out),
    }
    moved = (x, into)
    if op == "broadcast":
        moved = (x, None) if is_first else (None, into)
    sides = {"ours": planned(x, "cpu") if op == "plan" else ours[op]}
    return sides | {f"{n}": partial(raw.run, n, *moved) for n in STREAMS}


def measure(op: str, nbytes: int, rounds: int, raw: RawCopy) -> dict[str, Any]:
    here = world().everyone
    x = np.random.default_rng(world().rank).standard_normal(nbytes // 4).astype(np.float32)
    sides = sides_of(op, x, raw)
    check(op, x, sides["ours"]())
    before = here.received_nbytes
    sides["ours"]()
    moved = here.received_nbytes - before
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 3):
        for name, run in sides.items():
            time.sleep(REST_S)
            here.barrier()
            start = time.perf_counter()
            run()
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    slower = {
        name: here.all_reduce(np.array(found), op="max").tolist() for name, found in times.items()
    }
    best = min(STREAMS, key=lambda n: statistics.median(slower[f"{n}"]))
    found = paired(slower, "ours", f"{best}")
    rate = (moved or nbytes) / found["ours_s"] / 1e9
    return {"op": op, "bytes": nbytes, "streams": best, **found, "GB/s": rate, "received": moved}


def check(op: str, x: Array, result: Array) -> None:
    """The values, against the expected inputs of both ranks."""
    all_x = [
        np.random.default_rng(r).standard_normal(x.size).astype(np.float32)
        for r in range(world().world_size)
    ]
    expected = {"all_gather": np.concatenate(all_x), "broadcast": all_x[0]}
    np.testing.assert_array_equal(result, expected.get(op, sum(all_x)))


def run_rank(options: Any) -> None:
    sizes = [int(s) for s in options.sizes.split(",")] if options.sizes else SIZES
    raw = RawCopy()
    rows = [
        measure(op, nbytes, options.rounds, raw)
        for op in options.ops.split(",")
        for nbytes in sizes
    ]
    if world().rank == 0:
        where = os.environ["BENCHMARK_WHERE"]
        kind = type(world().everyone).__name__
        report(f"ours ({kind}) against raw sockets, {where}, s per call", rows, options.json)


@contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """Commands that run a program on one of two hosts joined by a cable."""
    mark = uuid.uuid4().hex[:6]
    names = [f"of{mark}{i}" for i in (0, 1)]
    try:
        for name in names:
            ip("netns", "add", name)
        ends = ("netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        ip("link", "add", "cable", *ends)
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def start(prefixes: list[list[str]], hosts: tuple[str, str], kind: str) -> int:
    """Both ranks; returns the first exit code that is not 0. kind: of hosts, for the title."""
    world_env = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    where = {"MASTER_ADDR": hosts[0], "MASTER_PORT": str(free_port())}
    where |= {"ONEFLOW_JOB_TOKEN": uuid.uuid4().hex * 2, "BENCHMARK_WHERE": kind}
    ranks = []
    for rank, prefix in enumerate(prefixes):
        env = {**os.environ, **world_env, **where, "RANK": str(rank), "BENCHMARK_HOST": hosts[rank]}
        if kind == LOOPBACK:
            env["ONEFLOW_HOST_IDENTITY"] = f"host{rank}"
        command = [*prefix, sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        ranks.append(subprocess.Popen(command, env=env))
    try:
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return next((code for code in codes if code), 0)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--sizes", default="", help="bytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--loopback", action="store_true", help="no namespaces: needs no root")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    if not options.loopback:
        try:
            with two_hosts() as prefixes:
                raise SystemExit(start(prefixes, ADDRESSES, "two network namespaces"))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no network namespaces, so over loopback: {error}", file=sys.stderr)
    raise SystemExit(start([[], []], ("127.0.0.1", "127.0.0.1"), LOOPBACK))


if __name__ == "__main__":
    main()
