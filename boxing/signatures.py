"""The one chooser of SBP signatures, for eager ops on global tensors and for ops of a graph alike.

`choose` says how an op runs whose inputs lie in given layouts, `output_sbps` only how its results
lie. Both are pure: they see types, layouts and attributes, no data, and nothing is sent; all ranks,
and the compiler, choose alike. The rule:

1. An op that moves rows between so many ranks (core/op.py: moves_rows) has its tensors split. An op
   that runs on parts (core/parts.py: slice, flip, roll, pad, concat ...) and whose dims
   concerned are split keeps the layout of its input.
   One that can make its part of the result from each shard, however the axes of the hierarchy cut,
   does so (reshape).
2. Along an axis of the hierarchy on which a signature takes every input as it is, such a one is
   taken.
3. Along an axis on which no input that is split stays split, nothing is cut. To cut costs nothing
   at once, but the result has to be put together again. So copies are computed whole, and partial
   sums are added up into copies unless another input is split.
4. Of the signatures left the one is taken to which the inputs are the cheapest to bring, in seconds
   of boxing within one host, together with the time to add up the partial sums that result. Ties go
   to fewer inputs that change, then to results without partial sums, then to smaller shards.

An input that the op overwrites is moved only if no signature takes it as it is.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from oneflow.boxing.parts import parts_layouts
from oneflow.boxing.route import boxing_seconds
from oneflow.boxing.rows import rows_layout
from oneflow.core.dtype import bool_
from oneflow.core.errors import SbpError
from oneflow.core.op import Op, infer_types, signatures
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, SbpSignature, nd_sbp_str
from oneflow.core.tensor_type import TensorType

MAX_COMBINATIONS = 4096
MAX_WEIGHED = 6
"""The exact cost is computed only for this many candidates, chosen by a cheap estimate."""

_HOP_NBYTES = 1 << 16
_PerAxis = list[list[SbpSignature]]


@dataclass(frozen=True)
class NdSignature:
    """Layouts of an op's inputs and outputs. by_parts: its kernel cannot work on these shards; it
    runs as `boxing.parts` plans, or moves rows (`boxing.rows`)."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    by_parts: bool = False


def output_sbps(
    op: type[Op],
    types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: Attrs,
    placement: Placement,
) -> tuple[NdSbp, ...]:
    """The layouts of the results of `op` on inputs of these types and layouts, all on `placement`.

    types: global ones.  sbps: of each input one entry per axis of the hierarchy. Raises the errors
    of `op.infer`.
    """
    return choose(op, types, infer_types(op, types, attrs), sbps, attrs, placement).outputs


def choose(
    op: type[Op],
    types: tuple[TensorType, ...],
    out_types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: Attrs,
    placement: Placement,
    fixed: tuple[NdSbp | None, ...] = (),
) -> NdSignature:
    """Choose how `op` runs on inputs that lie in `sbps`, by the rule at the top of this file.

    fixed: of each output the layout that it must have, if there is one. Raises SbpError if no
    signature gives these.
    """
    call = _Call(op, types, out_types, sbps, attrs, placement, fixed)
    for whole in whole_signatures(op, types, out_types, sbps, attrs, placement):
        if call.keeps_fixed(whole.outputs):
            return whole
    found = call.candidates()
    if len(found) == 1:
        return found[0]
    if len(found) > MAX_WEIGHED:
        found = heapq.nsmallest(MAX_WEIGHED, found, key=call.estimate)
    return min(found, key=call.cost)


def whole_signatures(
    op: type[Op],
    types: tuple[TensorType, ...],
    out_types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: Attrs,
    placement: Placement,
) -> Iterator[NdSignature]:
    """Ways to run an op on inputs that lie so, all axes of the hierarchy together: rule 1."""
    rows = rows_layout(op, attrs, placement)
    if rows is not None:
        yield NdSignature((rows,) * len(types), (rows,) * len(out_types), True)
    by_parts = parts_layouts(op, types, out_types[0], sbps, attrs, placement) if types else None
    if by_parts is not None:
        ins, out = by_parts
        known = runs_on_shards(op, types, ins, (out,), attrs, placement)
        yield NdSignature(ins, (out,), not known)
    if op.kept is not None and placement.ndim > 1:
        kept = op.kept(sbps[0], placement.hierarchy, *types, **attrs)
        if kept is not None:
            yield NdSignature(sbps, (kept,))


