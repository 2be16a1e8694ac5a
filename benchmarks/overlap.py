"""Communication and input that a training step waits for, beside the computing and without.

    python benchmarks/overlap.py [--layers 20] [--pace 16] [--rounds 3] [--batches 20]
                                 [--only exchanges|loading] [--trace DIR] [--json FILE]

Exchanges.
Two ranks that believe to be on different hosts train a stack of linear layers over a link of
`--pace` MB/s (the kernel paces the sockets, SO_MAX_PACING_RATE). Computing is an op that sleeps,
once a layer forward and once back; so two cores suffice, and nothing but the schedule decides. All
of it together takes as long as the exchanges of a step take without it, which is measured first.

Exposed is the time of a step above that of the same step on one rank; `ratio` is the exposed
part with overlap over the time of the exchanges, and `ratio_without` the same without.

`data parallel`: nothing forward, gradients of a layer in each bucket.  `ZeRO 3`: half of a layer is
gathered forward and back, and gradients are scattered.  --trace: writes a step of each, for
Perfetto.

Loading. One rank trains a layer on batches; computing sleeps for as long as loading a batch takes,
which is measured first. Exposed is the time of a step above that of one whose batch is there.

`DataLoader`: a data set that sleeps for each sample, with one worker and without.  `records`: a
decoder of records that sleeps, called by the graph and before it.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, report

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.actors import fabric
from oneflow.actors.tcp import Connection, TcpBus
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel
from oneflow.scheduler.ports import free_port
from oneflow.utils.data import DataLoader, Dataset, records

SO_MAX_PACING_RATE = 47
WIDTH = 512
LAYER_NBYTES = 4 * WIDTH * WIDTH
ROWS = 8


class Nap(Op):
    """x, after `seconds`; the gradient passes after `back` seconds."""

    name = "nap"

    @staticmethod
    def infer(x: Operand, *, seconds: float, back: float) -> TensorType:
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, seconds: float, back: float) -> list[SbpSignature]:
        return leading_signatures(x.ndim, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, seconds: float, back: float) -> Gradients:
        return (nap(d, seconds=back, back=0.0),)


nap = declare(Nap)


@kernel("nap")
def nap_kernel(xp: ArrayModule, out: Array, x: Array, *, seconds: float, back: float) -> None:
    time.sleep(seconds)
    out[...] = x


class Stack(nn.Module):
    """seconds: of a layer, forward and back.  where: None for a rank alone."""

    def __init__(self, layers: int, seconds: tuple[float, float], where: Any) -> None:
        super().__init__()
        self._seconds = seconds
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
        if where is not None:
            self.to_global(where, flow.sbp.broadcast)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = nap(F.relu(layer(x)), seconds=self._seconds[0], back=self._seconds[1])
        return x


class Trains(nn.Graph):
    def __init__(self, model: Stack, stage: int, overlaps: bool) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.01))
        self.config.enable_overlap(overlaps, bucket_nbytes=LAYER_NBYTES)
        self.config.enable_zero(stage > 0, stage=stage or 1)

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def paced(bytes_per_s: int) -> None:
    """Let the connections of graphs send no faster."""

    def bus(some: list[Connection], patience_s: float, for_freed: list[Connection]) -> TcpBus:
        for connection in some:
            connection.socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)
        return TcpBus(some, patience_s, for_freed)

    fabric.TcpBus = bus  # type: ignore[misc, assignment]


def run_rank(options: Any) -> None:
    paced(options.pace * 1_000_000)
    # A rank receives a layer's bytes for an all_reduce; half of them for a gather or a scatter.
    cases = {"data parallel": (0, 0.0), "ZeRO 3": (3, 1 / 3)}
    rows = [measure(name, *case, options) for name, case in cases.items()]
    if world().rank == 0:
        title = f"{options.layers} layers of {LAYER_NBYTES} bytes over {options.pace} MB/s"
        report(title, rows, options.json)


def measure(name: str, stage: int, forward: float, options: Any) -> dict[str, float | str]:
    """forward: share of the computing that is done forward."""
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    both = flow.placement("cpu", [0, 1])
    batches = flow.tensor(x[: ROWS // 2]), flow.tensor(x).to_global(both, flow.sbp.split(0))

    def seconds_of(
        settings: dict[str, tuple[float, bool, bool]], rounds: int, trace: Path | None = None
    ) -> dict[str, float]:
        """settings: seconds of computing, whether both ranks take part, whether it overlaps."""
        graphs = {}
        for key, (total, is_spread, overlaps) in settings.items():
            naps = total * forward / options.layers, total * (1 - forward) / options.layers
            model = Stack(options.layers, naps, both if is_spread else None)
            graphs[key] = Trains(model, stage, overlaps), batches[is_spread]
        times: dict[str, list[float]] = {key: [] for key in graphs}
        for turn in range(rounds + 1):
            for key, (graph, batch) in graphs.items():
                world().everyone.barrier()
                start = time.perf_counter()
                graph(batch)
                world().everyone.barrier()
                if turn:
                    times[key].append(time.perf_counter() - start)
        if trace is not None:
            graph, batch = graphs["with"]
            profile = graph.profile(1, trace / name.replace(" ", "-"))
            graph(batch)
            profile.close()
        return {key: statistics.median(some) for key, some in times.items()}

    idle = seconds_of({"alone": (0.0, False, False), "moves": (0.0, True, False)}, 3)
    moves = float(world().everyone.all_reduce(np.array([idle["moves"] - idle["alone"]]))[0] / 2)
    found = seconds_of(
        {
            "alone": (moves, False, False),
            "without": (moves, True, False),
            "with": (moves, True, True),
        },
        options.rounds,
        options.trace,
    )
    return {
        "case": name,
        "moves_s": moves,
        **{f"{key}_s": seconds for key, seconds in found.items()},
        "ratio_without": (found["without"] - found["alone"]) / moves,
        "ratio": (found["with"] - found["alone"]) / moves,
    }


# ---- loading -------------------------------------------------------------------------------------


LOADING_S = 0.1


class Slow(Dataset):
    """Samples that take LOADING_S a batch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, i: int) -> Any:
        time.sleep(LOADING_S / ROWS)
        return np.full(WIDTH, i, np.float32)


