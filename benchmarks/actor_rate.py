"""Actors per second in one process, and register round trips between two.

    python benchmarks/actor_rate.py [--rounds 7] [--json FILE]

In one process: rings of 20 and of 1,000 no-op actors run by our executor, beside the least Python
could do (a loop that hands a message from one object to the next). The data of 1,000 actors fill
several megabytes, so their rate is that of the caches which the cores share, and falls when others
use them; that of 20 is not. Two processes: a 64-byte register there and back, waits that may sleep,
each process on a core of its own. Ray's actor calls (one caller, one actor, many in flight), if Ray
is installed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import arguments, in_turns, report

RING, LAPS = 1000, 10
SMALL_RING = 20
"""Actors whose objects stay in the first caches of a core."""


def ring_of_actors(ring: int = RING) -> Any:
    """A step of it is RING * LAPS actions: each a Ready taken, a kernel launched, a Ready and a
    Freed sent.
    """
    laps = RING * LAPS // ring
    from oneflow.actors.actor import Actor, Input, Output
    from oneflow.actors.bind import BoundActor
    from oneflow.actors.clock import StepClock
    from oneflow.actors.executor import Executor
    from oneflow.actors.messages import Freed, Ready, Send
    from oneflow.core.actor_kinds import ActorKind

    spec: Any = SimpleNamespace(kind=ActorKind.SEGMENT, acts=laps)
    actors = {}
    for i in range(ring):
        inputs = [Input("in", tuple(Send(i - 1, Freed(0, s)) for s in range(2)))] if i else []
        publish = tuple((Send(i + 1, Ready(0, s)),) for s in range(2))
        outputs = [Output("out", publish, 1)] if i < ring - 1 else []
        actors[i] = BoundActor(spec, Actor(str(i), inputs, outputs), lambda a, b: None)
    bound: Any = SimpleNamespace(actors=actors, codebook={}, clock=StepClock(1), rank=0, turns=None)
    return Executor(bound, None)


class Station:
    """The least an actor can be: takes a message, counts, passes one on."""

    __slots__ = ("count", "target")

    def __init__(self, target: int) -> None:
        self.target, self.count = target, 0

    def handle(self, message: int) -> tuple[int, int]:
        self.count += 1
        return self.target, message


def plain_loop() -> None:
    stations = [Station((i + 1) % RING) for i in range(RING)]
    queue = deque([(0, 1), (0, 2)])  # two messages an action, as a Ready and a Freed
    for _ in range(RING * LAPS * 2):
        target, message = queue.popleft()
        queue.append(stations[target].handle(message))


class FileStore:
    """A key-value store in a folder, so that two processes find each other without a scheduler."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def put(self, key: str, value: bytes) -> None:
        path = self._folder / key.replace("/", "_")
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        path, end = self._folder / key.replace("/", "_"), time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(0.001)
        return path.read_bytes()


ROUND_TRIP = """graph trip pieces=1 {
  %0: float32[16] B = input(; name='x') @cpu[0]
  %1: float32[16] B = to_global(%0) @cpu[1]
  %2: float32[16] ? = scalar_mul(%1; value=2.0) @cpu[1]
  %3: float32[16] B = to_global(%2) @cpu[0]
  output(%3; index=0) @cpu[0]
}"""


PIECES = 500
STREAM = f"""graph stream pieces={PIECES} {{
  %0: float32[{PIECES}, 16] B = input(; name='x') @cpu[0]
  %1: float32[1, 16] B = unpack(%0) @cpu[0]
  %2: float32[1, 16] B = to_global(%1) @cpu[1]
  %3: float32[1, 16] ? = scalar_mul(%2; value=2.0) @cpu[1]
  %4: float32[1, 16] B = to_global(%3) @cpu[0]
  output(%4; index=0) @cpu[0]
}}"""


def round_trips(text: str, x: np.ndarray[Any, Any], count: int) -> list[float]:
    """Seconds of each step on rank 0: its messages have been to rank 1 and back, doubled."""
    from oneflow.core.graph_text import parse_graph
    from oneflow.core.job_config import Cluster, JobConfig
    from oneflow.scheduler.compiler.pipeline import compile_graph

    data = compile_graph(parse_graph(text), JobConfig("trip"), Cluster(2)).to_bytes()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            _trip_rank(1, data, folder, x, count)
            os._exit(0)
        try:
            return _trip_rank(0, data, folder, x, count)
        finally:
            os.waitpid(child, 0)


def _trip_rank(
    rank: int, data: bytes, folder: str, x: np.ndarray[Any, Any], count: int
) -> list[float]:
    from oneflow.actors.fabric import open_fabric
    from oneflow.actors.job import Job
    from oneflow.core.plan import Plan

    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    store = FileStore(folder)
    job = Job(
        Plan.from_bytes(data),
        rank,
        {},
        open_fabric=lambda p, r: open_fabric(p, r, [0, 1], "trip", store, places=("here", "here")),
    )
    times = []
    for _ in range(count):
        start = time.perf_counter()
        result = job.run({"x": x})
        times.append(time.perf_counter() - start)
        if rank == 0 and not np.array_equal(result[0], 2 * x):
            raise SystemExit("the register came back changed")
    job.close()
    return times[count // 10 :]


def ray_calls() -> float | None:
    """Calls per second to one Ray actor, many in flight; None without Ray."""
    try:
        import ray
    except ImportError:
        return None
    ray.init(num_cpus=2, log_to_driver=False)

    @ray.remote
    class Echo:  # type: ignore[misc]
        def call(self, x: bytes) -> bytes:
            return x

    echo: Any = Echo.remote()
    ray.get(echo.call.remote(b""))
    start = time.perf_counter()
    ray.get([echo.call.remote(b"x" * 64) for _ in range(5000)])
    seconds = time.perf_counter() - start
    ray.shutdown()
    return 5000 / seconds


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    rings = {f"{n} actors": ring_of_actors(n).run_step for n in (SMALL_RING, RING)}
    times = in_turns({**rings, "loop": plain_loop}, args.rounds)
    loop = RING * LAPS / statistics.median(times["loop"])
    trips = sorted(round_trips(ROUND_TRIP, np.arange(16, dtype=np.float32), 3000))
    pieces = np.arange(16 * PIECES, dtype=np.float32).reshape(PIECES, 16)
    stream = 2 * PIECES / statistics.median(round_trips(STREAM, pieces, 40))
    rows: list[dict[str, Any]] = []
    for name in rings:
        rate = RING * LAPS / statistics.median(times[name])
        what = f"actions per second, one process, {name}"
        rows.append({"what": what, "ours": rate, "beside": loop, "ratio": rate / loop})
    calls = ray_calls()
    messages = {"one in flight": 2 / statistics.median(trips), "two slots a register": stream}
    for name, found in messages.items():
        rows.append(
            {
                "what": f"register messages per second, two processes, {name}",
                "ours": found,
                "beside": calls if calls else "Ray is not installed",
                "ratio": found / calls if calls else "-",
            }
        )
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        value = trips[int(len(trips) * q)] * 1e6
        rows.append({"what": f"round trip {name}, us", "ours": value, "beside": "-", "ratio": "-"})
    report("actors", rows, args.json)


if __name__ == "__main__":
    main()
