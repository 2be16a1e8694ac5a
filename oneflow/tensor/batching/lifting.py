"""The lift of a call for one sample to one call for all of them, found from the declaration of an
op.

Two ways, tried in this order with the types of the call:

    in front   the samples are a new dim 0 of operands and results, and attributes that name dims
               name the next ones
    within     the samples lie one after the other within a dim of each operand

Signatures (`Op.sbp`) say which of them is right. A result that may be split over ranks, S(i) of the
operands giving S(j) of the results, is computed by each rank from its own part alone; so parts that
are samples may be computed at once. That is all that the second way asks for. In front of the
operands there must be such a signature, too, and all others must be those of one sample, moved by
one dim: then the op takes each dim as it did before.

No size of a batch is asked for: the types are tried with one that no other dim has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oneflow.core.errors import OneFlowError
from oneflow.core.op import Box, Op, infer_types
from oneflow.core.operand import Attrs, attrs_key
from oneflow.core.sbp import BROADCAST, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType

Types = tuple[TensorType, ...]
AS_IS = -1
"""The place of a dim where the operand is one for all samples."""

_PROBES = (97, 89, 83, 79, 73)


class InFront(NamedTuple):
    """The samples are dim 0 of all results.

    operands: of each, AS_IS or the number of dims that follow the samples, of which the first may
    be new ones of size 1.  form: which attributes are changed (`lifted_attrs`).
    """

    operands: tuple[int, ...]
    form: str


class Within(NamedTuple):
    """The samples lie one after the other within a dim.

    operands: the dim of each; AS_IS for one that all samples share.  results: the dim of each.
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]


Lift = InFront | Within

KEPT, MOVED, LED = "kept", "moved", "led"
"""Attributes stay; those that name dims, sizes or positions take the new dim in; and `dims`, which
lists all of them, begins with it."""


def lifted_attrs(attrs: Attrs, form: str, size: int) -> Attrs:
    """Return the attributes of a call whose operands have a new dim 0 of that size."""
    if form == KEPT:
        return attrs
    changed = dict(attrs)
    for name in ("dim", "begin_axis"):
        if isinstance(attrs.get(name), int):
            changed[name] = attrs[name] + 1
    if "dims" in attrs:
        changed["dims"] = ((0,) if form == LED else ()) + tuple(d + 1 for d in attrs["dims"])
    for name, front in (("shape", size), ("starts", 0), ("stops", size), ("steps", 1)):
        if isinstance(attrs.get(name), tuple):
            changed[name] = (front, *attrs[name])
    if "pads" in attrs:
        changed["pads"] = (0, 0, *attrs["pads"])
    return changed


_found: dict[tuple[object, ...], Lift | None] = {}
MAX_FOUND = 8192


def find_lift(op: type[Op], types: Types, split: tuple[bool, ...], attrs: Attrs) -> Lift | None:
    """Return how a call is made for all samples at once; None if no signature says so.

    types: of one sample.  split: of each operand, whether the samples have their own.
    """
    key = op.name, types, split, attrs_key({k: v for k, v in attrs.items() if k != "seed"})
    if key not in _found:
        if len(_found) >= MAX_FOUND:
            _found.clear()
        _found[key] = _search(op, types, split, attrs)
    return _found[key]


def _search(op: type[Op], types: Types, split: tuple[bool, ...], attrs: Attrs) -> Lift | None:
    sizes = {n for t in types for n in t.shape}
    sizes.update(n for v in attrs.values() if isinstance(v, tuple) for n in v if type(n) is int)
    probe = next((n for n in _PROBES if n not in sizes), None)
    if probe is None:
        return None
    call = _Call(op, types, attrs, probe)
    if (found := call.in_front(split)) is not None:
        return found
    if (within := call.within(split)) is not None:
        return within
    # Numbers, as learning rates are, stay one for all where they can; then all get samples.
    wider = tuple(o or t.ndim > 0 for t, o in zip(types, split, strict=True))
    return call.in_front(wider) or call.in_front((True,) * len(types))


