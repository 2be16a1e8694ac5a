"""Calls that fail before they arrive, after they were done, and while they are being done: after
all of them the cluster is in the state that it has without any failure.

    python -m campaigns.rpc [--seeds N] [--seed S] [--json FILE]

The first call of each method fails in the way that is tried, of the others every fourth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from oneflow.cluster.client import Cluster
from oneflow.cluster.connection import Connection, Patience
from oneflow.core.errors import ClusterUnreachableError, OneFlowError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import DEVICES, Rig, end_in_order, export_jobs
from tests.support.waiting import SceneError, wait_until

from .resume import bits_of

MODES = ("request", "reply", "in flight")
CHANCE = 0.25
STEPS, LONG_STEPS, END_S = 4, 3000, 60.0
TRIES = 20
LATER_S = 0.05  # a call in flight is still on its way when its failure is known


class LostCallError(grpc.RpcError):
    """The errors that gRPC raises for a broken connection."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the rig has lost it"

    def trailing_metadata(self) -> tuple[Any, ...]:
        return ()


class BadConnection(Connection):
    """mode: request, reply, in flight, or "" for none.  counts: failures by method."""

    def __init__(self, address: str, secret: str, mode: str, seed: int) -> None:
        super().__init__(address, lambda: secret, None, Patience(20.0, 20.0))
        self.mode, self.counts = mode, Counter[str]()
        self._rng = random.Random(seed)
        self._late: list[threading.Thread] = []

    def _method(self, service: str, method: str, timeout_s: float) -> tuple[Any, Any]:
        real, metadata = super()._method(service, method, timeout_s)
        fails = self.mode and (not self.counts[method] or self._rng.random() < CHANCE)
        if not fails:
            return real, metadata
        self.counts[method] += 1
        is_stream = method in ("Watch", "Metrics", "Logs", "Outputs")
        broken = self._broken_stream if is_stream else self._broken
        return (lambda *a, **k: broken(real, *a, **k)), metadata

    def _broken(self, real: Any, *arguments: Any, **named: Any) -> Any:
        if self.mode == "reply":
            with suppress(grpc.RpcError):
                real(*arguments, **named)
        elif self.mode == "in flight":
            self._late.append(threading.Thread(target=self._call_late, args=(real, *arguments)))
            self._late[-1].named = named  # type: ignore[attr-defined]
            self._late[-1].start()
        raise LostCallError

    def _call_late(self, real: Any, *arguments: Any) -> None:
        time.sleep(LATER_S)
        named = threading.current_thread().named  # type: ignore[attr-defined]
        with suppress(grpc.RpcError):
            real(*arguments, **named)

    def _broken_stream(self, real: Any, *arguments: Any, **named: Any) -> _Stream:
        return _Stream(real(*arguments, **named) if self.mode != "request" else None, self.mode)

    def settle(self) -> None:
        for thread in self._late:
            thread.join()


class _Stream:
    """One that breaks: at once, after its first message, or after its second."""

    def __init__(self, messages: Any, mode: str) -> None:
        self._messages, self._left = messages, {"request": 0, "reply": 1, "in flight": 2}[mode]

    def __iter__(self) -> Iterator[Any]:
        for message in self._messages or ():
            if not self._left:
                break
            self._left -= 1
            yield message
        raise LostCallError

    def initial_metadata(self) -> Any:
        if self._messages is None:
            raise LostCallError
        return self._messages.initial_metadata()

    def cancel(self) -> None:
        if self._messages is not None:
            self._messages.cancel()


# ---- what a user does ----------------------------------------------------------------------------


