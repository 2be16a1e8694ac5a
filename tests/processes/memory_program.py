"""Global tensors on two ranks beside PyTorch: which tensors change when a result is written to,
and reads and writes at positions, in every layout. Prints "done" on each rank.

Usage: memory_program ANSWERS. The file has PyTorch's results: `answers`, which the test calls,
for to import PyTorch takes each process seconds.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
from tests.support.launching import play
from tests.unit.functional.test_positions import LABELS, READS, UPSTREAM, WRITES
from tests.unit.tensor.alias_calls import CALLS

PLACE = flow.placement("cpu", [0, 1])
BROADCAST = flow.sbp.broadcast
AT = np.array([0, 2])
DATA = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
MAKERS = ("tensor", "zeros", "ones", "eye", "arange")
LOCAL_ONLY = {"x.view(f.int32)", "x.view(f.uint8)", "x.cpu()", "x.to('cpu')"}
REFUSED_WHERE_SPLIT = {"x.unfold(2, 2, 2)", "x.unfold(2, 4, 1)"}
"""Windows over parts that lie on several ranks: an error says so."""


def laid_out(array: Any, layout: Any) -> Any:
    return flow.tensor(array).to_global(PLACE, BROADCAST).to_global(PLACE, layout)


def same(what: object, ours: Any, theirs: Any) -> None:
    got, want = np.asarray(ours).astype(complex), np.asarray(theirs).astype(complex)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=str(what))


def written(f: Any, x: Any, call: Callable[[Any, Any], Any]) -> list[Any]:
    """A computed tensor, and a call's result of it, after a write to the second."""
    h = x * 1
    y = call(f, h)
    if y.dtype is f.bool:
        y.logical_not_()
    else:
        y.add_(1)
    return [v.detach().numpy() for v in (h, y.clone())]


def answers() -> dict[str, Any]:
    """PyTorch's, by call; None for a write that it refuses."""
    import torch

    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of functions that may change
        for name, call in CALLS.items():
            try:
                found[name] = written(torch, torch.tensor(DATA), call)
            except RuntimeError:
                found[name] = None
        for name, call in {**READS, **WRITES, **LABELS}.items():
            found[name] = call(torch, torch.tensor(DATA[0]), torch.tensor(AT)).numpy()
    return found


@cache
def theirs() -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(Path(sys.argv[1]).read_bytes())
    return found


def writes() -> None:
    splits = [flow.sbp.split(dim) for dim in range(3)]
    in_turn = cycle([splits[:2], [splits[2], BROADCAST]])  # two of four layouts for each call
    for (name, call), layouts in zip(CALLS.items(), in_turn, strict=False):
        if name in LOCAL_ONLY or any(f"f.{maker}(" in name for maker in MAKERS):
            continue
        if theirs()[name] is None:
            continue  # an expanded tensor: refused in every layout, too
        for layout in layouts:
            if name in REFUSED_WHERE_SPLIT and layout == flow.sbp.split(2):
                continue
            ours = written(flow, laid_out(DATA, layout), call)
            for got, want in zip(ours, theirs()[name], strict=True):
                same((name, layout), got, want)


def positions() -> None:
    x, i = DATA[0], AT
    for name, call in {**READS, **WRITES, **LABELS, **UPSTREAM}.items():
        is_ours = name in UPSTREAM
        want = call(flow, flow.tensor(x), flow.tensor(i)).numpy() if is_ours else theirs()[name]
        for layout in (flow.sbp.split(0), flow.sbp.split(1), BROADCAST):
            for other in (flow.sbp.split(0), BROADCAST):
                got = call(flow, laid_out(x, layout), laid_out(i, other)).numpy()
                same((name, layout, other), got, want)


if __name__ == "__main__":
    play((writes, positions))
