"""A cluster that takes jobs: time to the first step, requests a second, latencies.

    python benchmarks/cluster.py [--rounds 5] [--only first_step,infer] [--json FILE]

`first_step`: a data-parallel training on 2 ranks, from starting the client's process until the
first step is done: `oneflow job submit` of a graph job whose plan the cluster has, `torchrun` of
the same training over gloo, and `ray job submit` of it to a local Ray that runs already. In turns;
losses are compared; job_starts.py looks closer at ours. `calls`: submit and status. `scrape`:
/metrics. `infer`: single rows of the same network, by so many clients, beside Ray Serve over HTTP;
answers are compared. A row that needs PyTorch, ray[default] or ray[serve] is left out, and said
to be, where they are not installed.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray_side
from measure import arguments, paired, report
from own_cluster import (
    OwnCluster,
    export_nothing,
    export_prediction,
    export_training,
    make_setup,
    scrape,
)

from oneflow.cluster.submitting import make_spec, new_job_id, send_job, upload
from oneflow.scheduler.jobs.records import JobKind

PARTS = ("first_step", "calls", "scrape", "infer")
STEPS, DAEMONS = 20, 2
PACE_S = 0.06  # a token may ask 20 times a second; the limit is not what is measured
END_S = 300.0
INFER_BATCH, BATCH_WAIT_S = 32, 0.002
GOALS = {"torchrun": 5.0, "ray job submit": 10.0}
HERE = Path(__file__).parent

Row = dict[str, Any]
Array = np.ndarray[Any, Any]
Losses = list[float]


# ---- from submitting to the first step -----------------------------------------------------------


class FirstStep:
    """Each side: seconds from its client's start to the end of the first step, and all losses."""

    def __init__(self, own: OwnCluster, ray: ray_side.LocalRay | None, setup: Path) -> None:
        self._own, self._ray, self._setup = own, ray, setup
        self._job_file = own.folder / "train.job"
        export_training(dict(np.load(setup)), self._job_file, STEPS)
        self._result = own.folder / "result.json"
        self._ddp = [
            str(HERE / "sides" / "ddp_digits.py"),
            str(setup),
            str(self._result),
            str(STEPS),
        ]

    def sides(self) -> dict[str, Callable[[], tuple[float, Losses]]]:
        found = {"oneflow job submit": self.ours, "from a client": self.ours_connected}
        if importlib.util.find_spec("torch"):
            found["torchrun"] = self.torchrun
        if self._ray is not None:
            found["ray job submit"] = self.ray
        return found

    def ours(self) -> tuple[float, Losses]:
        self._own.wait_warm()
        begun = time.time()
        job_id = self._own.run("job", "submit", str(self._job_file), "--devices", "2").strip()
        with self._own.connect() as cluster:
            return self._end(cluster.job(job_id), begun)

    def ours_connected(self) -> tuple[float, Losses]:
        self._own.wait_warm()
        with self._own.connect() as cluster:
            begun = time.time()
            return self._end(cluster.submit(self._job_file, devices=2), begun)

    def _end(self, job: Any, begun: float) -> tuple[float, Losses]:
        record = job.wait(END_S)
        if record.state != "SUCCEEDED":
            raise SystemExit(f"our job ended {record.state}: {record.reason} {record.cause}")
        lines = job.output("metrics.jsonl").decode().splitlines()
        return record.first_step_at - begun, [json.loads(line)["loss"] for line in lines]

    def torchrun(self) -> tuple[float, Losses]:
        begun = time.time()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", "2", *self._ddp]
        done = subprocess.run(command, capture_output=True, text=True, timeout=END_S)
        if done.returncode:
            raise SystemExit(f"torchrun: {done.stderr}")
        return self._other_end(begun)

    def ray(self) -> tuple[float, Losses]:
        assert self._ray is not None
        begun = time.time()
        client = self._ray.submit([sys.executable, *self._ddp, "--ranks", "2"])
        _, said = client.communicate(timeout=END_S)
        if client.returncode:
            raise SystemExit(f"ray job submit: {said.decode()[-2000:]}")
        return self._other_end(begun)

    def _other_end(self, begun: float) -> tuple[float, Losses]:
        deadline = time.monotonic() + END_S
        while not self._result.exists():
            if time.monotonic() > deadline:
                raise SystemExit("the other side's training did not end")
            time.sleep(0.05)
        found = json.loads(self._result.read_text())
        self._result.unlink()
        return found["first_step_at"] - begun, found["losses"]


