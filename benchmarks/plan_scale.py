"""Plan bytes and compile time against the number of data-parallel ranks: both should stay as they
are.

    python benchmarks/plan_scale.py [--ranks 2,8,64,1024] [--model gpt] [--json FILE]

Compile only: the graph of one training step is traced once for each number of ranks, with 4 rows of
the batch a rank, and goes
through all passes. read_plan_s: decoding the plan, which every rank does.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from measure import arguments, report
from models import MODELS, batch, make_optimizer

ROWS_A_RANK = 4


def trace(name: str, num_ranks: int) -> Any:
    """The traced graph and the variables of a data-parallel step on `num_ranks` ranks, seen from
    rank 0.
    """
    import oneflow as flow
    from oneflow.core.sbp import BROADCAST, Split
    from oneflow.core.tensor_type import TensorType
    from oneflow.graph.tracing import trace_build
    from oneflow.tensor.tensor import wrap_global

    everywhere = flow.placement("cpu", list(range(num_ranks)))
    model = MODELS[name](flow)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = wrap_global(tensor._array, tensor.meta, everywhere, (BROADCAST,))
    optimizer = make_optimizer(flow, name, model)

    class Train(flow.nn.Graph):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any, y: Any) -> Any:
            loss = flow.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

    x, y = batch(name)
    rows = ROWS_A_RANK * num_ranks
    inputs = []
    for array, per_row in ((x, 1), (y, len(y) // len(x))):
        type_ = TensorType((rows * per_row, *array.shape[1:]), flow.tensor(array).dtype)
        part = np.zeros((ROWS_A_RANK * per_row, *array.shape[1:]), array.dtype)
        inputs.append(wrap_global(part, type_, everywhere, (Split(0),)))
    graph = Train()
    traced = trace_build(graph._spec, graph.build, (tuple(inputs), {})).trace
    return traced.graph, {k: v._array for k, v in traced.variables.items()}


def measure(name: str, num_ranks: int) -> dict[str, Any]:
    from oneflow.core.graph_proto import graph_from_bytes, graph_to_bytes
    from oneflow.core.job_config import Cluster, JobConfig
    from oneflow.core.plan import Plan
    from oneflow.scheduler.compiler.pipeline import compile_graph

    graph, _ = trace(name, num_ranks)
    data = graph_to_bytes(graph)
    seconds = []
    for _ in range(5):
        fresh = graph_from_bytes(data)
        start = time.perf_counter()
        plan = compile_graph(fresh, JobConfig(name), Cluster(num_ranks)).to_bytes()
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    Plan.from_bytes(plan)
    return {
        "ranks": num_ranks,
        "nodes": len(graph),
        "plan_bytes": len(plan),
        "compile_s": min(seconds),
        "us_per_node": min(seconds) / len(graph) * 1e6,
        "read_plan_s": time.perf_counter() - start,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", default="2,8,64,1024")
    parser.add_argument("--model", default="gpt", choices=MODELS)
    args = parser.parse_args()
    counts = [int(n) for n in args.ranks.split(",")]
    measure(args.model, counts[0])  # imports and caches
    rows = [measure(args.model, n) for n in counts]
    for row in rows:
        row["bytes_vs_first"] = row["plan_bytes"] / rows[0]["plan_bytes"]
        row["compile_vs_first"] = row["compile_s"] / rows[0]["compile_s"]
    report("one plan for all ranks", rows, args.json)


if __name__ == "__main__":
    main()