class User:
    """Does everything once. prefix: of names, so that runs on one cluster do not meet."""

    def __init__(self, cluster: Cluster, jobs: Path, prefix: str) -> None:
        self._cluster, self._jobs, self._prefix = cluster, jobs, prefix
        self.unknown: set[str] = set()  # calls of which nobody knows whether they were done

    def does_it_all(self) -> dict[str, Any]:
        """Lines that it saw; equal for every mode."""
        found: dict[str, Any] = {}
        found["trained"] = self._trains()
        self._cancels()
        self._restarts()
        self._removes()
        found["answer"] = self._infers()
        found["logs"] = self._reads_logs()
        self._makes_tokens()
        self._cluster.status()
        list(self._cluster.jobs(limit=3))
        return found

    def _submit(self, name: str, file: str, **options: Any) -> Any:
        path, job_id = str(self._jobs / file), f"{self._prefix}-{name}"
        return self._cluster.submit(path, job_id=job_id, **options)

    def _trains(self) -> Any:
        job = self._submit("train", "dense.job", devices=2)
        points = [(p.step, p.values["loss"].hex()) for p in job.metrics()]
        record = job.wait(END_S)
        bits = bits_of(job)
        if len(set(points)) != len(points) or not set(points) <= set(bits.losses):
            raise SceneError(f"points of its metrics are not those of the job: {points}")
        return str(record.state), record.attempt, bits

    def _cancels(self) -> None:
        job = self._submit("cancel", "dense.job", devices=2, steps=LONG_STEPS)
        wait_until(lambda: job.status().last_step >= 1, "it runs")
        job.cancel()
        job.wait(END_S)

    def _restarts(self) -> None:
        job = self._submit("restart", "dense.job", devices=1, steps=STEPS)
        job.wait(END_S)
        for _ in range(TRIES):  # a user who has looked and finds it not done asks again
            record = job.status()
            if not record.state.is_final or record.attempt > 1:
                break
            try:
                job.restart()
            except ClusterUnreachableError:
                self.unknown.add("Restart")
                time.sleep(4 * LATER_S)
        wait_until(
            lambda: job.status().attempt == 2 and job.status().state.is_final, "it ran again"
        )

    def _removes(self) -> None:
        job = self._submit("remove", "dense.job", devices=1, steps=STEPS)
        job.wait(END_S)
        job.remove()

    def _infers(self) -> Any:
        import numpy as np

        job = self._submit("infer", "infer.job", devices=1)
        wait_until(lambda: str(job.status().state) == "RUNNING", "it serves")
        answer = job.run({"x": np.ones((2, 6), np.float32)})
        job.cancel()
        job.wait(END_S)
        return {name: array.tobytes() for name, array in answer.items()}

    def _reads_logs(self) -> list[str]:
        """Submits with a folder of its own, so that something has to be sent and fetched."""
        argv = [sys.executable, "say.py"]
        with tempfile.TemporaryDirectory() as folder:
            text = f"print('one'); print('two'); print('three')  # {self._prefix}\n"
            Path(folder, "say.py").write_text(text)
            job_id = f"{self._prefix}-log"
            job = self._cluster.submit_script(argv, working_dir=folder, job_id=job_id, devices=1)
        job.wait(END_S)
        return [line.text for line in job.logs()]

    def _makes_tokens(self) -> None:
        for name, last in (("kept", "RotateToken"), ("gone", "RevokeToken")):
            whole = f"{self._prefix}.{name}"
            for method in ("CreateToken", last):
                request = pb.TokenRequest(name=whole)
                if method == "CreateToken":
                    request.role = "view"
                self._ask_once(method, request, whole)

    def _ask_once(self, method: str, request: Any, name: str) -> None:
        """Looks whether the request is done already, as the message says."""
        before = self._tokens(name)
        for _ in range(TRIES):
            if self._tokens(name) != before:
                break
            try:
                self._cluster.ask(method, request)
            except ClusterUnreachableError:
                self.unknown.add(method)
                time.sleep(4 * LATER_S)

    def _tokens(self, name: str) -> list[Any]:
        found = self._cluster.ask("ListTokens", pb.Empty()).tokens
        return [(t.role, t.created_at) for t in found if t.name == name]


def state_of(rig: Rig, prefix: str) -> dict[str, Any]:
    """All that a user's calls have left: jobs and tokens."""
    jobs = {}
    for record in rig.client().jobs():
        name = record.id.removeprefix(f"{prefix}-")
        if name != record.id:
            jobs[name] = (str(record.state), record.reason, record.attempt, record.exit_code)
    tokens: Counter[Any] = Counter()
    for token in rig.client().ask("ListTokens", pb.Empty()).tokens:
        name = token.name.removeprefix(f"{prefix}.")
        if name != token.name:
            tokens[name, token.role] += 1
    return {"jobs": jobs, "tokens": dict(tokens)}


# ---- running -------------------------------------------------------------------------------------