def measure_first_step(first: FirstStep, rounds: int) -> list[Row]:
    """Sides in turns; the first turn of each (compiling, caches) is not counted."""
    sides = first.sides()
    times: dict[str, list[float]] = {name: [] for name in sides}
    wanted: Losses = []
    for turn in range(rounds + 1):
        for name, run in sides.items():
            seconds, losses = run()
            wanted = wanted or losses
            np.testing.assert_allclose(losses, wanted, rtol=1e-4, err_msg=name)
            if turn:
                times[name].append(seconds)
    ours = "oneflow job submit"
    rows = []
    for name, found in times.items():
        ratios = paired(times, ours, name)
        row: Row = {"what": name, "median_s": statistics.median(found), "max_s": max(found)}
        row |= {k: ratios[k] for k in ("ratio", "ratio_p10", "ratio_p90")}
        rows.append(row | {"to_reach": GOALS.get(name, "-")})
    return rows


# ---- calls, scrapes ------------------------------------------------------------------------------


def measure_calls(own: OwnCluster, calls: int) -> list[Row]:
    """Jobs that must wait for ever (no such devices), so that nothing runs beside the calls."""
    path = own.folder / "nothing.job"
    export_nothing(path)
    with own.connect() as cluster:
        upload(cluster.connection, path)  # the first time it is kept
        digest = upload(cluster.connection, path)
        spec = make_spec(JobKind.GRAPH, {"devices": 2 * DAEMONS}, graph=digest)
        ids = [new_job_id() for _ in range(calls)]
        connection = cluster.connection
        submits = seconds_each(lambda i: send_job(connection, ids[i], spec), calls, PACE_S)
        looks = seconds_each(lambda i: cluster.job(ids[i]).status(), calls, PACE_S)
        lists = seconds_each(lambda i: cluster.page({}, 100), calls, PACE_S)
        seconds_each(lambda i: cluster.job(ids[i]).cancel(), calls, PACE_S)
    return [
        quantiles(what, found)
        for what, found in (("submit", submits), ("status", looks), ("list", lists))
    ]


def measure_scrapes(own: OwnCluster, calls: int) -> list[Row]:
    rows = []
    addresses = own.metrics_addresses()
    for address in addresses:
        page = scrape(address)
        names = [line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[:1] != "#"]
        component = "scheduler" if 'component="scheduler"' in page else "daemon"
        row = quantiles(
            f"/metrics of a {component}", seconds_each(lambda i, a=address: scrape(a), calls)
        )
        rows.append(row | {"series": len(names), "kib": len(page) / 1024, "to_reach_ms": 50.0})
    return rows


def seconds_each(call: Callable[[int], Any], count: int, pace_s: float = 0.0) -> list[float]:
    """pace_s: from one call to the next, at least."""
    times = []
    for index in range(count):
        start = time.perf_counter()
        call(index)
        times.append(time.perf_counter() - start)
        time.sleep(max(pace_s - times[-1], 0.0))
    return times


