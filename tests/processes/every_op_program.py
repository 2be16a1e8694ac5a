"""Runs on the ranks of test_every_op_global.py: every op of the registry on global tensors whose
layouts are drawn from a seed, eagerly, backward, and in graphs; exits 0 if all is right.

Usage: every_op_program [eager] [gradients] [graphs] [all]. all: all samples, each op on every
placement, forward and in graphs, and two gradients of it; without, a sample and a gradient of each
op, each on one placement, and two graphs of half the ops each.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.boxing.boxes import shard_box
from oneflow.core.dispatch import call
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import DesyncError, HangError, PeerLostError
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.tensor.eager_global import create_global, empty_shard
from oneflow.tensor.tensor import Tensor, wrap, wrap_global
from tests.unit.ops.sample import Sample
from tests.unit.ops.samples import SAMPLES

RANK = flow.env.get_rank()
PLACEMENTS = [
    Placement("cpu", ranks) for ranks in ([0, 1], [1, 2, 3], [0, 1, 2, 3], [[0, 1], [2, 3]])
]
EVERYONE = PLACEMENTS[2]
IN_ALL = "all" in sys.argv
SAMPLES_PER_GRADIENT_OP = 2 if IN_ALL else 1
SAMPLES_PER_OP = 1000 if IN_ALL else 1
MIN_PLACEMENTS = len(PLACEMENTS) if IN_ALL else 1
GRAPH_PLACEMENTS = PLACEMENTS if IN_ALL else PLACEMENTS[1::2]  # uneven parts; a grid
Array = np.ndarray[Any, Any]
Ids = list[tuple[int, Sample]]


# ---- layouts -------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, x: Array, placement: Placement, partial: bool = True) -> NdSbp:
    """A random layout; parts may be uneven, and empty."""
    choices: list[Any] = [BROADCAST]
    if partial and x.dtype != np.bool_:
        choices.append(PARTIAL)
    choices += [Split(d) for d in range(x.ndim) if x.shape[d]] * (2 if x.ndim < 2 else 1)
    return tuple(choices[rng.integers(len(choices))] for _ in placement.hierarchy)


def scatter(x: Array, placement: Placement, nd_sbp: NdSbp, seed: int) -> Tensor:
    """The global tensor of `x`; every summand of partial sums has values of its own."""
    type_ = TensorType(x.shape, dtype_of(x.dtype))
    if RANK not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    box = shard_box(x.shape, nd_sbp, placement, RANK)
    part = np.array(x[(..., *box.slices)] if x.ndim else x)
    at = placement.coordinate(RANK)
    axes = [i for i, s in enumerate(nd_sbp) if s.is_partial]
    counts = [placement.hierarchy[i] for i in axes]
    if axes and x.size:
        mine = tuple(at[i] for i in axes)
        part = _addend(part, counts, mine, [seed, *box.starts])
    return wrap_global(part, type_, placement, nd_sbp)


def _addend(part: Array, counts: list[int], mine: tuple[int, ...], seed: list[int]) -> Array:
    """One of summands of `part`: random eighths (so that sums of round numbers are exact), and the
    rest at the first."""
    addends = {}
    for at in np.ndindex(*counts):
        eighths = np.random.default_rng([*seed, *at]).integers(-8, 9, part.shape)
        scale = 0.125 if part.dtype.kind not in "iu" else 1
        addends[at] = np.asarray(eighths * scale, part.dtype)
    if any(mine):
        return addends[mine]
    others = [a for at, a in addends.items() if any(at)]
    return np.asarray(part - sum(others[1:], others[0]), part.dtype) if others else part


def compare(got: Tensor, want: Array, tolerance: float) -> None:
    values = got.numpy()  # on all ranks, those outside the placement too
    assert values.shape == want.shape and values.dtype == want.dtype, (values.dtype, want.dtype)
    np.testing.assert_allclose(values, want, rtol=tolerance, atol=tolerance)


# ---- what is tried -------------------------------------------------------------------------------

Failures = list[str]


class Trial:
    """Runs pieces of work that all ranks do alike and notes which fail."""

    def __init__(self) -> None:
        self.failures: Failures = []
        self.count = 0

    def run(self, title: str, work: Callable[[], None]) -> None:
        self.count += 1
        try:
            work()
        except (DesyncError, HangError, PeerLostError):
            print(f"rank {RANK}: {title}", *self.failures[:12], sep="\n", flush=True)
            raise  # the ranks do not do the same any more
        except Exception as error:
            lines = traceback.format_exception(error)
            self.failures.append(f"{title}: {''.join(lines[-3:])}"[:3000])

    def finish(self) -> None:
        """Exits with the faults, if there are any."""
        if self.failures:
            print(f"rank {RANK}: {len(self.failures)} of {self.count} fail", flush=True)
            sys.exit("\n".join(self.failures[:12]))
        print(f"rank {RANK}: {self.count} cases", flush=True)


def tolerance_of(sample: Sample, dtype: str) -> float:
    return 1e-9 if dtype == "float64" else max(20 * sample.tolerance, 1e-4)


def dtype_for(sample: Sample, number: int) -> str:
    return sample.dtypes[number % len(sample.dtypes)]


def arrays_of(sample: Sample, dtype: str) -> tuple[Array, ...]:
    return tuple(map(np.asarray, sample.inputs_as(dtype)))


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def compared(sample: Sample, outs: tuple[Tensor, ...]) -> Iterator[int]:
    return iter(sample.compared or range(len(outs)))


def describe(sample: Sample, placement: Placement, layouts: list[NdSbp]) -> str:
    attrs = {k: v for k, v in sample.attrs.items() if k != "seed"}
    inputs = ", ".join(
        f"{x.dtype}{list(x.shape)} {nd_sbp_str(s)}"
        for x, s in zip(sample.inputs, layouts, strict=True)
    )
    return f"{sample.op}({inputs}) {attrs} on {placement}"


def eager(trial: Trial, number: int, sample: Sample, placement: Placement, round_: int) -> None:
    """One sample in one random layout against the local result."""
    op, dtype = find_op(sample.op), dtype_for(sample, number + round_)
    arrays = arrays_of(sample, dtype)
    rng = np.random.default_rng([number, PLACEMENTS.index(placement), round_])
    layouts = [draw(rng, x, placement) for x in arrays]

    def work() -> None:
        want = outputs(call(op, *[wrap(np.array(x)) for x in arrays], **sample.attrs))
        xs = [
            scatter(x, placement, s, number * 64 + i)
            for i, (x, s) in enumerate(zip(arrays, layouts, strict=True))
        ]
        got = outputs(call(op, *xs, **sample.attrs))
        assert len(got) == len(want)
        for i in compared(sample, want):
            assert got[i].meta == want[i].meta, f"{got[i].meta} instead of {want[i].meta}"
            compare(got[i], want[i].numpy(), tolerance_of(sample, dtype))
        for out, source in op.mutates.items():
            assert got[out] is xs[source] and got[out].sbp == layouts[source]

    trial.run(describe(sample, placement, layouts), work)


def source(trial: Trial, number: int, sample: Sample, placement: Placement) -> None:
    """An op without inputs, laid out in several ways."""
    op = find_op(sample.op)
    want = call(op, **sample.attrs).numpy()
    rng = np.random.default_rng([number, PLACEMENTS.index(placement)])
    layouts = {draw(rng, want, placement, partial=not op.is_random) for _ in range(3)}
    for nd_sbp in sorted(layouts, key=nd_sbp_str):

        def work(nd_sbp: NdSbp = nd_sbp) -> None:
            made = create_global(op, dict(sample.attrs), placement, nd_sbp)
            compare(made, want, 1e-6)

        trial.run(f"{sample.op} {nd_sbp_str(nd_sbp)} on {placement}", work)


def every_op(trial: Trial, samples: Ids) -> None:
    """Each sample on one placement, in turn; an op with few samples on more."""
    samples = some_of_each(samples)
    counts = Counter(sample.op for _, sample in samples)
    first = {op: at for at, op in enumerate(counts)}  # ops begin at different placements
    seen: Counter[str] = Counter()
    for number, sample in samples:
        at = first[sample.op] + seen[sample.op]
        seen[sample.op] += 1
        for placement in places(at, counts[sample.op]):
            if sample.inputs:
                eager(trial, number, sample, placement, 0)
            else:
                source(trial, number, sample, placement)


def some_of_each(samples: Ids) -> Ids:
    """Samples of each op from the first to the last, SAMPLES_PER_OP at most."""
    counts, seen = Counter(sample.op for _, sample in samples), Counter[str]()
    chosen = []
    for number, sample in samples:
        at, count = seen[sample.op], counts[sample.op]
        seen[sample.op] += 1
        if at * SAMPLES_PER_OP // count < (at + 1) * SAMPLES_PER_OP // count:
            chosen.append((number, sample))
    return chosen


def places(at: int, count: int) -> list[Placement]:
    """Placements of the next of `count` samples, so that all of them together are on enough."""
    if IN_ALL and count < MIN_PLACEMENTS:
        return PLACEMENTS
    each = -(-MIN_PLACEMENTS // count)
    return [PLACEMENTS[(at + i * 2) % len(PLACEMENTS)] for i in range(each)]


# ---- gradients -----------------------------------------------------------------------------------


def has_gradient(sample: Sample) -> bool:
    floats = any(x.dtype == np.float64 for x in sample.inputs)
    op = find_op(sample.op)
    return floats and not op.is_random and not op.mutates and op.has_gradient  # type: ignore[attr-defined]


def backward(sample: Sample, xs: list[Tensor], weights: dict[int, Tensor]) -> list[Any]:
    for i, x in enumerate(xs):
        x.requires_grad = x.dtype.is_floating_point and i not in sample.refused
    outs = outputs(call(find_op(sample.op), *xs, **sample.attrs))
    used = [i for i in weights if outs[i].requires_grad]
    leaves = [x for x in xs if x.requires_grad]
    return list(
        flow.autograd.grad(
            [outs[i] for i in used], leaves, [weights[i] for i in used], allow_unused=True
        )
    )


def gradient(trial: Trial, number: int, sample: Sample, placement: Placement) -> None:
    """Gradients of one sample in one random layout against the local ones."""
    arrays = arrays_of(sample, "float64")
    rng = np.random.default_rng([number, PLACEMENTS.index(placement), 7])
    layouts = [draw(rng, x, placement) for x in arrays]

    def work() -> None:
        local = [wrap(np.array(x)) for x in arrays]
        outs = outputs(call(find_op(sample.op), *local, **sample.attrs))
        weights = {
            i: rng.normal(size=outs[i].shape)
            for i in compared(sample, outs)
            if outs[i].dtype is flow.float64
        }
        want = backward(sample, local, {i: wrap(np.asarray(w)) for i, w in weights.items()})
        xs = [
            scatter(x, placement, s, number * 64 + i)
            for i, (x, s) in enumerate(zip(arrays, layouts, strict=True))
        ]
        given = {
            i: scatter(np.asarray(w), placement, draw(rng, np.asarray(w), placement), i)
            for i, w in weights.items()
        }
        for a, b in zip(backward(sample, xs, given), want, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                assert a.meta == b.meta
                compare(a, b.numpy(), 1e-8)

    trial.run(f"gradient of {describe(sample, placement, layouts)}", work)


def every_gradient(trial: Trial, samples: Ids) -> None:
    seen: dict[str, int] = {}
    for number, sample in samples:
        count = seen.get(sample.op, 0)
        if has_gradient(sample) and count < SAMPLES_PER_GRADIENT_OP:
            seen[sample.op] = count + 1
            gradient(trial, number, sample, PLACEMENTS[(number + count) % len(PLACEMENTS)])


# ---- graphs --------------------------------------------------------------------------------------


class Many(flow.nn.Graph):  # type: ignore[misc]
    """One graph of many ops, each of inputs of its own."""

    def __init__(self, samples: list[Sample]) -> None:
        super().__init__()
        self.samples = samples

    def build(self, *xs: Any) -> Any:
        rest, results = list(xs), []
        for sample in self.samples:
            own, rest = rest[: len(sample.inputs)], rest[len(sample.inputs) :]
            outs = outputs(call(find_op(sample.op), *own, **sample.attrs))
            results += [outs[i] for i in compared(sample, outs)]
        return results


def may_be_traced(sample: Sample) -> bool:
    op = find_op(sample.op)
    return bool(sample.inputs) and not op.is_random and not op.mutates


def every_op_in_a_graph(trial: Trial, samples: Ids) -> None:
    """One sample of every op, in one graph per placement, another sample each time; of every second
    op, unless all are wanted.
    """
    by_op: dict[str, Ids] = {}
    for number, sample in samples:
        if may_be_traced(sample):
            by_op.setdefault(sample.op, []).append((number, sample))
    for k, placement in enumerate(GRAPH_PLACEMENTS):
        some = by_op.values() if IN_ALL else [*by_op.values()][k::2]
        chosen = [found[k % len(found)] for found in some]
        trial.run(f"graph on {placement}", lambda c=chosen, p=placement: _graph(c, p))


def _graph(chosen: Ids, placement: Placement) -> None:
    rng = np.random.default_rng(PLACEMENTS.index(placement))
    xs: list[Tensor] = []
    want: list[Array] = []
    titles: list[str] = []
    for number, sample in chosen:
        arrays = arrays_of(sample, "float64")
        layouts = [draw(rng, x, placement) for x in arrays]
        outs = outputs(
            call(find_op(sample.op), *[wrap(np.array(x)) for x in arrays], **sample.attrs)
        )
        want += [outs[i].numpy() for i in compared(sample, outs)]
        titles += [describe(sample, placement, layouts)] * len(list(compared(sample, outs)))
        xs += [
            scatter(x, placement, s, number * 64 + i)
            for i, (x, s) in enumerate(zip(arrays, layouts, strict=True))
        ]
    got = Many([s for _, s in chosen])(*xs)
    wrong = []
    for title, y, expected in zip(titles, got, want, strict=True):
        try:
            compare(y, expected, 1e-8)
        except AssertionError as error:
            wrong.append(f"{title}: {str(error)[:400]}")
    assert not wrong, "\n".join(wrong)


def main() -> None:
    trial = Trial()
    samples = list(enumerate(SAMPLES))
    wanted = {*sys.argv[1:]} - {"all"} or {"eager", "gradients", "graphs"}
    if "eager" in wanted:
        every_op(trial, samples)
    if "gradients" in wanted:
        every_gradient(trial, samples)
    if "graphs" in wanted:
        every_op_in_a_graph(trial, samples)
    trial.finish()


if __name__ == "__main__":
    main()
    print(f"rank {RANK} done", flush=True)
