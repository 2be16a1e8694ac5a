"""Every op refuses operands that do not fit each other before a kernel sees them.

Loops of machine code look at no shape: shapes that `infer` lets through would be read and written
beyond its end. Of a sample of each op every operand gets another size in every dim, gets a dim more
or less, or goes. All that `infer` accepts must run, and leave the memory beside its arrays alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from oneflow.core.errors import OneFlowError, PositionError, ShapeError
from oneflow.core.op import find_op, infer_types

from .numpy_mode import Array, bind_whole, run_whole, type_of
from .sample import Sample, named
from .samples import SAMPLES

BESIDE = 1 << 12
"""Bytes before and behind an array."""

OTHERS = ("one_embedding", "exchange_rows", "fused")
"""Rows are found by values there (tables are tested below); only the compiler makes fused calls."""

SAMPLED = {
    (s.op, len(s.inputs), s.attrs.get("mode"), bool(s.attrs.get("sizes"))): s
    for s in SAMPLES
    if s.inputs and not find_op(s.op).is_random and not s.op.startswith(OTHERS)
}


def _spoiled(inputs: tuple[Array, ...]) -> Iterator[tuple[str, tuple[Array, ...]]]:
    for i, x in enumerate(inputs):
        before, after = inputs[:i], inputs[i + 1 :]
        yield f"without {i}", (*before, *after)
        yield f"{i} in a list", (*before, x[None], *after)
        for dim, n in enumerate(x.shape):
            for size in (n - 1, n + 1) if n > 1 else ():
                changed = np.take(x, np.arange(size) % n, axis=dim)
                yield f"{i} with {size} in dim {dim}", (*before, changed, *after)
            if n:
                yield f"{i} without dim {dim}", (*before, np.take(x, 0, axis=dim), *after)


class _Watched:
    """Arrays between bytes that nobody should write."""

    def __init__(self) -> None:
        self.around: list[Array] = []

    def copy(self, x: Array) -> Array:
        memory = np.full(x.nbytes + 2 * BESIDE, 0x3E, np.uint8)
        inside = memory[BESIDE : BESIDE + x.nbytes]
        inside[...] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        self.around += [memory[:BESIDE], memory[BESIDE + x.nbytes :]]
        made: Array = inside.view(x.dtype).reshape(x.shape)
        return made

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        return self.copy(np.zeros(shape, dtype))

    def is_intact(self) -> bool:
        return all((x == 0x3E).all() for x in self.around)


@pytest.mark.parametrize("sample", named(SAMPLED.values()))
def test_what_does_not_fit_is_refused_before_it_runs(sample: Sample) -> None:
    op = find_op(sample.op)
    for how, inputs in _spoiled(sample.inputs_as(np.float32)):
        try:
            infer_types(op, tuple(map(type_of, inputs)), op.defaults | sample.attrs)
        except (OneFlowError, TypeError):
            continue
        watched = _Watched()
        given = [watched.copy(x) for x in inputs]
        with np.errstate(all="ignore"):
            try:
                bind_whole(sample.op, inputs, sample.attrs).run(np, given, 0, watched.empty)
            except PositionError:
                continue  # a value that is no index any more
            except Exception as error:
                pytest.fail(f"{how}: the kernel says {type(error).__name__}: {error}")
        assert watched.is_intact(), how


@pytest.mark.parametrize("size", [0, 2, 4])
def test_rows_of_another_width_than_the_tables_are_refused(size: int) -> None:
    looked_up = next(s for s in SAMPLES if s.op == "one_embedding_fused_lookup")
    with pytest.raises(ShapeError, match=f"rows have 3 elements, not {size}"):
        run_whole(looked_up.op, looked_up.inputs, looked_up.attrs | {"size": size})
    kept = next(s for s in SAMPLES if s.op == "one_embedding_fused_lookup_grad")
    shadow, d, *ids = kept.inputs_as(np.float32)
    with pytest.raises(ShapeError, match=f"rows have 3 elements, not {size}"):
        run_whole(kept.op, (shadow, np.resize(d, (*d.shape[:-1], size)), *ids), kept.attrs)
