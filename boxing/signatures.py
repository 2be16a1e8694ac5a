"""The one chooser of SBP signatures, for eager ops on global tensors and for ops of a graph alike.

`choose` says how an op runs whose inputs lie in given layouts, `output_sbps` only how its results
lie. Both are pure: they see types, layouts and attributes, no data, and nothing is sent; all ranks,
and the compiler, choose alike. The rule:

1. An op that runs on parts (core/parts.py: slice, flip, roll, pad, concat ...) and whose dims
   concerned are split keeps the layout of its input.
2. Of the op's signatures over all axes of the hierarchy, those that take every input as it is are
   eligible; without one, all are.
3. Of these the one is taken to which the inputs are the cheapest to bring, in seconds of boxing
   within one host. To cut copies, or to make summands of a whole, costs nothing at once; so what it
   costs to put the result together again is counted with it.
4. Ties go to the signature that changes fewer inputs, then to that with smaller shards.

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
from oneflow.core.dtype import bool_
from oneflow.core.errors import InternalError
from oneflow.core.op import Attr, Op, infer_types, signatures
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpSignature, all_broadcast
from oneflow.core.tensor_type import TensorType

MAX_COMBINATIONS = 4096
MAX_WEIGHED = 6
"""The exact cost is computed only for this many candidates, chosen by a cheap estimate."""

_HOP_NBYTES = 1 << 16
Candidate = tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]
_TIE_SECONDS_PER_BYTE = 1e-12  # of two choices that move the same, the one with smaller shards


@dataclass(frozen=True)
class Choice:
    """Layouts of an op's inputs and outputs. by_parts: its kernel cannot work on these shards; it
    runs as `boxing.parts` plans."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    by_parts: bool = False