def runs_on_shards(
    op: type[Op],
    types: tuple[TensorType, ...],
    in_sbps: tuple[NdSbp, ...],
    out_sbps: tuple[NdSbp, ...],
    attrs: Attrs,
    placement: Placement,
) -> bool:
    """Whether these layouts are a signature of `op`; over an axis of one rank any layout is."""
    for axis, size in enumerate(placement.hierarchy):
        wanted = SbpSignature(tuple(s[axis] for s in in_sbps), tuple(s[axis] for s in out_sbps))
        if size > 1 and wanted not in signatures(op, types, attrs, size):
            return False
    return True


@dataclass(frozen=True)
class _Call:
    """One question to the chooser: the arguments of `choose`."""

    op: type[Op]
    types: tuple[TensorType, ...]
    out_types: tuple[TensorType, ...]
    sbps: tuple[NdSbp, ...]
    attrs: Attrs
    placement: Placement
    fixed: tuple[NdSbp | None, ...]

    def keeps_fixed(self, outputs: tuple[NdSbp, ...]) -> bool:
        return all(f in (None, s) for f, s in zip(self.fixed, outputs, strict=False))

    # ---- candidates ------------------------------------------------------------------------------

    def candidates(self) -> list[NdSignature]:
        """The signatures that rules 2 and 3 leave. Raises SbpError."""
        hierarchy = self.placement.hierarchy
        every = [self._listed(axis, size) for axis, size in enumerate(hierarchy)]
        kept = [self._uncut(axis, signatures) for axis, signatures in enumerate(every)]
        as_they_are = [self._untouched(axis, signatures) for axis, signatures in enumerate(kept)]
        for per_axis in (as_they_are, kept, every):
            found = list(self._valid(per_axis))
            if found:
                return found
        wanted = " ".join("?" if s is None else nd_sbp_str(s) for s in self.fixed)
        types = " ".join(map(str, self.types))
        raise SbpError(f"{self.op.name}: no signature of {types} gives {wanted or 'a result'}")

    def _listed(self, axis: int, size: int) -> list[SbpSignature]:
        listed = list(dict.fromkeys(signatures(self.op, self.types, self.attrs, size)))
        if size > 1:
            return listed
        # All layouts are the same there: those that need no other name will do.
        have = [s[axis] for s in self.sbps]
        matches = [sum(map(is_, s.inputs, have)) for s in listed]
        return [s for s, n in zip(listed, matches, strict=True) if n == max(matches)]

    def _uncut(self, axis: int, listed: list[SbpSignature]) -> list[SbpSignature]:
        """Those that split nothing, unless an input that is split stays split."""
        if not self.types or self.placement.hierarchy[axis] == 1:
            return listed
        have = [s[axis] for s in self.sbps]
        return [
            s
            for s in listed
            if any(a.is_split and b.is_split for a, b in zip(have, s.inputs, strict=True))
            or not any(x.is_split for x in (*s.inputs, *s.outputs))
        ]

    def _untouched(self, axis: int, listed: list[SbpSignature]) -> list[SbpSignature]:
        """Those that take all inputs as they are, if there are any."""
        have = [s[axis] for s in self.sbps]
        return [s for s in listed if all(map(is_, s.inputs, have))] or listed

    def _valid(self, per_axis: _PerAxis) -> Iterator[NdSignature]:
        for combination in _combinations(per_axis):
            ins = tuple(tuple(s.inputs[i] for s in combination) for i in range(len(self.types)))
            outs = tuple(
                tuple(s.outputs[i] for s in combination) for i in range(len(self.out_types))
            )
            if not self.keeps_fixed(outs):
                continue
            if not self._fits((*self.types, *self.out_types), (*ins, *outs)):
                continue
            if self.op.sbp_for is not None and not self._nests(combination):
                continue
            yield NdSignature(ins, outs)

    def _fits(self, types: Sequence[TensorType], layouts: Sequence[NdSbp]) -> bool:
        for type_, nd_sbp in zip(types, layouts, strict=True):
            parts: dict[int, int] = {}
            for sbp, size in zip(nd_sbp, self.placement.hierarchy, strict=True):
                if sbp.is_partial and type_.dtype is bool_:
                    return False
                if sbp.is_split:
                    parts[sbp.dim] = parts.get(sbp.dim, 1) * size
            if any(d >= type_.ndim for d in parts):
                return False
            is_small = any(type_.shape[d] < n for d, n in parts.items())
            if is_small and nd_sbp not in self.sbps and nd_sbp not in self.fixed:
                return False  # do not make empty shards where there were none
        return True

    def _nests(self, combination: Sequence[SbpSignature]) -> bool:
        """A signature that depends on the number of ranks must hold for all its axes as one."""
        sizes: dict[SbpSignature, list[int]] = {}
        for chosen, size in zip(combination, self.placement.hierarchy, strict=True):
            sizes.setdefault(chosen, []).append(size)
        return all(
            chosen in signatures(self.op, self.types, self.attrs, math.prod(together))
            for chosen, together in sizes.items()
            if len(together) > 1
        )

    # ---- costs -----------------------------------------------------------------------------------

    def estimate(self, candidate: NdSignature) -> tuple[Any, ...]:
        """Estimate the result of `cost` at a glance: routes need not be searched."""
        moves = zip(self.types, self.sbps, candidate.inputs, strict=True)
        nbytes = sum(_bytes_of(t, have, want, self.placement) for t, have, want in moves)
        for type_, nd_sbp in zip(self.out_types, candidate.outputs, strict=True):
            nbytes += _bytes_of(type_, nd_sbp, _added_up(nd_sbp), self.placement)
        return self._overwritten(candidate), nbytes, self._changed(candidate)

    def cost(self, candidate: NdSignature) -> tuple[Any, ...]:
        """Return the cost by rule 4, the smallest first."""
        given = zip(self.types, self.sbps, candidate.inputs, strict=True)
        made = ((t, s, _added_up(s)) for t, s in self._results(candidate))
        where = self.placement
        seconds = sum(
            boxing_seconds(t, have, where, want, where)
            for t, have, want in (*given, *made)
            if have != want
        )
        tensors = zip(
            (*self.types, *self.out_types), (*candidate.inputs, *candidate.outputs), strict=True
        )
        nbytes = sum(t.nbytes / _parts(s, where) for t, s in tensors)
        sums = sum(s.is_partial for _, nd_sbp in self._results(candidate) for s in nd_sbp)
        changed = self._changed(candidate)
        return self._overwritten(candidate), seconds, changed, sums, nbytes

    def _results(self, candidate: NdSignature) -> Iterator[tuple[TensorType, NdSbp]]:
        return zip(self.out_types, candidate.outputs, strict=True)

    def _changed(self, candidate: NdSignature) -> int:
        return sum(have != want for have, want in zip(self.sbps, candidate.inputs, strict=True))

    def _overwritten(self, candidate: NdSignature) -> int:
        """Number of inputs that would be moved although the op overwrites them."""
        return sum(candidate.inputs[i] != self.sbps[i] for i in self.op.mutates.values())


