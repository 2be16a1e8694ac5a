"""Fusion on a rank: chains of ops with formulas in a segment become one kernel each.

A group of ops runs where its last member stood. So no other op may read the result of an earlier
member before that, and none may overwrite its inputs. All members run over the same elements; a
member with reductions over rows makes the whole group go over rows. Values that are not read
outside of the group are never stored. But the group's inputs live until then: it takes in no op by
which the peak of the segment's memory would rise.

Ops over values that are one per row, with the last dim kept, join a group that makes them: so the
norm that a user writes is one kernel. Such values leave the group without that dim, as views with
it.

Nodes that can join in part come in parts: a dense layer as its product and the addition of its
bias, a reduction as that of each row, and that of the rows' results. They stay whole where the part
that could join has no neighbour.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from oneflow.actors.live_bytes import LiveBytes
from oneflow.boxing.bound_op import BoundOp, bind
from oneflow.core.expression import (
    COLUMN_TOTAL,
    Expression,
    constant,
    scalar,
    substitute,
    symbol,
    to_text,
)
from oneflow.core.graph import Node, Value, find_root
from oneflow.core.job_config import ADD_TO_OUTPUT, CAST_SCALE
from oneflow.core.op import find_op, operand_names
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.elementwise import can_fuse
from oneflow.kernels.expressions.formula import Formula, formula_of
from oneflow.kernels.registry import find_view
from oneflow.ops.elementwise import Fused, FusedRandom

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode

MOST_OPERANDS = 26
"""Arrays that a group reads: each has a letter in its expressions."""
MOST_MEMBERS = 24
LEAST = 2048
"""Elements from which ops are joined on a CPU: the time of smaller ones is that of a call."""
LEAST_OF_ROW = 32
"""Elements of a row from which its sum is worth a loop of its own."""
FULL, PER_ROW, PER_COLUMN = "full", "per row", "per column"


@dataclass(frozen=True)
class Fact:
    """The fate of an op with a formula.

    ops: names, in their order, of the ops of one kernel; or of the op that was not joined with its
    inputs.  type: of the elements that it goes over.  location: of the user's line.  reason: why it
    was not; "" of a kernel.  path: the library that computes it; "" for a kernel of ours.
    """

    ops: tuple[str, ...]
    type: str
    location: str
    reason: str = ""
    path: str = ""


@dataclass(frozen=True)
class Member:
    """A node that may be part of a group.

    whole: the shape that it goes over.  is_small: alone it would better be done by NumPy.
    """

    formula: Formula
    whole: tuple[int, ...]
    is_small: bool = False

    @cached_property
    def shapes(self) -> dict[str, str]:
        """The way in which each input's values lie along the elements."""
        return {n: PER_ROW if n in self.formula.per_row else FULL for n in self.formula.arrays}


@dataclass(frozen=True)
class Parts:
    """A node in parts. joins: the number of the part that may join a group."""

    whole: BoundNode
    parts: tuple[BoundNode, ...]
    joins: int


@dataclass
class Group:
    """Members by their positions in the segment. until: the position of the next op that overwrites
    one of their inputs.
    """

    whole: tuple[int, ...]
    until: int
    members: list[int] = field(default_factory=list)
    draws: bool = False
    sums: bool = False


def fuse(
    nodes: Sequence[BoundNode], published: frozenset[int], device: str, unfused: Sequence[str] = ()
) -> tuple[list[BoundNode], list[Fact]]:
    """The nodes of a segment with groups in place of their members, and the fate of each op.
    unfused: see BindOptions.
    """
    fusing = _Fusing(nodes, published, device, unfused)
    return list(fusing.result()), fusing.facts


