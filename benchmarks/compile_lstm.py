"""Cost of the first call of a graph: an LSTM that is written as an unrolled cell.

    python benchmarks/compile_lstm.py [--steps 25,50,100,200,300] [--deep 12] [--json FILE]

One layer at each length, then `--deep` layers at the longest, each in a process of its own:
forward, backward and the update. CPU seconds and resident memory of tracing, compiling, binding and
the first run; to reach: 150 us and 8 KB a node, and the deepest in 27 s and 1.4 GB.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from compile_cost import alone, phases, resident_mib
from measure import arguments, report

WIDTH, ROWS = 16, 4


def measure(layers: int, steps: int) -> dict[str, Any]:
    import oneflow as flow

    class Unrolled(flow.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            cells = [flow.nn.LSTMCell(WIDTH, WIDTH) for _ in range(layers)]
            self.cells = flow.nn.ModuleList(cells)

        def forward(self, x: Any) -> Any:
            state = [(flow.zeros(ROWS, WIDTH), flow.zeros(ROWS, WIDTH)) for _ in self.cells]
            for t in range(steps):
                row = x[t]
                for i, cell in enumerate(self.cells):
                    state[i] = cell(row, state[i])
                    row = state[i][0]
            return row

    class Train(flow.nn.Graph):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    rng = np.random.default_rng(0)

    def graph_of(length: int) -> tuple[Any, Any]:
        x = flow.tensor(rng.standard_normal((length, ROWS, WIDTH)).astype(np.float32))
        return Train(Unrolled()), x

    wanted, steps = steps, 2
    graph, x = graph_of(steps)
    graph(x)  # imports and caches of ops
    steps = wanted
    graph, x = graph_of(steps)
    row = phases(graph, x)
    return {"layers": layers, "steps": steps, **row, "resident_mib": resident_mib()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", default="25,50,100,200,300")
    parser.add_argument("--deep", type=int, default=12, help="layers of the last one; 0: none")
    parser.add_argument("--one", help="LAYERS,STEPS: this one, in this process")
    args = parser.parse_args()
    if args.one:
        layers, steps = map(int, args.one.split(","))
        print(json.dumps(measure(layers, steps)))
        return
    lengths = [int(n) for n in args.steps.split(",")]
    shapes = [(1, n) for n in lengths] + [(args.deep, max(lengths))] * (args.deep > 0)
    rows = [alone(__file__, "--one", f"{layers},{steps}") for layers, steps in shapes]
    report("compile of an unrolled LSTM", rows, args.json)


if __name__ == "__main__":
    main()