def run_modes(folder: Path, seeds: range) -> list[dict[str, Any]]:
    """One row for each seed and mode."""
    jobs = export_jobs(folder / "jobs")
    export_inference(jobs)
    place = folder / "rig"
    place.mkdir()
    rows = []
    with _failing_rig(place, seeds.start) as found:
        wanted = one_run(found, jobs, "", 0, "calm")
        if wanted["error"]:
            raise SceneError(f"without any failure: {wanted['error']}")
        for seed in seeds:
            for mode in MODES:
                prefix = f"m{seed}-{mode.replace(' ', '-')}"
                row = one_run(found, jobs, mode, seed, prefix)
                odd = [k for k in ("seen", "state") if row[k] != wanted[k]]
                if not row["error"] and odd:
                    row["error"] = f"{odd[0]} differs: {_difference(row[odd[0]], wanted[odd[0]])}"
                row["fetches"] = found.log("scheduler").count("rig: a fetch fails")
                rows.append(row)
                print(
                    f"seed {seed} {mode:9} {sum(row['failed'].values()):4} calls failed of "
                    f"{len(row['failed'])} methods {row['seconds']:5.1f} s  "
                    f"{row['error'] or 'the same state'}",
                    flush=True,
                )
    return rows


@contextmanager
def _failing_rig(folder: Path, seed: int) -> Iterator[Rig]:
    """A cluster whose daemons cannot rely on Fetch either."""
    found = Rig(folder)
    found.given["scheduler"] = {"fetch_fails": seed}
    with found:
        yield found


def one_run(found: Rig, jobs: Path, mode: str, seed: int, prefix: str) -> dict[str, Any]:
    started = time.monotonic()
    secret = read_token_file(found.folder / "scheduler" / "token")
    connection = BadConnection(found.address, secret, mode, seed)
    row: dict[str, Any] = {"mode": mode, "seed": seed, "error": "", "seen": {}, "state": {}}
    try:
        with Cluster(connection) as cluster:
            user = User(cluster, jobs, prefix)
            row["seen"] = user.does_it_all()
            connection.settle()
            row["unknown"] = sorted(user.unknown)
            row["state"] = state_of(found, prefix)
            end_cluster(found, cluster)
            connection.settle()
    except (SceneError, OneFlowError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
        waiting = {r.id: f"{r.state} {r.pending} {r.cause}" for r in found.client().jobs(limit=3)}
        row["error"] += f" {waiting}"
    row["failed"] = dict(connection.counts)
    row["seconds"] = time.monotonic() - started
    return row


def end_cluster(found: Rig, cluster: Cluster) -> None:
    """Drain and Shutdown; the rig starts all of it anew."""
    cluster.drain("rig", 0.0)
    if any(daemon.state != "draining" for daemon in found.client().status().daemons):
        raise SceneError("it is not drained")
    with suppress(ClusterUnreachableError):  # the answer may be the last thing it does
        cluster.ask("Shutdown", pb.DrainRequest(grace_s=0.0))
    wait_until(lambda: not found.is_alive("scheduler"), "the scheduler ends")
    if (code := found.processes["scheduler"].returncode) != 0:
        raise SceneError(f"the scheduler ended with {code}")
    for device in DEVICES:
        found.processes[device].terminate()
    wait_until(lambda: not any(found.is_alive(d) for d in DEVICES), "daemons leave")
    found.repair()


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    odd = [f"{k}: {found.get(k)} not {v}" for k, v in wanted.items() if found.get(k) != v]
    return "; ".join(odd)[:600]


def export_inference(jobs: Path) -> None:
    """Two numbers of six."""
    import oneflow as flow
    from oneflow import nn

    class Scores(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            flow.manual_seed(1)
            self.model = nn.Linear(6, 2)

        def build(self, x: Any) -> Any:
            return self.model(x)

    Scores().export(jobs / "infer.job", inputs={"x": flow.zeros(2, 6)})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        rows = run_modes(Path(folder), range(args.seed, args.seed + args.seeds))
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["failed"])
    print(f"{max(row['fetches'] for row in rows)} calls of Fetch failed")
    print("| method | calls that failed |\n|---|---|")
    for method, count in sorted(total.items()):
        print(f"| {method} | {count} |")
    bad = [row for row in rows if row["error"]]
    for row in bad:
        again = f"--seeds 1 --seed {row['seed']}"
        print(f"{row['mode']}: {row['error']}\n  again: python -m campaigns.rpc {again}")
    print(f"{len(rows)} runs, {sum(total.values())} failed calls, {len(bad)} in another state")
    if args.json:
        kept = [{k: v for k, v in row.items() if k not in ("seen", "state")} for row in rows]
        args.json.write_text(json.dumps(kept, indent=1))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