class Line:
    """The nodes of a segment in their order, and which of them may run later than they stand."""

    def __init__(self, nodes: Sequence[BoundNode]) -> None:
        self._nodes = nodes
        self._position = {bound.node.id: i for i, bound in enumerate(nodes)}
        self._maker = {v.id: i for i, bound in enumerate(nodes) for v in bound.node.outputs}
        self._readers: dict[int, list[int]] = {}
        """Positions of the nodes that read a value. Its `users` may have become part of others."""
        for i, bound in enumerate(nodes):
            for key in {v.id for v in bound.node.inputs}:
                self._readers.setdefault(key, []).append(i)
        self._writes = self._find_writes()

    def _find_writes(self) -> dict[int, list[int]]:
        """Memory, by the value that it was made for -> positions of ops that overwrite it."""
        found: dict[int, list[int]] = {}
        for i, bound in enumerate(self._nodes):
            for source in bound.call.op.mutates.values():
                root = find_root(bound.node.inputs[source])
                found.setdefault(root.id, []).append(i)
        return found

    def until(self, i: int) -> int:
        """The first position behind `i` where an input of node `i` is overwritten."""
        least = len(self._nodes)
        for value in self._nodes[i].node.inputs if self._writes else ():
            writes = self._writes.get(find_root(value).id, ())
            at = bisect_right(writes, i)
            least = min(least, writes[at] if at < len(writes) else least)
        return least

    def reader_before(self, i: int, makers: Sequence[int], members: Sequence[int]) -> str:
        """The op of a node before position `i`, none of `members`, that reads a result of `makers`;
        "" if there is none."""
        for m in makers:
            for value in self._nodes[m].node.outputs:
                for at in self._readers.get(value.id, ()):
                    if at < i and at not in members:
                        return self._nodes[at].node.op
        return ""


