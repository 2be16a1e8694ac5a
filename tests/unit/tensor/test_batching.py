"""Every op inside `vmap`: for all samples at once it gives the values of a loop over samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.dispatch import call
from oneflow.core.op import Op, find_op
from oneflow.tensor.batching.lifting import InFront, find_lift
from oneflow.tensor.batching.mode import BatchingWarning, batching
from oneflow.tensor.batching.rules import OF_WHOLES, WRITTEN, results_of
from oneflow.tensor.batching.values import with_front
from oneflow.tensor.tensor import Tensor
from tests.unit.ops.numpy_mode import type_of
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

Array = np.ndarray[Any, Any]
SIZE = 3

OF_COMPILERS = ("exchange_rows", "fused", "fused_random", "pack_rows", "product")
"""Ops that no program calls: the compiler and the runtime put them into graphs."""


def _is_called(sample: Sample) -> bool:
    name = sample.op
    return bool(sample.inputs) and not name.startswith("one_embedding") and name not in OF_COMPILERS


CALLED = [s for s in SAMPLES if _is_called(s)]


def _patterns(op: type[Op], count: int) -> list[tuple[bool, ...]]:
    """The choices of operands of samples: all; the first; the last; all but the first. An
    operand that the op overwrites always is.
    """
    written = set(op.mutates.values())
    found = [(True,) * count, (True, *[False] * (count - 1)), (*[False] * (count - 1), True)]
    found.append((False, *(True,) * (count - 1)))
    split = [tuple(s or i in written for i, s in enumerate(p)) for p in found if any(p)]
    return list(dict.fromkeys(split))


def _of_samples(x: Array, name: str) -> list[Array]:
    """An operand of each sample: of the same domain, but other values."""
    if x.dtype.kind in "fc":
        return [np.asarray(x * (1 - 0.01 * k)) for k in range(SIZE)]
    if x.ndim == 0 or name in KEEP_POSITIONS:
        return [x] * SIZE
    return [np.roll(x, k, 0) for k in range(SIZE)]


KEEP_POSITIONS = ("pivots_to_order", "ldl_solve", "max_pool_grad", "ctc_loss", "ctc_loss_grad")
"""Ops whose operands of integers only fit the others as they are."""


class Case:
    """A sample of an op with other operands for each of SIZE samples where `split` says so."""

    def __init__(self, sample: Sample, split: tuple[bool, ...], end: bool) -> None:
        self.op, self.attrs, self.split = find_op(sample.op), sample.attrs, split
        self.compared = sample.compared
        self.columns = [
            _of_samples(x, sample.op) if s else [x] * SIZE
            for x, s in zip(sample.inputs, split, strict=True)
        ]
        self.end = end

    def operands(self, grad: bool) -> list[Tensor]:
        """The operands of all samples, in dim 0 or in the last."""
        found = []
        for column, s in zip(self.columns, self.split, strict=True):
            if not s:
                x = flow.from_numpy(column[0].copy())
            elif self.end:
                x = flow.from_numpy(np.ascontiguousarray(np.stack(column, -1)))
            else:
                x = flow.from_numpy(np.stack(column))
            found.append(x.requires_grad_(grad and x.is_floating_point()))
        return found

    def run(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results of the op; operands that it overwrites are copied first."""
        written = self.op.mutates.values()
        given = [x.clone() if i in written else x for i, x in enumerate(operands)]
        return results_of(call(self.op, *given, **self.attrs))

    def batched(
        self, operands: Sequence[Tensor], function: Callable[..., Any] | None = None
    ) -> tuple[Tensor, ...]:
        """The results of all samples, in dim 0, of one call inside a batch."""
        with batching(SIZE, "different") as mode:
            inputs = [
                mode.enter_samples(with_front(x, x.ndim - 1 if self.end else 0)) if s else x
                for x, s in zip(operands, self.split, strict=True)
            ]
            return tuple(mode.split_whole(y) for y in (function or self.run)(*inputs))

    def looped(
        self, operands: Sequence[Tensor], function: Callable[..., Any] | None = None
    ) -> tuple[Tensor, ...]:
        """The results of a call for each sample, stacked."""
        rows = []
        for k in range(SIZE):
            given = [
                x.select(-1 if self.end else 0, k) if s else x
                for x, s in zip(operands, self.split, strict=True)
            ]
            rows.append((function or self.run)(*given))
        return tuple(flow.stack(list(column)) for column in zip(*rows, strict=True))

    def chosen(self, outs: Sequence[Tensor]) -> list[Tensor]:
        return [y for i, y in enumerate(outs) if self.compared is None or i in self.compared]


def _cases(samples: Sequence[Sample]) -> list[Any]:
    """Each sample in one pattern with the batch in front, and the next pattern with it at the end:
    over the samples of an op all come up.
    """
    found = []
    for number, parameter in enumerate(named(samples)):
        (sample,) = parameter.values
        patterns = _patterns(find_op(sample.op), len(sample.inputs))
        for turn, end in ((0, False), (1, True)):
            split = patterns[(number + turn) % len(patterns)]
            where = "end" if end else "front"
            bits = "".join("b" if s else "-" for s in split)
            found.append(pytest.param(sample, split, end, id=f"{parameter.id}-{bits}-{where}"))
    return found


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchingWarning)
        yield


