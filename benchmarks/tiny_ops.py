"""Time of an op on few elements beside PyTorch: chains of one op in eager mode, without and with
gradients, training steps of small networks, and additions in a graph.

    python benchmarks/tiny_ops.py [--rounds 15] [--count 200] [--only add,linear] [--json FILE]

One thread, both sides in turns in one process; their results must agree before anything is timed.
A chain reads the result of the op before. Columns of microseconds are of one op, `backward` of an
op and its gradient, `steps` of a whole training step; ratio: PyTorch's time over ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import arguments, in_turns, paired, report

ELEMENTS = 16
ADDITIONS = 10_000
ROWS, WIDTH, CLASSES = 16, 64, 10

_draw = np.random.default_rng(0).standard_normal
VALUES = {
    "v": _draw(ELEMENTS, dtype=np.float32),
    "w": _draw(ELEMENTS, dtype=np.float32),
    "rows": _draw((ROWS, WIDTH), dtype=np.float32),
    "weight": _draw((WIDTH, WIDTH), dtype=np.float32) / 8,
    "bias": _draw(WIDTH, dtype=np.float32),
    "places": np.arange(ROWS)[::-1].copy(),
    "labels": np.arange(ROWS) % CLASSES,
}

Case = tuple[str, Callable[[Any, Any], Any], bool]
"""The name of the value that a chain begins with, the op (of the values as tensors and of the
result so far), and whether the next op reads its result, else the beginning again."""

CASES: dict[str, Case] = {
    "add": ("v", lambda m, x: x + m.w, True),
    "mul by a number": ("v", lambda m, x: x * 0.5, True),
    "relu": ("v", lambda m, x: m.lib.relu(x), True),
    "linear": ("rows", lambda m, x: m.f.linear(x, m.weight, m.bias), True),
    "layer norm": ("rows", lambda m, x: m.f.layer_norm(x, (WIDTH,), m.bias, m.bias), True),
    "x[i]": ("rows", lambda m, x: x[3], False),
    "x[2:5]": ("rows", lambda m, x: x[2:5], False),
    "x[None]": ("rows", lambda m, x: x[None], False),
    "x[places]": ("rows", lambda m, x: x[m.places], True),
    "sum": ("rows", lambda m, x: x.sum(), False),
    "matmul": ("rows", lambda m, x: x @ m.weight, True),
    "reshape": ("rows", lambda m, x: x.reshape(WIDTH, ROWS), False),
    "view": ("rows", lambda m, x: x.view(-1), False),
    "transpose": ("rows", lambda m, x: x.transpose(0, 1), False),
}


class Side:
    """One library: its modules, and the values as tensors."""

    def __init__(self, lib: Any) -> None:
        self.lib, self.f = lib, lib.nn.functional
        for name, value in VALUES.items():
            setattr(self, name, lib.tensor(value))

    def forward(self, case: Case, count: int) -> Callable[[], Any]:
        start, op, is_chain = case
        first = getattr(self, start)

        def run() -> Any:
            x = first
            if is_chain:
                for _ in range(count):
                    x = op(self, x)
                return x
            for _ in range(count):
                x = op(self, first)
            return x

        return run

    def no_grad(self, case: Case, count: int) -> Callable[[], Any]:
        run = self.forward(case, count)

        def quiet() -> Any:
            with self.lib.no_grad():
                return run()

        return quiet

    def backward(self, case: Case, count: int) -> Callable[[], Any]:
        start, op, is_chain = case
        first = getattr(self, start).clone()
        first.requires_grad_()
        seed = self.lib.ones_like(op(self, first).detach())

        def run() -> Any:
            first.grad = None
            x, ends = first, []
            if is_chain:
                for _ in range(count):
                    x = op(self, x)
                x.backward(seed)
            else:
                ends = [op(self, first) for _ in range(count)]
                self.lib.autograd.backward(ends, [seed] * count)
            return first.grad

        return run

    def training(self, depth: int) -> Callable[[], Any]:
        """Training steps of a network with `depth` hidden layers; gives the loss."""
        nn, widths = self.lib.nn, [WIDTH] * (depth + 1)
        layers: list[Any] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
        draw = np.random.default_rng(1).standard_normal
        for p in model.parameters():
            with self.lib.no_grad():
                p.copy_(self.lib.tensor(draw(tuple(p.shape), dtype=np.float32) / 8))
        optimizer = self.lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = self.f.cross_entropy(model(self.rows), self.labels)
            loss.backward()
            optimizer.step()
            return loss

        return step


def compare(name: str, made: Any, wanted: Any) -> None:
    if not np.allclose(made.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4):
        raise SystemExit(f"{name}: the result is not PyTorch's")


def measured(
    name: str, how: str, ours: Callable[[], Any], theirs: Callable[[], Any], ops: int, rounds: int
) -> dict[str, Any]:
    compare(name, ours(), theirs())
    times = in_turns({"ours": ours, "torch": theirs}, rounds)
    found = paired(times, "ours", "torch")
    row: dict[str, Any] = {"op": name, "how": how}
    row["us"] = found["ours_s"] / ops * 1e6
    row["torch_us"] = found["theirs_s"] / ops * 1e6
    return row | {key: found[key] for key in ("ratio", "ratio_p10", "ratio_p90")}


def additions_of_a_graph(flow: Any, us: Side, them: Side, rounds: int) -> dict[str, Any]:
    """Additions one after another, a kernel each: the graph joins none on so few elements."""

    def add_up(x: Any, y: Any) -> Any:
        for _ in range(ADDITIONS):
            y = y + x
        return y

    graph = flow.nn.Graph.trace(add_up)
    with flow.no_grad():
        name = f"{ADDITIONS} additions"
        ours, theirs = lambda: graph(us.v, us.w), lambda: add_up(them.v, them.w)
        row = measured(name, "graph", ours, theirs, ADDITIONS, min(rounds, 9))
    compiled = graph._spec.plans.now
    assert compiled is not None
    kernels = sum(len(s.nodes) for s in compiled.job.bound.memory.segments.values())
    if kernels != ADDITIONS:
        raise SystemExit(f"the graph has {kernels} kernels for {ADDITIONS} additions")
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default=",".join([*CASES, "steps", "graph"]))
    args = parser.parse_args()
    wanted = args.only.split(",")

    import torch

    import oneflow as flow

    torch.set_num_threads(1)
    flow.set_num_threads(1)
    us, them = Side(flow), Side(torch)
    rows = []
    for name in [n for n in CASES if n in wanted]:
        for how in ("forward", "no_grad", "backward"):
            ours, theirs = (getattr(s, how)(CASES[name], args.count) for s in (us, them))
            rows.append(measured(name, how, ours, theirs, args.count, args.rounds))
    if "steps" in wanted:
        for depth in (1, 4):
            ours, theirs = (s.training(depth) for s in (us, them))
            for _ in range(20):
                compare(f"losses of {depth} layers", ours(), theirs())
            name = f"{depth} hidden layers of {WIDTH}"
            rows.append(
                measured(name, "steps", lambda f=ours: last(f), lambda f=theirs: last(f), 20, 25)
            )
    if "graph" in wanted:
        with torch.no_grad():
            rows.append(additions_of_a_graph(flow, us, them, args.rounds))
    report("ops on few elements, PyTorch's time over ours", rows, args.json)


def last(step: Callable[[], Any], count: int = 20) -> Any:
    for _ in range(count):
        loss = step()
    return loss


if __name__ == "__main__":
    main()