class _Fusing(Line):
    def __init__(
        self,
        nodes: Sequence[BoundNode],
        published: frozenset[int],
        device: str,
        unfused: Sequence[str],
    ) -> None:
        self._published, self._device, self._unfused = published, device, unfused
        self._parted: dict[int, Parts] = {}
        """Nodes in parts, by the position of the part that may join."""
        super().__init__(self._in_parts(nodes))
        self._members: dict[int, Member] = {}
        self._groups: dict[int, Group] = {}
        self._reasons: dict[int, str] = {}
        alike: dict[int, Member | None] = {}  # by call, which the nodes of repeated blocks share
        for i, bound in enumerate(self._nodes):
            if bound.call.op.formula is None or bound.view is not None:
                continue
            if id(bound.call) not in alike:
                alike[id(bound.call)] = _member_of(bound.call, device)
            member = alike[id(bound.call)]
            if member is not None:
                self._members[i] = member
                self._place(i, member)
        self.facts = self._make_facts()

    @cached_property
    def _live(self) -> LiveBytes:
        return LiveBytes(self._nodes, self._published)

    def _in_parts(self, nodes: Sequence[BoundNode]) -> list[BoundNode]:
        found: list[BoundNode] = []
        for bound in nodes:
            split = _SPLITS.get(bound.node.op)
            parts = split(bound, self._device) if split is not None else None
            if parts is None:
                found.append(bound)
            else:
                self._parted[len(found) + parts.joins] = parts
                found += parts.parts
        return found

    # ---- groups ----------------------------------------------------------------------------------

    def _place(self, i: int, member: Member) -> None:
        """Join the groups that make the inputs of node `i`, or begin one."""
        formula = member.formula
        merged = Group(member.whole, self.until(i), [i], formula.draws, bool(formula.sums))
        for group in self._makers(i):
            reason = self._refusal(group, merged, i)
            if not reason and (kept := self._live.join(group.members, i)):
                reason = f"a kernel of both keeps {kept} bytes alive"
            if reason:
                self._reasons.setdefault(i, reason)
            else:
                merged = Group(
                    _joint(merged.whole, group.whole) or (),
                    min(merged.until, group.until),
                    sorted((*group.members, *merged.members)),
                    merged.draws or group.draws,
                    merged.sums or group.sums,
                )
        if len(merged.members) > 1 or not member.is_small:
            self._groups.update((m, merged) for m in merged.members)

    def _makers(self, i: int) -> list[Group]:
        """The latest first."""
        found: dict[int, Group] = {}
        for value in self._nodes[i].node.inputs:
            at = self._maker.get(value.id, -1)
            if at in self._groups:
                group = self._groups[at]
                found[group.members[-1]] = group
        return [found[key] for key in sorted(found, reverse=True)]

    def _refusal(self, group: Group, joined: Group, i: int) -> str:
        """The reason why `joined`, of which node `i` is the last, cannot take in `group`; or ""."""
        whole = _joint(group.whole, joined.whole)
        if whole is None or (group.whole != joined.whole and (group.sums or joined.sums)):
            return f"its input is made over {list(group.whole)}"
        if len(group.members) + len(joined.members) > MOST_MEMBERS:
            return f"a kernel has at most {MOST_MEMBERS} ops"
        if (group.draws or joined.draws) and (
            (group.draws and joined.draws) or group.sums or joined.sums
        ):
            return "a kernel draws one kind of random numbers, and none where it sums over rows"
        if group.until < i:
            return f"{self._nodes[group.until].node.op} overwrites what it would read"
        members = [*group.members, *joined.members]
        reader = self.reader_before(i, group.members, members)
        if reader:
            return f"{reader} reads its input before it"
        return self._switched_off(members) or self._misfit(sorted(members), whole)

    def _switched_off(self, members: list[int]) -> str:
        """The kind of fusion between two members that the user does not want; or ""."""
        for m in members if self._unfused else ():
            reader = self._nodes[m]
            for value in reader.node.inputs:
                at = self._maker.get(value.id)
                if at in members:
                    kind = kind_of(self._nodes[at].call, reader.call)
                    if kind in self._unfused:
                        return f"{kind} is switched off"
        return ""

    def _misfit(self, members: list[int], whole: tuple[int, ...]) -> str:
        """The reason why the values between members do not fit, or are too many; or ""."""
        made = self._made(members, whole)
        read: dict[int, str] = {}
        for m in members:
            bound, member = self._nodes[m], self._members[m]
            names = operand_names(bound.call.op, len(bound.node.inputs))
            operands = zip(names, bound.node.inputs, bound.call.in_types, strict=True)
            for name, value, type_ in operands:
                wanted = member.shapes.get(name)
                if wanted is None:
                    continue
                if type_.shape == _narrow(whole) != whole and made.get(value.id) == PER_ROW:
                    continue
                if member.whole != whole:
                    return "it reads what has one value per row and is made before"
                if value.id in made:
                    if made[value.id] != wanted:
                        return f"its input has one value {made[value.id]}"
                elif read.setdefault(value.id, wanted) != wanted:
                    return "it reads an array both per row and element by element"
        if len(read) > MOST_OPERANDS:
            return f"a kernel reads at most {MOST_OPERANDS} arrays"
        return self._repeated(members, whole) if self._device == "cpu" else ""

    def _made(self, members: list[int], whole: tuple[int, ...]) -> dict[int, str]:
        """Values that members make, and how they lie along the elements."""
        found: dict[int, str] = {}
        for m in members:
            member = self._members[m]
            for k, value in enumerate(self._nodes[m].node.outputs):
                root = member.formula.outputs[k]
                own = PER_COLUMN if root.function == COLUMN_TOTAL else FULL
                is_single = k in member.formula.single or member.whole != whole
                found[value.id] = PER_ROW if is_single else own
        return found

    def _repeated(self, members: list[int], whole: tuple[int, ...]) -> str:
        """Whether a costly function would be computed again in a later pass over a row. A stored
        value is read back instead, and an array that is written in the last pass holds one value
        until then."""
        kinds = self._made(members, whole)
        level: dict[int, int] = {}  # the passes after which a value is known
        costly: dict[int, str] = {}
        again: dict[int, str] = {}
        stored: list[Value] = []
        for m in members:
            bound, formula = self._nodes[m], self._members[m].formula
            known = max((level.get(v.id, 0) for v in bound.node.inputs), default=0)
            read = {v.id: costly[v.id] for v in bound.node.inputs if v.id in costly}
            if read and formula.passes and not formula.is_end:
                return _again(read)
            again |= {v: name for v, name in read.items() if level[v] < known}
            name = formula.costly or next(iter(read.values()), "")
            for value in bound.node.outputs:
                level[value.id] = known + formula.passes
                if kinds[value.id] != FULL:
                    continue
                is_result = self._is_result(value, members)
                is_held = is_result and value.type.dtype.bytes >= 4
                stored += [value] if is_held else []
                if name and not is_held:
                    costly[value.id] = name
                    if is_result:
                        again[value.id] = name
        last = max(level.values())
        again = {v: name for v, name in again.items() if level[v] < last}
        room = sum(level[value.id] == last for value in stored)
        return _again(again) if len(again) > room else ""

    def _is_result(self, value: Value, members: list[int]) -> bool:
        """Is it read outside of the group?"""
        if value.id in self._published:
            return True
        return any(self._position.get(user.id, -1) not in members for user in value.users)

    # ---- the nodes -------------------------------------------------------------------------------

    def result(self) -> Iterator[BoundNode]:
        whole = {
            i - parts.joins: parts for i, parts in self._parted.items() if not self._is_joined(i)
        }
        skipped = {i + k for i, parts in whole.items() for k in range(1, len(parts.parts))}
        for i, bound in enumerate(self._nodes):
            group = self._groups.get(i)
            if i in whole:
                yield whole[i].whole
            elif i in skipped:
                continue
            elif group is None or len(group.members) == 1:
                yield bound
            elif group.members[-1] == i:
                yield from self._fused(group)

    def _is_joined(self, i: int) -> bool:
        group = self._groups.get(i)
        return group is not None and len(group.members) > 1

    def _fused(self, group: Group) -> Iterator[BoundNode]:
        """The kernel of a group, then views with the last dim of values that are one per row."""
        nodes, kinds = self._nodes, self._made(group.members, group.whole)
        views: list[tuple[Value, TensorType]] = []
        steps: list[str] = []
        names: dict[int, str] = {}  # of what is read or made, by value
        reads: list[tuple[Value, TensorType]] = []
        per_row: list[str] = []
        outputs: list[tuple[Value, TensorType, int]] = []
        letters = operand_names(Fused, MOST_OPERANDS)
        for m in group.members:
            bound, member = nodes[m], self._members[m]
            own = operand_names(bound.call.op, len(bound.node.inputs))
            new: dict[Expression, Expression] = {}
            operands = zip(own, bound.node.inputs, bound.call.in_types, strict=True)
            for name, value, type_ in operands:
                if name not in member.shapes:
                    continue
                if value.id not in names:
                    names[value.id] = letters[len(reads)]
                    reads.append((value, type_))
                    if member.shapes[name] == PER_ROW:
                        per_row.append(names[value.id])
                new[symbol(name)] = symbol(names[value.id])
            for n, number in member.formula.numbers.items():
                if n not in ("columns", "rows"):
                    new[scalar(n)] = constant(number)
            made = zip(member.formula.converted, bound.node.outputs, self._types(m), strict=True)
            for root, value, type_ in made:
                names[value.id] = f"v{len(steps)}"
                if self._is_result(value, group.members):
                    stored, shape = value, group.whole[:-1]
                    if kinds[value.id] == PER_ROW and type_.shape != shape:
                        views.append((value, type_))
                        type_ = type_.with_shape(shape)
                        stored = Value(value.id + 2 * OTHER_IDS, type_, bound.node, 0, None)
                    outputs.append((stored, type_, len(steps)))
                steps.append(to_text(substitute(root, new)))
        attrs: Attrs = {
            "steps": tuple(steps),
            "results": tuple(k for _, _, k in outputs),
            "dtypes": tuple(t.dtype for _, t, _ in outputs),
            "per_row": tuple(per_row),
        }
        kernel = self._bound(group, attrs, reads, [(v, t) for v, t, _ in outputs])
        yield kernel
        stored_of = {v.id: v for v in kernel.node.outputs}
        for value, type_ in views:
            yield self._view(kernel, stored_of[value.id + 2 * OTHER_IDS], value, type_)

    def _types(self, m: int) -> tuple[TensorType, ...]:
        """Types of the arrays that the readers of node `m` take."""
        parts = self._parted.get(m)
        is_one = parts is not None and len(parts.parts) == 1
        call = parts.whole.call if parts is not None and is_one else self._nodes[m].call
        return call.out_types

    def _view(self, made: BoundNode, stored: Value, value: Value, type_: TensorType) -> BoundNode:
        """`value`: a result `stored` of a kernel, in the shape of `type_`."""
        attrs: Attrs = {"shape": type_.shape}
        call = bind_alike("reshape", (stored.type,), (type_,), attrs, self._device)
        node = Node(value.id + 2 * OTHER_IDS, "reshape", made.node.placement, attrs)
        node.inputs, node.outputs, stored.users = [stored], [value], [node]
        node.stand_for(made.node)
        view = find_view("reshape")
        return replace(made, node=node, call=call, view=view, members=(), part_of=None)

    def _bound(
        self,
        group: Group,
        attrs: Attrs,
        reads: list[tuple[Value, TensorType]],
        outputs: list[tuple[Value, TensorType]],
    ) -> BoundNode:
        nodes = self._nodes
        last = nodes[group.members[-1]]
        drawing = next((nodes[m] for m in group.members if nodes[m].call.op.is_random), None)
        name = Fused.name
        if drawing is not None:
            name = FusedRandom.name
            attrs["seed"] = drawing.call.attrs["seed"]
        types, out_types = tuple(t for _, t in reads), tuple(t for _, t in outputs)
        call = bind_alike(name, types, out_types, attrs, self._device)
        if drawing is not None:
            call = replace(
                call,
                attrs=attrs,
                out_boxes=drawing.call.out_boxes,
                whole_shape=drawing.call.whole_shape,
            )
        node = Node(last.node.id, name, last.node.placement, attrs)
        node.inputs, node.outputs = [v for v, _ in reads], [v for v, _ in outputs]
        node.stand_for(last.node)
        members = tuple(n for m in group.members for n in members_of(nodes[m]))
        return replace(last, node=node, call=call, view=None, members=members, part_of=None)

    # ---- what was done ---------------------------------------------------------------------------

    def _make_facts(self) -> list[Fact]:
        """One for each group, and one for each op that is alone or apart from its inputs."""
        found = []
        for i, member in self._members.items():
            group, bound = self._groups.get(i), self._nodes[i]
            if group is None:
                continue
            if len(group.members) == 1 and i in self._parted and i not in self._reasons:
                continue
            type_ = str(TensorType(member.whole, bound.call.out_types[0].dtype))
            is_alone = len(group.members) == 1
            if not is_alone and group.members[-1] == i:
                ops = tuple(self._nodes[m].node.op for m in group.members)
                found.append(Fact(ops, type_, bound.node.location))
            reason = self._reasons.get(i, "no neighbour to join" if is_alone else "")
            if reason:
                found.append(Fact((bound.node.op,), type_, bound.node.location, reason))
        return found


