"""Our side of the cluster benchmark: a cluster of this machine in folders of its own, and its
jobs.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.cluster.local_record import read_record
from oneflow.scheduler.jobs.tokens import read_token_file

DIGITS = Path(__file__).parent.parent / "examples" / "data" / "digits.txt.gz"
BATCH, LR, MOMENTUM = 64, 0.1, 0.9
WARM_S, SETTLE_S = 60.0, 3.0
Array = np.ndarray[Any, Any]


class OwnCluster:
    """`oneflow cluster up` in a folder that goes away with the `with`."""

    def __init__(self, daemons: int) -> None:
        self.daemons = daemons
        self._folder = tempfile.TemporaryDirectory(prefix="oneflow-bench-")
        self.folder = Path(self._folder.name)
        (self.folder / "run").mkdir(mode=0o700)
        own = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
        self.env = own | {
            "ONEFLOW_STATE_DIR": str(self.folder / "state"),
            "ONEFLOW_CONFIG_DIR": str(self.folder / "config"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
        }

    def __enter__(self) -> OwnCluster:
        begun = time.perf_counter()
        self.run("cluster", "up", "--daemons", str(self.daemons))
        self.up_s = time.perf_counter() - begun
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.run("cluster", "down")
        self._folder.cleanup()

    def run(self, *words: str) -> str:
        """A verb of the command line; its standard output."""
        done = self.start(*words)
        out, err = done.communicate(timeout=300)
        if done.returncode:
            raise SystemExit(f"oneflow {' '.join(words)}: {err}")
        return out

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "oneflow", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def connect(self) -> Any:
        record = read_record(self.folder / "state")
        if record is None:
            raise SystemExit("the cluster of this benchmark is gone")
        return flow.cluster.connect(
            record.address, read_token_file(self.folder / "config" / "token")
        )

    def wait_warm(self) -> None:
        """Until every daemon can fork a worker, as in a cluster that waits for its next job."""
        deadline = time.monotonic() + WARM_S
        while time.monotonic() < deadline:
            pages = [scrape(address) for address in self.metrics_addresses()]
            if sum('oneflow_daemon_workers{state="warm"} 1.0' in p for p in pages) == self.daemons:
                time.sleep(SETTLE_S)
                return
            time.sleep(0.1)
        raise SystemExit(f"no daemon can fork workers after {WARM_S:g} s")

    def metrics_addresses(self) -> list[str]:
        """Of the scheduler and all daemons."""
        found = json.loads(self.run("cluster", "metrics-targets"))
        return [target for entry in found for target in entry["targets"]]


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
        return text


# ---- jobs ----------------------------------------------------------------------------------------


def make_setup(path: Path) -> dict[str, Array]:
    """Digits and first weights for both sides; written as npz."""
    lines = gzip.decompress(DIGITS.read_bytes()).decode().split()
    values = np.array([[int(c, 17) for c in line] for line in lines])
    rng = np.random.default_rng(0)
    setup = {
        "images": values[:, :64].astype(np.float32) / 16,
        "labels": values[:, 64].astype(np.int64),
        "0.weight": rng.normal(0, 0.1, (96, 64)).astype(np.float32),
        "0.bias": np.zeros(96, np.float32),
        "2.weight": rng.normal(0, 0.1, (10, 96)).astype(np.float32),
        "2.bias": np.zeros(10, np.float32),
        "batch": np.array(BATCH),
        "lr": np.array(LR),
        "momentum": np.array(MOMENTUM),
    }
    np.savez(path, **setup)
    return setup


def make_model(setup: dict[str, Array]) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 10))
    model.load_state_dict({name: flow.tensor(setup[name]) for name in model.state_dict()})
    return model


class Train(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM))

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: flow.Tensor) -> dict[str, flow.Tensor]:
        return {"scores": self.model(x)}


def export_training(setup: dict[str, Array], path: Path, steps: int) -> None:
    data = flow.jobs.data.arrays(x=setup["images"], y=setup["labels"]).batch(BATCH).repeat()
    Train(make_model(setup)).export(path, data=data, steps=steps)


def export_prediction(setup: dict[str, Array], path: Path, batch: int) -> None:
    Predict(make_model(setup).eval()).export(path, inputs={"x": flow.zeros(batch, 64)})


def export_nothing(path: Path) -> None:
    """One step that does next to nothing, on two ranks or four."""
    data = flow.jobs.data.arrays(x=np.ones((4, 1), np.float32), y=np.zeros(4, np.int64)).batch(4)
    Train(nn.Linear(1, 2)).export(path, data=data.repeat(), steps=1)
