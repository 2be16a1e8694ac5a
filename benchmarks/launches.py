"""Counts the requests of a training step to a GPU: launches, products, copies, waits, allocations.

    EMU_MODE=count tests/cuda_emulation/run.sh VENV python benchmarks/launches.py
        [--models gpt2,resnet50,mlp,cnn,dlrm] [--precisions float32,mixed,bfloat16] [--batch 16]
        [--sequence 1024] [--layers 12] [--rows 4096] [--json FILE]

Graphs of forward, backward and AdamW; mixed: float32 weights, computing in bfloat16; bfloat16: the
weights too. Counted by the emulated CUDA of tests/cuda_emulation, in the fourth step; compare with
ONEFLOW_KERNEL_FUSION=0 and ONEFLOW_CUDA_GRAPHS=0. graphs: launches of recorded graphs; replayed:
their kernels, which are not among the launches. batch: sequences of GPT-2, images of ResNet-50;
rows: of DLRM, whose tables are in device memory, or with --cache-mb behind a cache there (with
EMU_MODE=run, which computes the misses). Products are calls of cuBLAS, beside launches; copied and
set: by copies and fills on the device. Bytes that kernels move, and the least: see step_bytes.py.
Prints why and ends with 0 where CUDA is not emulated.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
from measure import arguments, report
from models import MODELS, batch, gpt
from step_bytes import step_bytes

DLRM = {"tables": 26, "width": 32, "numbers": 13}
GPT2 = {"vocabulary": 50304, "width": 768, "heads": 12, "gelu": "tanh"}
PRECISIONS = ("float32", "mixed", "bfloat16")
SIDE, CLASSES = 224, 1000
MIB = 1 << 20


def dlrm(flow: Any, rows: int, cache_mb: int) -> Any:
    """Clicks by 26 tables of a OneEmbedding, whose ids are the last columns of a batch of
    numbers. cache_mb: of a device cache before rows in host memory; 0: rows in device memory."""
    one, tables, width = flow.one_embedding, DLRM["tables"], DLRM["width"]
    nn, numbers = flow.nn, DLRM["numbers"]
    most = rows * tables * 4
    store = one.make_device_mem_store_options("", most, size_factor=3)
    if cache_mb:
        store = one.make_cached_host_mem_store_options(cache_mb, "", most, size_factor=3)
    table = one.make_table_options(one.make_uniform_initializer(-0.05, 0.05))

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rows = one.MultiTableEmbedding(
                "launches", width, flow.float, flow.int64, [table] * tables, store
            )
            self.bottom = nn.FusedMLP(numbers, [64], width)
            crossed = width + (tables + 1) * tables // 2
            self.top = nn.FusedMLP(crossed, [256, 64], 2)

        def forward(self, x: Any) -> Any:
            vector = self.bottom(x[:, :numbers].to(flow.float))
            parts = [vector.unsqueeze(1), self.rows(x[:, numbers:])]
            return self.top(flow._C.fused_dot_feature_interaction(parts, output_concat=vector))

    return Model()


def network(flow: Any, name: str, settings: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A network on the GPU, and a batch of it."""
    rng = np.random.default_rng(0)
    if name == "dlrm":
        rows = settings.rows
        model, columns = dlrm(flow, rows, settings.cache_mb), DLRM["numbers"] + DLRM["tables"]
        x = rng.zipf(1.05, (rows, columns)) % 1_000_000
        y = rng.integers(0, 2, rows)
    elif name == "gpt2":
        model = gpt(flow, **GPT2, context=settings.sequence, layers=settings.layers)
        ids = rng.integers(0, GPT2["vocabulary"], (settings.batch, settings.sequence + 1))
        x, y = ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()
    elif name in ("mlp", "cnn"):
        model, (x, y) = MODELS[name](flow), batch(name)
    else:
        model = MODELS[name](flow)
        x = np.zeros((settings.batch, 3, SIDE, SIDE), np.float32)
        y = rng.integers(0, CLASSES, settings.batch)
    return model.to("cuda"), flow.tensor(x, device="cuda"), flow.tensor(y, device="cuda")


def count(name: str, precision: str, settings: argparse.Namespace) -> dict[str, Any]:
    """One step of one network, counted."""
    from cuda_emulation import counting  # type: ignore[import-not-found]

    import oneflow as flow

    flow.manual_seed(0)
    model, x, y = network(flow, name, settings)
    if precision == "bfloat16":
        model = model.to(flow.bfloat16)
        x = x if x.dtype == flow.int64 else x.to(flow.bfloat16)
    criterion = flow.nn.CrossEntropyLoss()
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-3)

    class Step(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, criterion
            self.add_optimizer(optimizer)
            if precision == "mixed":
                self.config.enable_amp(True, dtype=flow.bfloat16)

        def build(self, x: Any, y: Any) -> Any:
            loss = self.criterion(self.model(x), y)
            loss.backward()
            return loss

    step = Step()
    for _ in range(3):
        step(x, y)
    with counting() as cost:
        step(x, y)
    moved, least = step_bytes(step)
    return {
        "model": name,
        "precision": precision,
        "launches": cost.launches,
        "graphs": cost.graph_launches,
        "replayed": cost.replayed,
        "products": cost.gemms,
        "copies": cost.memcpys,
        "fills": cost.memsets,
        "waits": cost.syncs,
        "allocations": cost.mallocs,
        "copied_mib": cost.bytes_copied / MIB,
        "set_mib": cost.bytes_set / MIB,
        "moved_mib": moved / MIB,
        "least_mib": least / MIB,
        "over_least": moved / least,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="gpt2,resnet50,mlp,cnn,dlrm")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cache-mb", type=int, default=0)
    settings = parser.parse_args()
    if "CUDA_EMULATION" not in os.environ:
        print("launches: CUDA is not emulated here (tests/cuda_emulation), nothing counted")
        return
    rows = [
        count(name, precision, settings)
        for name in settings.models.split(",")
        for precision in settings.precisions.split(",")
        if (name, precision) != ("dlrm", "bfloat16")  # rows are float32
    ]
    report("A training step on a GPU, counted", rows, settings.json)


if __name__ == "__main__":
    main()
