"""Ranks whose clocks differ by a known time: a trace measures it to its stated error."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.services.traces import merge
from tests.support.simulated.worker_peer import Attempt, Worker, pb

from .line_graph import Line

AHEAD_S = 1000
OTHER_CLOCK = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "--kill-child"]
STEPS = 30


def has_other_clocks() -> bool:
    try:
        done = subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and os.path.exists("/proc/self/ns/time")


def ask(worker: Worker, number: int, what: str, **order: Any) -> Any:
    request = pb.Inspect(request=number, what="trace", trace=pb.TraceOrder(what=what, **order))
    worker.send(inspect=request)
    return worker.wait_for(lambda m: m.inspected.request == number).inspected


@pytest.mark.skipif(not has_other_clocks(), reason="needs the right to make time namespaces")
def test_what_is_measured_of_two_clocks_is_true(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    data = flow.jobs.data.arrays(x=x, y=3 * x).batch(16).repeat()
    flow.jobs.save(Line(), tmp_path / "line.job", data=data, steps=10**7)
    attempt = Attempt(tmp_path / "line.job", tmp_path / "job", 2, prefixes=[[], OTHER_CLOCK])
    try:
        attempt.until_step(1)
        for worker in attempt.workers:
            order = {"trace": "t1", "ranks": [0, 1], "steps": STEPS}
            assert not ask(worker, 1, "start", **order).error
        for worker in attempt.workers:
            number = 1
            while ask(worker, number := number + 1, "look").trace.state != "done":
                time.sleep(0.02)
    finally:
        attempt.kill()
    paths = [tmp_path / "job" / "outputs" / f"trace-rank{rank}.json.gz" for rank in range(2)]
    heads = [json.loads(gzip.decompress(path.read_bytes()))["otherData"] for path in paths]
    assert heads[0]["offset_ns"] == 0 and heads[0]["boot_id"] != heads[1]["boot_id"]
    error = heads[1]["offset_error_ns"]
    assert abs(heads[1]["offset_ns"] - AHEAD_S * 10**9) <= error < AHEAD_S * 10**7
    found = merge(paths, tmp_path / "both.json.gz")
    assert found.clocks[1].startswith("measured, to ")
    events = json.loads(gzip.decompress((tmp_path / "both.json.gz").read_bytes()))["traceEvents"]
    begins = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys() and begins
    assert all(begins[name] <= ends[name] + error / 1000 for name in begins)