def _close(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    got, want = got.detach().numpy(), want.detach().numpy()
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    else:
        np.testing.assert_array_equal(got, want)


FIXED = [s for s in CALLED if not find_op(s.op).is_random]
"""Samples of ops that draw nothing; test_vmap.py looks at draws."""


@pytest.mark.parametrize(("sample", "split", "end"), _cases(FIXED))
def test_op_in_a_batch_equals_a_loop(sample: Sample, split: tuple[bool, ...], end: bool) -> None:
    case = Case(sample, split, end)
    differs = _has_gradient(sample)
    one, other = case.operands(differs), case.operands(differs)
    got, want = case.chosen(case.batched(one)), case.chosen(case.looped(other))
    for a, b in zip(got, want, strict=True):
        _close(a, b)
    if differs:
        _compare_gradients(sample, one, got, other, want)


def _has_gradient(sample: Sample) -> bool:
    op = find_op(sample.op)
    return op.has_gradient and not op.mutates and sample.wrt != ()


def _wanted(sample: Sample, tensors: Sequence[Tensor]) -> list[int]:
    """The operands by which a sample may be differentiated."""
    found = [i for i, x in enumerate(tensors) if x.requires_grad and i not in sample.refused]
    return found if sample.wrt is None else [i for i in found if i in sample.wrt]


def _weighted(outs: Sequence[Tensor], shape_of: Callable[[Tensor], Any]) -> dict[int, Tensor]:
    """Random numbers to weigh the results with that have a gradient."""
    rng = np.random.default_rng(5)
    return {
        i: flow.from_numpy(rng.standard_normal(shape_of(y)))
        for i, y in enumerate(outs)
        if y.requires_grad
    }


def _compare_gradients(
    sample: Sample,
    one: Sequence[Tensor],
    got: Sequence[Tensor],
    other: Sequence[Tensor],
    want: Sequence[Tensor],
) -> None:
    """Those that flow out of the batch."""
    weights, wrt = _weighted(want, lambda y: y.shape), _wanted(sample, other)
    if not weights or not wrt:
        return
    found = [
        flow.autograd.grad(
            [outs[i] for i in weights],
            [ins[i] for i in wrt],
            list(weights.values()),
            allow_unused=True,
        )
        for outs, ins in ((got, one), (want, other))
    ]
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            _close(a, b)


@pytest.mark.parametrize(("sample", "split", "end"), _cases([s for s in FIXED if _has_gradient(s)]))
def test_gradients_of_each_sample_equal_those_of_a_loop(
    sample: Sample, split: tuple[bool, ...], end: bool
) -> None:
    case = Case(sample, split, end)

    def slopes(*operands: Tensor) -> tuple[Tensor, ...]:
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in operands]
        outs = case.chosen(results_of(call(case.op, *given, **case.attrs)))
        weights, wrt = _weighted(outs, lambda y: y.shape), _wanted(sample, given)
        if not weights or not wrt:
            return ()
        found = flow.autograd.grad(
            [outs[i] for i in weights],
            [given[i] for i in wrt],
            list(weights.values()),
            allow_unused=True,
        )
        return tuple(x for x in found if x is not None)

    operands = case.operands(False)
    got, want = case.batched(operands, slopes), case.looped(operands, slopes)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        _close(a, b)


def _way(sample: Sample, split: tuple[bool, ...]) -> str:
    op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
    lift = find_lift(op, types, split, op.defaults | sample.attrs)
    if lift is not None:
        return "in front" if isinstance(lift, InFront) else "within"
    if sample.op in OF_WHOLES or sample.op in WRITTEN:
        return "rule"
    return "written" if op.written is not None and op.num_outputs == 1 else "loop"


RATES = """
adadelta_update adagrad_update adam_update adam_update_and_cast adamax_update amsgrad_update
amsgrad_update_and_cast asgd_rates asgd_update cycled_adam_update cycled_momentum_update
dampened_update ftrl_update lamb_update momentum_update momentum_update_and_cast nadam_product
nadam_update radam_update rmsprop_update sgd_update sgd_update_and_cast
"""
"""Updates run once for each sample that has a learning rate, or a number of steps, of its own."""
_OTHERS = "attention_grad batch_norm_average recurrent recurrent_grad quantized_linear "
_OTHERS += "integer_linear integer_conv paged_attention"
LOOPED = {*RATES.split(), *_OTHERS.split()}
"""Ops that run once for each sample in some of their calls; the others never do. Of attention it is
the gradient of a mask that broadcasts; of layers the call with weights of each sample; and a cache
of keys in blocks, whose rows are of many sequences already."""


def test_few_ops_run_once_for_each_sample() -> None:
    """A new op batches by its signatures, or gets a rule."""
    ways: dict[str, set[str]] = {}
    for sample in CALLED:
        op = find_op(sample.op)
        for split in _patterns(op, len(sample.inputs)):
            ways.setdefault(sample.op, set()).add(_way(sample, split))
    assert {name for name, found in ways.items() if "loop" in found} == set(LOOPED)
    assert sum(found == {"in front"} for found in ways.values()) >= 200