def quantiles(what: str, times: list[float]) -> Row:
    found = sorted(times)
    p99 = found[min(len(found) - 1, len(found) * 99 // 100)]
    return {"what": what, "p50_ms": 1e3 * statistics.median(found), "p99_ms": 1e3 * p99}


# ---- inference -----------------------------------------------------------------------------------


def measure_inference(own: OwnCluster, setup: Path, seconds: float) -> list[Row]:
    """Clients are threads of this process; each waits for its answer before it asks again."""
    found = dict(np.load(setup))
    path = own.folder / "predict.job"
    export_prediction(found, path, INFER_BATCH)
    own.wait_warm()
    sides: dict[str, Callable[[], Callable[[Array], Array]]] = {}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(own.connect())
        job = cluster.submit(path, devices=1)
        stack.callback(job.cancel)
        sides["ours"] = lambda: lambda x: np.asarray(job.run({"x": x})["scores"])
        missing = ray_side.lacks(ray_side.SERVE_NEEDS)
        if missing:
            print(f"Ray Serve is left out: {missing} is not installed")
        else:
            port = stack.enter_context(serving(setup))
            sides["Ray Serve"] = lambda: over_http(port)
        check_answers(sides, found)
        return [
            run_clients(name, make, found["images"], clients, seconds)
            for clients in (1, 8, 32)
            for name, make in sides.items()
        ]


@contextlib.contextmanager
def serving(setup: Path) -> Iterator[int]:
    """A Ray of its own with the Serve application; the port it answers at."""
    port = ray_side.free_port()
    with ray_side.LocalRay() as ray:
        end = ray_side.serve_digits(ray, setup, port, INFER_BATCH, BATCH_WAIT_S)
        try:
            yield port
        finally:
            end()


def over_http(port: int) -> Callable[[Array], Array]:
    """A client that keeps its connection."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(x: Array) -> Array:
        line.request("POST", "/", body=x.tobytes())
        return np.frombuffer(line.getresponse().read(), np.float32).reshape(1, 10)

    return ask


def check_answers(sides: dict[str, Any], setup: dict[str, Array]) -> None:
    x = setup["images"][:1]
    hidden = np.tanh(x @ setup["0.weight"].T + setup["0.bias"])
    wanted = hidden @ setup["2.weight"].T + setup["2.bias"]
    for name, make in sides.items():
        np.testing.assert_allclose(answer_of(make(), x), wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def answer_of(ask: Callable[[Array], Array], x: Array) -> Array:
    """Once it answers: a job that was just submitted does not run yet."""
    deadline = time.monotonic() + END_S
    while True:
        try:
            return ask(x)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def run_clients(
    name: str, make: Callable[[], Callable[[Array], Array]], images: Array, clients: int, s: float
) -> Row:
    times: list[list[float]] = [[] for _ in range(clients)]
    begin = threading.Barrier(clients + 1)
    end = [0.0]

    def client(number: int) -> None:
        ask, x = make(), images[number : number + 1]
        ask(x)
        begin.wait()
        while (start := time.perf_counter()) < end[0]:
            ask(x)
            times[number].append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    end[0] = time.perf_counter() + END_S
    while begin.n_waiting < clients:
        time.sleep(0.01)
    end[0] = time.perf_counter() + s
    begin.wait()
    for thread in threads:
        thread.join(s + 60)
    every = [t for own in times for t in own]
    row = quantiles(f"{name}, {clients} clients", every)
    return row | {"requests_per_s": len(every) / s}


# ---- all -----------------------------------------------------------------------------------------


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=90, help="at most 100 may be queued")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row of `infer`")
    parser.add_argument("--only", default=",".join(PARTS), help="some of these, with commas")
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters end with us
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    results: list[tuple[str, list[Row]]] = []
    with OwnCluster(DAEMONS) as own:
        setup = own.folder / "setup.npz"
        make_setup(setup)
        print(f"our cluster was up after {own.up_s:.2f} s")
        for part in parts:
            results.append((part, measure(part, own, setup, args)))
    rows = []
    for title, found in results:
        report(title, found, None)
        rows += [{"part": title, **row} for row in found]
    if args.json:
        report("cluster", rows, args.json)


def measure(part: str, own: OwnCluster, setup: Path, args: Any) -> list[Row]:
    if part == "calls":
        return measure_calls(own, args.calls)
    if part == "scrape":
        return measure_scrapes(own, args.calls)
    if part == "infer":
        return measure_inference(own, setup, args.seconds)
    missing = "--no-ray" if args.no_ray else ray_side.lacks(ray_side.JOB_NEEDS)
    if missing:
        print(f"ray job submit is left out: {missing}")
        return measure_first_step(FirstStep(own, None, setup), args.rounds)
    with ray_side.LocalRay() as ray:
        return measure_first_step(FirstStep(own, ray, setup), args.rounds)


if __name__ == "__main__":
    main()
