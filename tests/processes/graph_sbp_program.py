"""Runs on the ranks of test_graph_sbp.py: samples of every op under several layouts, eagerly and
in a graph, whose results must lie alike; prints how many pairs of call and layout it compared.

Usage: graph_sbp_program [all]. all: every op on a grid of ranks, too, and every sample in all
layouts; without, in half of them, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, Split, nd_sbp_str

from .every_op_program import (
    IN_ALL,
    RANK,
    SAMPLES,
    Array,
    Many,
    Sample,
    Tensor,
    arrays_of,
    compare,
    compared,
    describe,
    may_be_traced,
    outputs,
    scatter,
)

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
LINE = Placement("cpu", [0, 1])
GRID = Placement("cpu", [[0, 1], [2, 3]])


def _write(x: Tensor) -> Tensor:
    y = x + 0
    y[2:5] = x[0:3]
    return y


LAYOUTS: dict[Placement, list[NdSbp]] = {
    LINE: [(S0,), (S1,), (P,), (B,)],
    GRID: [(S0, S1), (S0, B), (P, S0)],
}
EVERY = {LINE: 4, GRID: 12}
"""One in this many of an op's samples is run on the placement, the first in any case."""
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "slice": lambda x: x[2:6],
    "row": lambda x: x[3],
    "steps": lambda x: x[1::3],
    "column": lambda x: x[:, 2],
    "unbind": lambda x: flow.unbind(x, 0)[1],
    "chunk": lambda x: flow.chunk(x, 3, 0)[1],
    "split": lambda x: flow.split(x, 3, 1)[1],
    "narrow": lambda x: flow.narrow(x, 0, 1, 4),
    "flip": lambda x: flow.flip(x, [0]),
    "roll": lambda x: flow.roll(x, 3, 0),
    "pad": lambda x: flow.nn.functional.pad(x, (0, 0, 1, 2)),
    "pad with ones": lambda x: flow.nn.functional.pad(x, (1, 0, 1, 2), value=1.0),
    "cat": lambda x: flow.cat([x, x[:3]], 0),
    "stack": lambda x: flow.stack([x, x + 1], 0),
    "mean": lambda x: x.mean(0),
    "softmax": lambda x: flow.softmax(x, 1),
    "variance": lambda x: x.var(0),
    "normalize": lambda x: flow.nn.functional.layer_norm(x, (6,)),
    "sum of two": lambda x: x + x.flip(0),
    "product": lambda x: x @ x.t(),
    "partial product": lambda x: flow.relu(x.t() @ x),
    "where": lambda x: flow.where(x > 0, x, -x),
    "take": lambda x: x[flow.arange(0, 4, placement=x.placement, sbp=[B] * len(x.sbp))],
    "write": _write,
}


@dataclass(frozen=True)
class Pair:
    """One call in one layout."""

    number: int
    sample: Sample
    placement: Placement
    layouts: list[NdSbp]

    def inputs(self) -> list[Tensor]:
        arrays = arrays_of(self.sample, "float64")
        return [
            scatter(x, self.placement, s, self.number * 64 + i)
            for i, (x, s) in enumerate(zip(arrays, self.layouts, strict=True))
        ]

    def __str__(self) -> str:
        return describe(self.sample, self.placement, self.layouts)


def pairs_on(placement: Placement) -> list[Pair]:
    """Every sample, all of its inputs laid out alike, as far as they have the dims."""
    turns = 1 if IN_ALL else 2
    found: dict[str, Pair] = {}
    seen: Counter[str] = Counter()
    for number, sample in enumerate(SAMPLES):
        seen[sample.op] += 1
        if not may_be_traced(sample) or (seen[sample.op] - 1) % EVERY[placement]:
            continue
        for wanted in LAYOUTS[placement][number % turns :: turns]:
            layouts = [_fitting(np.asarray(x), wanted, placement) for x in sample.inputs]
            pair = Pair(number, sample, placement, layouts)
            if all(s == B for nd_sbp in layouts for s in nd_sbp) and wanted != (B,):
                continue
            found.setdefault(f"{number} {pair}", pair)
    return list(found.values())


def _fitting(x: Array, wanted: NdSbp, placement: Placement) -> NdSbp:
    """`wanted`, but copies where x cannot lie so."""
    return tuple(
        s if _can_lie(x, s, n) else B for s, n in zip(wanted, placement.hierarchy, strict=True)
    )


def _can_lie(x: Array, sbp: Sbp, num_ranks: int) -> bool:
    if sbp.is_partial:
        return x.dtype != np.bool_
    return not sbp.is_split or (sbp.dim < x.ndim and x.shape[sbp.dim] >= num_ranks)


def check_ops(placement: Placement) -> int:
    """Compares all pairs on a placement in one graph; returns their number."""
    pairs = pairs_on(placement)
    inputs = [pair.inputs() for pair in pairs]
    titles: list[str] = []
    eager: list[Tensor] = []
    for pair, xs in zip(pairs, inputs, strict=True):
        outs = outputs(find_op(pair.sample.op)(*xs, **pair.sample.attrs))
        found = [outs[i] for i in compared(pair.sample, outs)]
        titles += [str(pair)] * len(found)
        eager += found
    graph = Many([pair.sample for pair in pairs])
    expect_alike(titles, graph(*chain.from_iterable(inputs)), eager)
    return len(pairs)


class Programs(flow.nn.Graph):  # type: ignore[misc]
    """Every program on a tensor in every layout."""

    def build(self, *xs: Tensor) -> Any:
        return [program(x) for x in xs for program in PROGRAMS.values()]


def check_programs(placement: Placement) -> int:
    """The same for small programs, as users write them."""
    array = np.random.default_rng(5).integers(-8, 9, (8, 6)) / 8
    xs = [scatter(array, placement, s, i) for i, s in enumerate(LAYOUTS[placement])]
    titles = [f"{name} of {nd_sbp_str(x.sbp)}" for x in xs for name in PROGRAMS]
    eager = [program(x) for x in xs for program in PROGRAMS.values()]
    expect_alike(titles, Programs()(*xs), eager)
    return len(titles)


def expect_alike(titles: list[str], traced: list[Tensor], eager: list[Tensor]) -> None:
    """Raises AssertionError naming the results that lie otherwise in the graph, or differ."""
    wrong = []
    for title, got, want in zip(titles, traced, eager, strict=True):
        if got.sbp != want.sbp:
            layouts = f"{nd_sbp_str(got.sbp)} in a graph, {nd_sbp_str(want.sbp)} eagerly"
            wrong.append(f"{title}: {layouts}")
        try:
            compare(got, want.numpy(), 1e-8)
        except AssertionError as error:
            wrong.append(f"{title}: {str(error)[:300]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(eager)} differ", *wrong[:40]])


def main() -> None:
    places = LAYOUTS if IN_ALL else [LINE]  # of all ops; programs are small, and tried on each
    count = sum(map(check_programs, LAYOUTS)) + sum(map(check_ops, places))
    print(f"rank {RANK}: {count} pairs alike", flush=True)


if __name__ == "__main__":
    main()