def members_of(bound: BoundNode) -> tuple[BoundNode, ...]:
    """The nodes that its kernel computes."""
    return bound.members or (bound,)


def kernel_name(bound: BoundNode) -> str:
    """The ops that its kernel computes; a part of an op as `linear.matmul`."""
    parts = members_of(bound)
    return sum_of(
        [p.node.op if p.part_of is None else f"{p.part_of.op}.{p.node.op}" for p in parts]
    )


SUM = symbol("a") + symbol("b")
_SCALES = symbol("x") * scalar("value"), symbol("x") / scalar("value")


def kind_of(maker: BoundOp, reader: BoundOp) -> str:
    """The kind of fusion of an op with one that reads its result, if it can be switched off."""
    if reader.formula is SUM:
        return ADD_TO_OUTPUT
    pairs = (maker, reader), (reader, maker)
    is_cast_and_scale = any(a.op.is_conversion and b.formula in _SCALES for a, b in pairs)
    return CAST_SCALE if is_cast_and_scale else ""


def _member_of(call: BoundOp, device: str) -> Member | None:
    """The part of a group that the node of a call may be; None if it can be none."""
    op = call.op
    if op.mutates or op.is_alias:
        return None
    if not can_fuse(op, call.in_types, call.attrs, device):
        return None
    formula = formula_of(op, call.in_types, call.attrs)
    whole = formula.whole
    if not formula.is_row and any(t.shape != whole for t in call.out_types):
        return None
    is_small = device == "cpu" and math.prod(whole) < LEAST
    if is_small and (formula.is_row or formula.draws or whole != _narrow(whole)):
        return None
    return Member(formula, whole, is_small)


