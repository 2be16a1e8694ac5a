"""Runs every sample twice in one graph in a new process, on different
numbers and with gradients, and only then eagerly. Prints how many calls it compared.

A kernel that keeps arrays of one step for another, or is right only where eager code has bound it
before, gives other numbers here.

    python -m tests.unit.ops.graph_first_program [whole]

Each sample has one dtype, and the next sample the other one; "whole": each has both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.core.dispatch import call
from oneflow.core.op import find_op

from .numpy_mode import Array
from .sample import Sample
from .samples import SAMPLES

SCALES = (1.0, 0.875)  # keeps signs, ranges and definiteness; of floats only
TOLERANCES = {np.float32: 2e-5, np.float64: 1e-9}


def may_be_traced(sample: Sample) -> bool:
    op = find_op(sample.op)
    return bool(sample.inputs) and not op.is_random and not op.mutates


CHOSEN = [sample for sample in SAMPLES if may_be_traced(sample)]


def inputs_of(sample: Sample, scale: float, dtype: Any) -> list[Array]:
    return [
        (x * scale).astype(dtype) if x.dtype == np.float64 else np.asarray(x) for x in sample.inputs
    ]


def compute(sample: Sample, xs: Sequence[Any]) -> list[Any]:
    """Outputs, then gradients of a weighted sum of those that have one."""
    op = find_op(sample.op)
    wrt = [
        i
        for i, x in enumerate(sample.inputs)
        if x.dtype.kind == "f" and (sample.wrt is None or i in sample.wrt)
    ]
    leaves = [x.detach().requires_grad_(i in wrt) for i, x in enumerate(xs)]
    found = call(op, *leaves, **sample.attrs)
    outs = found if isinstance(found, tuple) else (found,)
    outs = [outs[i] for i in sample.compared or range(len(outs))]
    recorded = [out for out in outs if out.requires_grad]
    if not recorded:
        return outs
    total = sum((out.sin().sum() for out in recorded[1:]), recorded[0].sin().sum())
    grads = flow.autograd.grad(total, [leaves[i] for i in wrt], allow_unused=True)
    return [*outs, *(grad for grad in grads if grad is not None)]


class Twice(flow.nn.Graph):
    """Samples on the numbers of each scale."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.samples = samples

    def build(self, *xs: Any) -> Any:
        rest, found = list(xs), []
        for _ in SCALES:
            for sample in self.samples:
                own, rest = rest[: len(sample.inputs)], rest[len(sample.inputs) :]
                found.append(compute(sample, own))
        return found


def check(dtype: Any, samples: Sequence[Sample]) -> int:
    """Compare calls of samples in one dtype; return their number."""
    cases = [(sample, scale) for scale in SCALES for sample in samples]
    inputs = [[flow.tensor(x) for x in inputs_of(*case, dtype)] for case in cases]
    graph = Twice(samples)
    for _ in range(2):  # the second step runs what the first has bound
        traced = graph(*chain.from_iterable(inputs))
    tolerance, wrong = TOLERANCES[dtype], []
    for (sample, scale), xs, found in zip(cases, inputs, traced, strict=True):
        for got, want in zip(found, compute(sample, xs), strict=True):
            try:
                np.testing.assert_allclose(got.numpy(), want.numpy(), tolerance, tolerance)
            except AssertionError as error:
                wrong.append(f"{sample.name} of {dtype.__name__} x {scale}: {str(error)[:300]}")
    assert not wrong, "\n".join([f"{len(wrong)} differ", *wrong[:40]])
    return len(cases)


def main() -> None:
    halves = [CHOSEN] * 2 if "whole" in sys.argv else [CHOSEN[::2], CHOSEN[1::2]]
    print(f"{sum(map(check, TOLERANCES, halves))} calls alike")


if __name__ == "__main__":
    main()