class _Call:
    """A call for one sample, and the ways that are tried with a batch of size `probe`."""

    def __init__(self, op: type[Op], types: Types, attrs: Attrs, probe: int) -> None:
        self.op, self.types, self.attrs, self.probe = op, types, attrs, probe
        self.results = infer_types(op, types, attrs)

    # ---- in front --------------------------------------------------------------------------------

    def in_front(self, own: tuple[bool, ...]) -> InFront | None:
        """own: of each operand, whether it gets the samples."""
        for types in self._ranks(own):
            for form, attrs in self._forms():
                if self._is_moved(types, own, attrs):
                    dims = zip(types, own, strict=True)
                    return InFront(tuple(t.ndim if o else AS_IS for t, o in dims), form)
        return None

    def _ranks(self, own: tuple[bool, ...]) -> Iterator[Types]:
        """The types as they are; and with dims of size 1 in front, where that changes nothing, so
        that samples do not meet other dims where operands broadcast.
        """
        yield self.types
        among_operands = max(t.ndim for t in self.types)
        among_results = max((t.ndim for t in self.results), default=0)
        for most in dict.fromkeys((among_operands, max(among_operands, among_results))):
            padded = tuple(
                t.with_shape((1,) * (most - t.ndim) + t.shape) if o else t
                for t, o in zip(self.types, own, strict=True)
            )
            if padded != self.types and _infer(self.op, padded, self.attrs) == self.results:
                yield padded

    def _forms(self) -> Iterator[tuple[str, Attrs]]:
        seen = []
        for form in (MOVED, LED, KEPT):
            attrs = lifted_attrs(self.attrs, form, self.probe)
            if attrs not in seen:
                seen.append(attrs)
                yield form, attrs

    def _is_moved(self, types: Types, own: tuple[bool, ...], attrs: Attrs) -> bool:
        """Whether the op takes the dims of one sample as it did before, and samples apart."""
        wholes = tuple(
            t.with_shape((self.probe, *t.shape)) if o else t
            for t, o in zip(types, own, strict=True)
        )
        results = tuple(t.with_shape((self.probe, *t.shape)) for t in self.results)
        if _infer(self.op, wholes, attrs) != results:
            return False
        have = self._signatures(wholes, attrs)
        of_one = self._signatures(types, self.attrs)
        if have is None or of_one is None:
            return False
        front = tuple(Split(0) if o else BROADCAST for o in own)
        if SbpSignature(front, (Split(0),) * len(results)) not in have:
            return False
        moved = {
            SbpSignature(
                tuple(_next(s) if o else s for s, o in zip(sbp.inputs, own, strict=True)),
                tuple(map(_next, sbp.outputs)),
            )
            for sbp in of_one
        }
        return moved <= have and all(_is_in_front(sbp, own) for sbp in have - moved)

    # ---- within ----------------------------------------------------------------------------------

    def within(self, split: tuple[bool, ...]) -> Within | None:
        """split: of each operand, whether the samples have their own; others may be repeated."""
        listed = self._signatures(self.types, self.attrs) or set()
        fitting = [sbp for sbp in listed if self._cuts(sbp, split)]
        for sbp in sorted(fitting, key=_distance):
            operands = tuple(s.dim if s.is_split else AS_IS for s in sbp.inputs)
            lift = Within(operands, tuple(s.dim for s in sbp.outputs))
            if self._is_within(lift, sbp):
                return lift
        return None

    @staticmethod
    def _cuts(sbp: SbpSignature, split: tuple[bool, ...]) -> bool:
        """Whether each rank makes its part of all results of its part of all that samples have."""
        fits = all(
            s.is_split or (s.is_broadcast and not o) for s, o in zip(sbp.inputs, split, strict=True)
        )
        return fits and all(s.is_split for s in sbp.outputs)

    def _is_within(self, lift: Within, sbp: SbpSignature) -> bool:
        wholes = tuple(map(self._longer, self.types, lift.operands))
        results = tuple(map(self._longer, self.results, lift.results))
        if _infer(self.op, wholes, self.attrs) != results:
            return False
        have = self._signatures(wholes, self.attrs)
        return have is not None and sbp in have and self._is_local(wholes, results, lift)

    def _longer(self, t: TensorType, dim: int) -> TensorType:
        return t.with_shape(lengthened(t.shape, dim, self.probe))

    def _is_local(self, wholes: Types, results: Types, lift: Within) -> bool:
        """Whether a rank with one sample would be given the attributes as they are."""
        if self.op.localize is None:
            return True
        for sample in (0, 1):
            ins = tuple(map(self._box, self.types, wholes, lift.operands, [sample] * len(wholes)))
            outs = tuple(
                map(self._box, self.results, results, lift.results, [sample] * len(results))
            )
            attrs = self.op.defaults | self.attrs
            if lift.operands[0] == attrs.get("dim", AS_IS) and attrs.get("size") is not None:
                return False  # positions of the dim in which the samples would lie
            local = self.op.localize(attrs, ins, outs)
            # An attribute of shards alone, such as the first position of one, is 0 of a whole.
            if any(value != attrs.get(name, 0) for name, value in local.items()):
                return False
        return True

    @staticmethod
    def _box(one: TensorType, whole: TensorType, dim: int, sample: int) -> Box:
        if dim == AS_IS:
            return Box((0,) * whole.ndim, whole.shape)
        starts = tuple(sample * n if i == dim else 0 for i, n in enumerate(one.shape))
        stops = tuple(a + n for a, n in zip(starts, one.shape, strict=True))
        return Box(starts, stops, is_first=sample == 0)

    # ---- both ------------------------------------------------------------------------------------

    def _signatures(self, types: Types, attrs: Attrs) -> set[SbpSignature] | None:
        attrs = self.op.defaults | attrs
        try:
            if self.op.sbp_for is not None:
                return set(self.op.sbp_for(self.probe, *types, **attrs))
            return set(self.op.sbp(*types, **attrs))
        except OneFlowError:
            return None


def lengthened(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return a shape with room for that many samples in a dim."""
    return tuple(n * size if i == dim else n for i, n in enumerate(shape))


def _infer(op: type[Op], types: Types, attrs: Attrs) -> Types | None:
    try:
        return infer_types(op, types, attrs)
    except (OneFlowError, IndexError, ValueError):
        return None


def _next(sbp: Sbp) -> Sbp:
    return Split(sbp.dim + 1) if sbp.is_split else sbp


def _is_in_front(sbp: SbpSignature, own: tuple[bool, ...]) -> bool:
    """Whether a signature splits the samples."""
    ins = any(s == Split(0) and o for s, o in zip(sbp.inputs, own, strict=True))
    return ins or Split(0) in sbp.outputs


def _distance(sbp: SbpSignature) -> tuple[int, int]:
    """The number of operands with samples, and how far these are moved: in front they lie without a
    copy."""
    moved = sum(s.dim for s in (*sbp.inputs, *sbp.outputs) if s.is_split)
    return sum(s.is_split for s in sbp.inputs), moved
