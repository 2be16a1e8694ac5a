"""Cost of the first call of a graph: a GPT, against its number of layers.

    python benchmarks/compile_depth.py [--layers 2,6,12,24,48] [--json FILE]

Each depth in a process of its own, with one thread: forward, backward and AdamW of 8 tokens. CPU
seconds and resident memory of tracing, compiling, binding and the first run. To reach: each layer
after the first two costs at most 2 ms of compiling. Beside, in the same process after it: a second
equal graph, and a graph of one op; and the deepest as the first call of two processes, before and
after kernels and plans were kept on disk. `again_ratio` compares the cost of making
the graph.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import numpy as np
from compile_cost import alone, phases, resident_mib
from measure import arguments, report
from models import gpt, make_optimizer

TOKENS = 8
PHASES = ("trace_s", "compile_s", "bind_s", "first_run_s", "start_s", "all_s")


def training(layers: int) -> Any:
    import oneflow as flow

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = gpt(flow, layers=layers, context=TOKENS)
            self.add_optimizer(make_optimizer(flow, "gpt", self.model))

        def build(self, x: Any, y: Any) -> Any:
            loss = flow.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

    return Train()


def inputs() -> tuple[Any, Any]:
    import oneflow as flow

    ids = np.zeros(TOKENS, np.int64)
    return flow.tensor(ids.reshape(1, -1)), flow.tensor(ids)


def measure(layers: int) -> dict[str, Any]:
    import oneflow as flow

    class One(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return x + x

    x, y = inputs()
    training(1)(x, y)  # imports and caches of ops
    first = training(layers)
    row = {"layers": layers, **phases(first, x, y)}
    row["resident_mib"] = resident_mib()
    again = phases(training(layers), x, y)
    row |= {f"again_{name}": again[name] for name in PHASES}
    row["again_ratio"] = again["start_s"] / row["start_s"]
    ones = [phases(One(), flow.ones(4, 4))["all_s"] for _ in range(20)]
    row["one_op_ms"] = min(ones) * 1e3
    return row


def measure_at_once(layers: int) -> dict[str, Any]:
    """The first call of a process, imports included."""
    return {"layers": layers, **phases(training(layers), *inputs())}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--layers", default="2,6,12,24,48")
    parser.add_argument("--one", type=int, help="this one, in this process")
    parser.add_argument("--at-once", action="store_true", help="that one as the first call")
    args = parser.parse_args()
    if args.one:
        print(json.dumps((measure_at_once if args.at_once else measure)(args.one)))
        return
    depths = args.layers.split(",")
    rows = [{"caches": "kernels", **alone(__file__, "--one", n, plans="off")} for n in depths]
    first = rows[0]
    for row in rows[1:]:
        added = row["layers"] - first["layers"]
        for name in PHASES:
            row[f"ms_a_layer_{name}"] = (row[name] - first[name]) / added * 1e3
    with tempfile.TemporaryDirectory() as caches:
        for name in ("empty caches", "second process"):
            started = alone(__file__, "--one", depths[-1], "--at-once", caches=caches)
            rows.append({"caches": name, **started})
        rows[-1]["again_ratio"] = rows[-1]["start_s"] / rows[-2]["start_s"]
    report("compile of a GPT by depth", rows, args.json)


if __name__ == "__main__":
    main()
