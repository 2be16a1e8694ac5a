"""Cost of an op on 16 floats: 10,000 additions one after another, in a graph and eagerly.

    python benchmarks/tiny_ops.py [--rounds 9] [--count 10000] [--json FILE]

Beside PyTorch's eager additions, in turns, one thread. Each addition reads the result of the one
before. The graph joins no ops on so few elements: the table has the number of its kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from measure import arguments, in_turns, paired, report

ELEMENTS = 16


def chain(x: Any, y: Any, count: int) -> Any:
    for _ in range(count):
        y = y + x
    return y


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=10_000)
    args = parser.parse_args()

    import torch

    import oneflow as flow

    torch.set_num_threads(1)
    start = np.linspace(0, 1, ELEMENTS, dtype=np.float32)
    x, y = flow.tensor(start), flow.tensor(start)
    a, b = torch.from_numpy(start), torch.from_numpy(start)
    graph = flow.nn.Graph.trace(lambda x, y: chain(x, y, args.count))
    with flow.no_grad(), torch.no_grad():
        made, wanted = graph(x, y).numpy(), chain(a, b, args.count).numpy()
        if not np.array_equal(made, wanted):
            raise SystemExit("the graph's sums are not those of PyTorch")
        sides = {
            "graph": lambda: graph(x, y),
            "eager": lambda: chain(x, y, args.count),
            "torch": lambda: chain(a, b, args.count),
        }
        times = in_turns(sides, args.rounds)
    compiled = graph._spec.plans.now
    assert compiled is not None
    kernels = sum(len(s.nodes) for s in compiled.job.bound.memory.segments.values())
    rows = []
    for name in ("graph", "eager"):
        found = paired(times, name, "torch")
        row: dict[str, Any] = {"side": name, "kernels": kernels if name == "graph" else args.count}
        row["us_an_op"] = found["ours_s"] / args.count * 1e6
        row["torch_us_an_op"] = found["theirs_s"] / args.count * 1e6
        row |= {key: found[key] for key in ("ratio", "ratio_p10", "ratio_p90")}
        rows.append(row)
    report("additions of 16 floats, PyTorch's time over ours", rows, args.json)


if __name__ == "__main__":
    main()