def _narrow(whole: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with one value per row, with the last dim kept."""
    return (*whole[:-1], 1) if whole else whole


def _joint(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that a kernel of two groups goes over; None if there is none."""
    for wide, other in ((a, b), (b, a)):
        if other == wide or (other == _narrow(wide) and wide[-1] >= LEAST_OF_ROW):
            return wide
    return None


OTHER_IDS = 1 << 40
"""Added to the ids of a node for those of its second part."""


def _two(bound: BoundNode, first: BoundOp, second: BoundOp, joins: int) -> Parts:
    """A node as two calls, of which the second reads the first one's result before the rest of the
    node's inputs."""
    node, taken = bound.node, len(first.in_types)
    name = node.op if first.op is Fused else first.op.name
    one = Node(node.id, name, node.placement, first.attrs)
    other = Node(node.id + OTHER_IDS, second.op.name, node.placement, second.attrs)
    between = Value(node.outputs[0].id + OTHER_IDS, first.out_types[0], one, 0, None)
    between.users = [other]
    one.inputs, one.outputs = node.inputs[:taken], [between]
    other.inputs, other.outputs = [between, *node.inputs[taken:]], node.outputs
    for part in (one, other):
        part.stand_for(node)
    parts = (
        replace(bound, node=one, call=first, part_of=node),
        replace(bound, node=other, call=second, part_of=node),
    )
    return Parts(bound, parts, joins)


def _layer(bound: BoundNode, device: str) -> Parts | None:
    """A dense layer. A product of half precision on a CPU is computed in float32, to which the bias
    is better added: such a layer stays whole."""
    types, out = bound.call.in_types, bound.call.out_types
    if device == "cpu" and out[0].dtype.bytes < 4:
        return None
    transposed = {"transpose_a": False, "transpose_b": True}
    product = bind_alike("matmul", types[:2], out, transposed, device)
    return _two(bound, product, bind_alike("add", (*out, types[2]), out, {}, device), 1)


def _reduction(bound: BoundNode, device: str) -> Parts | None:
    """A sum or maximum over the last dim, or over more. A sum of half precision over more stays
    whole, because those of the rows would be rounded."""
    call = bound.call
    (x,), (out,) = call.in_types, call.out_types
    *others, last = sorted(call.attrs["dims"]) or [x.ndim]
    if last != x.ndim - 1 or x.shape[last] < LEAST_OF_ROW or not x.dtype.is_floating_point:
        return None
    if others and (call.attrs["keepdim"] or x.dtype.bytes < 4):
        return None
    function = {"reduce_sum": "total", "reduce_max": "largest"}[call.op.name]
    row = out.with_shape(x.shape[:-1])
    attrs: Attrs = {
        "steps": (f"{function}(a)",),
        "results": (0,),
        "dtypes": (out.dtype,),
        "per_row": (),
    }
    of_rows = bind_alike(Fused.name, (x,), (row,), attrs, device)
    if not others:
        return Parts(bound, (replace(bound, call=of_rows),), 0)
    left: Attrs = {"dims": tuple(others), "keepdim": False}
    return _two(bound, of_rows, bind_alike(call.op.name, (row,), (out,), left, device), 0)


def _again(values: dict[int, str]) -> str:
    return f"{next(iter(values.values()))} would be computed again in each pass over a row"


_SPLITS: dict[str, Callable[[BoundNode, str], Parts | None]] = {
    "linear": _layer, "reduce_sum": _reduction, "reduce_max": _reduction,
}  # fmt: skip


_bound: dict[tuple[object, ...], BoundOp] = {}
_MOST = 4096


def bind_alike(
    name: str,
    types: tuple[TensorType, ...],
    out_types: tuple[TensorType, ...],
    attrs: Attrs,
    device: str,
) -> BoundOp:
    """A call of a rank's own, remembered: those of repeated blocks are equal."""
    op = find_op(name)
    shared = {**attrs, "seed": 0} if op.is_random else attrs
    key = name, types, out_types, device, tuple(shared.items())
    found = _bound.get(key)
    if found is None:
        if len(_bound) >= _MOST:
            _bound.clear()
        found = _bound[key] = bind(op, types, out_types, shared, device)
    return found


def table(facts: Sequence[Fact], others: Counter[str]) -> str:
    """The text of `facts`. others: number of nodes without a formula, by op."""
    groups = [f for f in facts if not f.reason]
    ops = sum(len(f.ops) for f in groups)
    lines = [f"fusion: {ops} ops in {len(groups)} kernels"]
    counts = Counter((sum_of(f.ops) + _by(f.path), f.type, f.location) for f in groups)
    lines += [_line(f"{n} x " if n > 1 else "", *key) for key, n in counts.items()]
    alone = Counter((f.ops[0], f.type, f.location, f.reason) for f in facts if f.reason)
    lines.append("not fused:" if alone else "not fused: nothing")
    for (op, type_, location, reason), n in alone.items():
        lines.append(_line(f"{n} x " if n > 1 else "", f"{op}: {reason}", type_, location))
    rest = ", ".join(f"{op} {n}" for op, n in sorted(others.items()))
    return "\n".join([*lines, f"no formula: {rest or 'none'}"])


def sum_of(ops: Sequence[str]) -> str:
    """The ops of a kernel in their order, those that follow each other counted."""
    runs = [(op, len(list(same))) for op, same in groupby(ops)]
    return " + ".join(f"{n} {op}" if n > 2 else " + ".join([op] * n) for op, n in runs)


def _by(path: str) -> str:
    return f", by {path}" if path else ""


def _line(count: str, text: str, type_: str, location: str) -> str:
    return f"  {count}{text}  {type_}" + (f"  ({location})" if location else "")