def _combinations(per_axis: _PerAxis) -> Any:
    """One signature per axis of the hierarchy, in every combination; of very many only those that
    are the same on all axes, or all-B."""
    if math.prod(map(len, per_axis)) <= MAX_COMBINATIONS:
        return itertools.product(*per_axis)
    if len({*map(len, per_axis)}) == 1:
        return zip(*per_axis, strict=True)
    return [[listed[-1] for listed in per_axis]]


def _added_up(nd_sbp: NdSbp) -> NdSbp:
    return tuple(BROADCAST if s.is_partial else s for s in nd_sbp)


def _bytes_of(type_: TensorType, have: NdSbp, want: NdSbp, placement: Placement) -> float:
    """Return the bytes into one rank, axis after axis, by the table of boxing; a hop counts as so
    many bytes.
    """
    total = 0.0
    for axis, (a, b, p) in enumerate(zip(have, want, placement.hierarchy, strict=True)):
        if a is b or p == 1 or b.is_partial or a.is_broadcast:
            continue
        others = zip(have, want, placement.hierarchy, strict=True)
        cut = math.prod(
            n for i, (x, y, n) in enumerate(others) if i != axis and x.is_split and y.is_split
        )
        hops = 2 if a.is_partial and b.is_broadcast else 1
        share = (p - 1) / p / (p if a.is_split and b.is_split else 1)
        total += hops * (type_.nbytes / cut * share + _HOP_NBYTES)
    return total


def _parts(nd_sbp: NdSbp, placement: Placement) -> int:
    return math.prod(n for s, n in zip(nd_sbp, placement.hierarchy, strict=True) if s.is_split)