def output_sbps(
    op: type[Op],
    types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> tuple[NdSbp, ...]:
    """The layouts of the results of `op` on inputs of these types and layouts, all on `placement`.

    types: global ones.  sbps: of each input one entry per axis of the hierarchy. Raises what
    `op.infer` raises.
    """
    return choose(op, types, infer_types(op, types, attrs), sbps, attrs, placement).outputs


def choose(
    op: type[Op],
    types: tuple[TensorType, ...],
    out_types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> Choice:
    """How `op` runs on inputs that lie in `sbps`, by the rule at the top of this file."""
    by_parts = parts_layouts(op, types, out_types[0], sbps, attrs, placement) if types else None
    if by_parts is not None:
        ins, out = by_parts
        known = runs_on_shards(op, types, ins, (out,), attrs, placement)
        return Choice(ins, (out,), not known)
    found = list(_candidates(op, types, out_types, sbps, attrs, placement))
    if not found:  # all-B is always among them
        raise InternalError(f"{op.name}: no signature for {', '.join(map(str, types))}")
    found = [c for c in found if c[0] == sbps] or found
    if len(found) > MAX_WEIGHED:
        found = heapq.nsmallest(
            MAX_WEIGHED,
            found,
            key=lambda c: _rank(op, types, out_types, sbps, c[0], c[1], placement),
        )

    def cost(candidate: Candidate) -> tuple[Any, ...]:
        ins, outs = candidate
        moved = sum(ins[i] != sbps[i] for i in op.mutates.values())
        return moved, *_cost(types, sbps, ins, out_types, outs, placement)

    return Choice(*min(found, key=cost))


def runs_on_shards(
    op: type[Op],
    types: tuple[TensorType, ...],
    in_sbps: tuple[NdSbp, ...],
    out_sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> bool:
    """Whether these layouts are a signature of `op`; over an axis of one rank any layout is."""
    for axis, size in enumerate(placement.hierarchy):
        wanted = SbpSignature(tuple(s[axis] for s in in_sbps), tuple(s[axis] for s in out_sbps))
        if size > 1 and wanted not in signatures(op, types, attrs, size):
            return False
    return True


def _candidates(
    op: type[Op],
    types: tuple[TensorType, ...],
    out_types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> Iterator[Candidate]:
    for combination in _combinations(op, types, sbps, attrs, placement):
        ins = tuple(tuple(s.inputs[i] for s in combination) for i in range(len(types)))
        outs = tuple(tuple(s.outputs[i] for s in combination) for i in range(len(out_types)))
        if not _is_valid((*types, *out_types), (*ins, *outs), sbps, placement):
            continue
        if op.sbp_for is not None and not _nests(op, types, attrs, combination, placement):
            continue
        yield ins, outs


def _combinations(
    op: type[Op],
    types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> Any:
    """One signature per axis of the hierarchy, in every combination."""
    listed = [
        list(dict.fromkeys(signatures(op, types, attrs, size))) for size in placement.hierarchy
    ]
    for axis, size in enumerate(placement.hierarchy):
        if size == 1:  # all layouts are the same there: those that need no other name will do
            have = [s[axis] for s in sbps]
            matches = [sum(map(is_, s.inputs, have)) for s in listed[axis]]
            best = max(matches)
            listed[axis] = [s for s, n in zip(listed[axis], matches, strict=True) if n == best]
    if math.prod(map(len, listed)) > MAX_COMBINATIONS:
        return (
            zip(*listed, strict=True)
            if len({*map(len, listed)}) == 1
            else [[a[-1] for a in listed]]
        )
    return itertools.product(*listed)


def _is_valid(
    types: Sequence[TensorType],
    layouts: Sequence[NdSbp],
    sbps: tuple[NdSbp, ...],
    placement: Placement,
) -> bool:
    for type_, nd_sbp in zip(types, layouts, strict=True):
        parts: dict[int, int] = {}
        for sbp, size in zip(nd_sbp, placement.hierarchy, strict=True):
            if sbp.is_partial and type_.dtype is bool_:
                return False
            if sbp.is_split:
                parts[sbp.dim] = parts.get(sbp.dim, 1) * size
        if any(d >= type_.ndim for d in parts):
            return False
        if any(type_.shape[d] < n for d, n in parts.items()) and nd_sbp not in sbps:
            return False  # do not make empty shards where there were none
    return True


def _nests(
    op: type[Op],
    types: tuple[TensorType, ...],
    attrs: dict[str, Attr],
    combination: Sequence[SbpSignature],
    placement: Placement,
) -> bool:
    """A signature that depends on the number of ranks must hold for all its axes as one."""
    sizes: dict[SbpSignature, list[int]] = {}
    for chosen, size in zip(combination, placement.hierarchy, strict=True):
        sizes.setdefault(chosen, []).append(size)
    return all(
        chosen in signatures(op, types, attrs, math.prod(together))
        for chosen, together in sizes.items()
        if len(together) > 1
    )


def _rank(
    op: type[Op],
    types: Sequence[TensorType],
    out_types: Sequence[TensorType],
    sbps: Sequence[NdSbp],
    ins: Sequence[NdSbp],
    outs: Sequence[NdSbp],
    placement: Placement,
) -> tuple[Any, ...]:
    """What `cost` is likely to say, at a glance: routes need not be searched."""
    nbytes = sum(_bytes_of(t, h, w, placement) for t, h, w in zip(types, sbps, ins, strict=True))
    if any(map(_becomes_sum, sbps, ins)) or _splits_anew(sbps, ins):
        whole = all_broadcast(placement.ndim)
        nbytes += sum(
            _bytes_of(t, s, whole, placement) for t, s in zip(out_types, outs, strict=True)
        )
    changed = sum(have != want for have, want in zip(sbps, ins, strict=True))
    return sum(ins[i] != sbps[i] for i in op.mutates.values()), nbytes, changed


def _bytes_of(type_: TensorType, have: NdSbp, want: NdSbp, placement: Placement) -> float:
    """Into one rank, axis after axis, by the table of boxing; a hop counts as so many bytes."""
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


def _cost(
    types: Sequence[TensorType],
    sbps: Sequence[NdSbp],
    ins: Sequence[NdSbp],
    out_types: Sequence[TensorType],
    outs: Sequence[NdSbp],
    placement: Placement,
) -> tuple[float, int, float]:
    seconds = sum(
        boxing_seconds(t, have, placement, want, placement)
        for t, have, want in zip(types, sbps, ins, strict=True)
        if have != want
    )
    if any(map(_becomes_sum, sbps, ins)) or _splits_anew(sbps, ins):
        whole = all_broadcast(placement.ndim)  # the result will have to be put together instead
        seconds += sum(
            boxing_seconds(t, s, placement, whole, placement)
            for t, s in zip(out_types, outs, strict=True)
        )
    changed = sum(have != want for have, want in zip(sbps, ins, strict=True))
    nbytes = sum(
        t.nbytes / _parts(s, placement)
        for t, s in zip((*types, *out_types), (*ins, *outs), strict=True)
    )
    return seconds, changed, nbytes * _TIE_SECONDS_PER_BYTE


def _becomes_sum(have: NdSbp, want: NdSbp) -> bool:
    return any(b.is_partial and not a.is_partial for a, b in zip(have, want, strict=True))


def _splits_anew(sbps: Sequence[NdSbp], ins: Sequence[NdSbp]) -> bool:
    """Would copies be cut along an axis on which nothing was?"""
    pairs = list(zip(sbps, ins, strict=True))
    return any(
        any(have[axis].is_broadcast and want[axis].is_split for have, want in pairs)
        and not any(have[axis].is_split for have, _ in pairs)
        for axis in range(len(sbps[0]) if sbps else 0)
    )


def _parts(nd_sbp: NdSbp, placement: Placement) -> int:
    return math.prod(n for s, n in zip(nd_sbp, placement.hierarchy, strict=True) if s.is_split)