class SlowDecoder(nn.OFRecordRawDecoder):
    """Records whose decoding takes time."""

    def _decode(self, batch: Any) -> Any:
        time.sleep(LOADING_S)
        return super()._decode(batch)


class SlowReader(nn.Module):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.records = nn.OFRecordReader(folder, ROWS)
        self.decode = SlowDecoder("x", (WIDTH,), flow.float32)

    def forward(self) -> Any:
        return self.decode(self.records())


class Loads(nn.Graph):
    """A training step of some seconds on a batch that it is given, or on one that it reads."""

    def __init__(self, seconds: float, reader: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.reader, self._seconds = nn.Linear(WIDTH, WIDTH), reader, seconds
        self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=0.01))

    def build(self, x: Any = None) -> Any:
        x = self.reader() if self.reader else x
        loss = nap(self.layer(x), seconds=self._seconds, back=0.0).square().mean()
        loss.backward()
        return loss


def step_seconds(step: Callable[[], object], steps: int) -> float:
    """Mean time of a step, but for the first ones, which compile and in which a loader starts."""
    for _ in range(3):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def loading(
    name: str, load: Callable[[], Any], loader: Callable[[], Any], options: Any, *, reads: bool
) -> dict[str, float | str]:
    """load: a batch, at once.  loader: gives the loader beside the computing; a reader that the
    graph calls, if it `reads`, else an iterator.
    """
    steps = options.batches
    seconds = step_seconds(load, steps)
    graph, batch = Loads(seconds), load()
    inside = Loads(seconds, loader()) if reads else None
    times: dict[str, list[float]] = {"alone": [], "without": [], "with": []}
    for _ in range(options.rounds):
        times["alone"].append(step_seconds(lambda: graph(batch), steps))
        times["without"].append(step_seconds(lambda: graph(load()), steps))
        batches = iter(()) if reads else loader()
        step = inside or (lambda batches=batches: graph(next(batches)))
        times["with"].append(step_seconds(step, steps))
    found = {key: statistics.median(some) for key, some in times.items()}
    return {
        "case": name,
        "moves_s": seconds,
        **{f"{key}_s": some for key, some in found.items()},
        "ratio_without": (found["without"] - found["alone"]) / seconds,
        "ratio": (found["with"] - found["alone"]) / seconds,
    }


def measure_loading(options: Any) -> None:
    def batches(workers: int) -> Any:
        return iter(DataLoader(Slow(1000 * ROWS), ROWS, num_workers=workers))

    at_once = batches(0)
    rows = [loading("DataLoader", lambda: next(at_once), lambda: batches(1), options, reads=False)]
    with tempfile.TemporaryDirectory() as folder:
        numbers = ({"x": np.full(WIDTH, i, np.float32)} for i in range(ROWS))
        records.write(Path(folder) / "part-0", numbers)
        reader = SlowReader(folder)
        rows.append(loading("records", reader, lambda: reader, options, reads=True))
    report(f"{options.batches} batches", rows, options.json)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--pace", type=int, default=16, help="MB/s of the link")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="a folder")
    parser.add_argument("--batches", type=int, default=20, help="of a round of loading")
    parser.add_argument("--only", choices=("exchanges", "loading"))
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    if os.environ.get("OMP_NUM_THREADS") != "1":  # threads of products would disturb each other
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    if options.only != "exchanges":
        measure_loading(options)
    if options.only == "loading":
        return
    env = {**os.environ, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env["ONEFLOW_JOB_TOKEN"] = uuid.uuid4().hex * 2
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(r), "ONEFLOW_HOST_IDENTITY": f"host{r}"})
        for r in (0, 1)
    ]
    try:
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    sys.exit(next((code for code in codes if code), 0))


if __name__ == "__main__":
    main()
