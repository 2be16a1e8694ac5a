"""The nd-SBP signatures a node may take and their costs, for search_sbp, insert_boxing, verify.

Over one hierarchy axis an op declares its signatures; over n axes every combination is one, as long
as no dim is cut into more parts than it has elements.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from oneflow.boxing.boxes import changed_axes
from oneflow.boxing.link import DEVICE, SHARED_MEMORY, Link, Network, network_of
from oneflow.boxing.parts import plan_parts
from oneflow.boxing.route import boxing_seconds
from oneflow.boxing.rows import likely_nbytes
from oneflow.boxing.signatures import NdSignature, choose, whole_signatures
from oneflow.core.dtype import bool_
from oneflow.core.errors import PlacementError, SbpError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import AutoParallel, Cluster
from oneflow.core.op import signatures
from oneflow.core.placement import Placement
from oneflow.core.sbp import (
    BROADCAST,
    PARTIAL,
    NdSbp,
    Sbp,
    SbpSignature,
    Split,
    all_broadcast,
    nd_sbp_str,
)
from oneflow.core.tensor_type import TensorType

MOVES = frozenset({"to_global", "boxing"})
"""Structural nodes whose result may lie anywhere, whatever their input."""

SOURCES = frozenset({"input", "variable"})
"""Structural nodes whose value is there before the step."""

BYTES_PER_SECOND = defaultdict(lambda: 2.5e11, {"cpu": 2.5e10, "cuda": 1e12})
FLOPS_PER_SECOND = defaultdict(lambda: 1e13, {"cpu": 2e11, "cuda": 1e14})
"""Paces of one rank; of registered kinds a guess between the two. Those of a CPU: with them steps
of the four models of benchmarks/auto_parallel.py on one core take 0.75 to 1.03 of their
estimates."""
MOVE_SECONDS = 2e-5
"""Least time of an exchange, however few bytes it moves: it is an actor with messages of its
own."""
SKEW_SECONDS = 3e-5
"""Time by which the slowest rank comes later to an exchange than the others."""
CALL_SECONDS = 1e-6
"""Least time of an op, however few bytes it reads and writes."""
EMPTY_SECONDS = 1.0
"""Cost of leaving ranks without elements: paid only where the user left no other choice."""
RELABEL_SECONDS = 1e-9
"""Cost of another name of the same layout (on an axis of one rank all SBPs are the same), and of
taking a part of what is there, so that a layout is kept where nothing else counts."""
AS_MEASURED = AutoParallel()


@dataclass(frozen=True)
class Choice:
    """One nd signature.  seconds: estimated time of computing it on one rank.  by_parts: it is no
    signature of the op's kernel."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    seconds: float
    by_parts: bool = False

    def __str__(self) -> str:
        left = " ".join(map(_nd_str, self.inputs))
        return f"{left} -> {' '.join(map(_nd_str, self.outputs))}".strip()


def _nd_str(nd_sbp: NdSbp) -> str:
    return str(nd_sbp[0]) if len(nd_sbp) == 1 else f"({','.join(map(str, nd_sbp))})"


class Signatures:
    """Choices and costs, each computed once: repeated blocks ask for the same ones."""

    def __init__(self, cluster: Cluster, settings: AutoParallel = AS_MEASURED) -> None:
        self._cluster, self._settings = cluster, settings
        self._choices: dict[Hashable, tuple[Choice, ...]] = {}
        self._edges: dict[Hashable, Edge] = {}

    def of(self, node: Node) -> tuple[Choice, ...]:
        """Every valid choice of a node that is not one of MOVES, all-B last."""
        key = self.key(node)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = _choices(node)
        return found

    def choice(self, node: Node, signature: NdSignature) -> Choice:
        """A signature that the chooser took, with its time."""
        ins, outs = signature.inputs, signature.outputs
        known = (c for c in self.of(node) if (c.inputs, c.outputs) == (ins, outs))
        return next(known, Choice(ins, outs, 0.0))

    def key(self, node: Node) -> Hashable:
        """Equal for nodes with equal choices: those of variables do not depend on names."""
        return (
            node.op,
            "" if node.op in SOURCES else node.kind_key,
            node.placement.hierarchy,
            tuple([v.type for v in node.inputs]),
            tuple([v.type for v in node.outputs]),
        )

    def edge(
        self, type: TensorType, source: Placement, target: Placement, *, waits: bool = True
    ) -> Edge:
        """Return the cost of moving a value of `type` between two placements. waits: whether the
        step stands still until an exchange has begun.
        """
        key = (type, source, target, waits)
        found = self._edges.get(key)
        if found is None:
            network = self._network(plan_network(self._cluster, source, target), waits)
            found = self._edges[key] = Edge(type, source, target, network)
        return found

    def _network(self, network: Network, waits: bool) -> Network:
        """The network with the waits of exchanges that the search counts."""
        known = self._settings.wait_nbytes

        def counted(link: Link) -> Link:
            seconds = link.latency_s + SKEW_SECONDS
            if known is not None:
                seconds = known / link.bytes_per_s
            return replace(link, latency_s=seconds if waits else 0.0)

        return replace(network, near=counted(network.near), far=counted(network.far))


class Edge(dict[tuple[NdSbp, NdSbp], float]):
    """(layout before, layout after) -> seconds of moving a value of one type between two
    placements; inf: impossible."""

    def __init__(
        self, type: TensorType, source: Placement, target: Placement, network: Network
    ) -> None:
        super().__init__()
        self._ends = (type, source, target, network)

    def __missing__(self, layouts: tuple[NdSbp, NdSbp]) -> float:
        seconds = self[layouts] = self._seconds(*layouts)
        return seconds

    def _seconds(self, before: NdSbp, after: NdSbp) -> float:
        type, source, target, network = self._ends
        if source == target:
            if before == after:
                return 0.0
            if same_layout(before, after, source.hierarchy):
                return RELABEL_SECONDS
        if type.dtype is bool_ and (has_partial(before) or has_partial(after)):
            return math.inf
        if source == target and len(changed := changed_axes(before, after)) > 1:
            return self._axis_by_axis(before, after, changed)
        seconds = boxing_seconds(type, before, source, after, target, network) + RELABEL_SECONDS
        if has_partial(after) and not has_partial(before):
            # To make partial sums of a whole costs next to nothing, but somebody has to add them
            # up again.
            whole = all_broadcast(target.ndim)
            seconds += boxing_seconds(type, after, target, whole, target, network)
        return seconds

    def _axis_by_axis(self, before: NdSbp, after: NdSbp, axes: Sequence[int]) -> float:
        """The least time if one axis after another changes. The route taken later is as fast or
        faster; to find it for all pairs of layouts of a grid takes longer than the search.
        """
        least = math.inf
        for order in itertools.permutations(axes):
            now, seconds = before, 0.0
            for axis in order:
                then = (*now[:axis], after[axis], *now[axis + 1 :])
                seconds += self[now, then]
                now = then
            least = min(least, seconds)
        return least


def has_partial(nd_sbp: NdSbp) -> bool:
    return PARTIAL in nd_sbp


@lru_cache(maxsize=1024)
def network_between(cluster: Cluster, source: Placement, target: Placement) -> Network:
    """Return the links between the ranks of two placements."""
    near = DEVICE if source.type == target.type == "cuda" else SHARED_MEMORY
    return network_of(cluster.hosts, near)


def plan_network(cluster: Cluster, source: Placement, target: Placement) -> Network:
    """The same as boxing actors see it, for each of whose exchanges messages must pass."""
    network = network_between(cluster, source, target)
    near, far = (
        replace(link, latency_s=link.latency_s + MOVE_SECONDS)
        for link in (network.near, network.far)
    )
    return replace(network, near=near, far=far)


def same_layout(a: NdSbp, b: NdSbp, hierarchy: tuple[int, ...]) -> bool:
    """True if both put the same elements on every rank (over an axis of one rank every SBP
    does)."""
    return all(x is y or n == 1 for x, y, n in zip(a, b, hierarchy, strict=True))


# ---- choices -------------------------------------------------------------------------------------


def _choices(node: Node) -> tuple[Choice, ...]:
    types = tuple(v.type for v in node.inputs)
    results = tuple(v.type for v in node.outputs)
    hierarchy = node.placement.hierarchy
    listed = [list(dict.fromkeys(axis_signatures(node, size))) for size in hierarchy]
    is_product = _is_product(listed[0], types, results)
    found: dict[tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]], Choice] = {}
    for combination in itertools.product(*listed):
        inputs = _per_tensor([s.inputs for s in combination], len(types))
        outputs = _per_tensor([s.outputs for s in combination], len(results))
        if not _nests(node, combination):
            continue
        seconds = _seconds(node, types + results, inputs + outputs, is_product)
        if not _fit(types, inputs, hierarchy) or not _fit(results, outputs, hierarchy):
            if not _exist(types, inputs) or not _exist(results, outputs):
                continue
            seconds += EMPTY_SECONDS
        found.setdefault((inputs, outputs), Choice(inputs, outputs, seconds))
    for choice in _whole_choices(node, types, results):
        found.setdefault((choice.inputs, choice.outputs), choice)
    return tuple(found.values())


def _whole_choices(
    node: Node, types: tuple[TensorType, ...], results: tuple[TensorType, ...]
) -> Iterator[Choice]:
    """Choices that the axes do not tell one by one: of an op that moves rows between the ranks,
    runs on parts of shards or keeps shards as they are. All of its inputs lie alike.
    """
    op, hierarchy = node.declared, node.placement.hierarchy
    if not types or not (op.moves_rows or op.parts or op.kept):
        return
    dims = [Split(i) for i in range(types[0].ndim)]
    for nd_sbp in itertools.product([*dims, PARTIAL, BROADCAST], repeat=len(hierarchy)):
        sbps = (nd_sbp,) * len(types)
        if not _fit(types, sbps, hierarchy):
            continue
        for found in whole_signatures(op, types, results, sbps, node.attrs, node.placement):
            seconds = _seconds(node, types + results, found.inputs + found.outputs, False)
            if found.by_parts:
                moved = moved_by_parts(node, found.inputs) / node.placement.size
                seconds += _move_seconds(node, moved)
            elif not _fit(results, found.outputs, hierarchy):
                continue
            yield Choice(found.inputs, found.outputs, seconds, found.by_parts)


def moved_by_parts(node: Node, sbps: tuple[NdSbp, ...]) -> int:
    """Bytes that move between ranks where an op runs on parts of shards, or moves rows."""
    types, op = tuple([v.type for v in node.inputs]), node.declared
    if op.moves_rows:
        return likely_nbytes(types, node.placement)
    call = op, types, node.outputs[0].type, sbps, node.attrs, node.placement
    return plan_parts(*call).received_nbytes


def _move_seconds(node: Node, nbytes: float) -> float:
    """Time in which a rank reads so many bytes of others."""
    near = DEVICE if node.placement.type == "cuda" else SHARED_MEMORY
    return MOVE_SECONDS + near.latency_s + nbytes / near.bytes_per_s


def _per_tensor(rows: Sequence[tuple[Sbp, ...]], num_tensors: int) -> tuple[NdSbp, ...]:
    return tuple(tuple(row[i] for row in rows) for i in range(num_tensors))


def axis_signatures(node: Node, size: int) -> list[SbpSignature]:
    """Valid signatures of a node over one axis of `size` ranks."""
    types = tuple(v.type for v in node.inputs)
    if node.is_structural:
        return _structural_signatures(node, types)
    return signatures(node.declared, types, node.attrs, size)


def _nests(node: Node, combination: Sequence[SbpSignature]) -> bool:
    """A signature that depends on the number of ranks must also hold for all axes that use it
    together."""
    if node.declared.sbp_for is None:
        return True
    sizes: dict[SbpSignature, list[int]] = {}
    for signature, size in zip(combination, node.placement.hierarchy, strict=True):
        sizes.setdefault(signature, []).append(size)
    return all(
        signature in axis_signatures(node, math.prod(together))
        for signature, together in sizes.items()
        if len(together) > 1
    )


def _structural_signatures(node: Node, types: tuple[TensorType, ...]) -> list[SbpSignature]:
    """SBPs pass through; a variable or input that nobody fixed may lie split or whole."""
    if node.op in SOURCES:
        ndim = node.outputs[0].type.ndim
        every: Iterable[Sbp] = [*(Split(i) for i in range(ndim)), BROADCAST]
        return [SbpSignature((), (s,)) for s in every]
    kept = range(types[0].ndim)
    outputs = len(node.outputs)
    splits = [SbpSignature((Split(i),), (Split(i),) * outputs) for i in kept]
    whole = [SbpSignature((s,), (s,) * outputs) for s in (PARTIAL, BROADCAST)]
    return splits + whole


def _fit(
    types: tuple[TensorType, ...], nd_sbps: tuple[NdSbp, ...], hierarchy: tuple[int, ...]
) -> bool:
    return all(fits(t, s, hierarchy) for t, s in zip(types, nd_sbps, strict=True))


def _exist(types: tuple[TensorType, ...], nd_sbps: tuple[NdSbp, ...]) -> bool:
    """False if a split names a dim that is not there."""
    return all(
        sbp.dim < type.ndim
        for type, nd_sbp in zip(types, nd_sbps, strict=True)
        for sbp in nd_sbp
        if sbp.is_split
    )


def fits(type: TensorType, nd_sbp: NdSbp, hierarchy: tuple[int, ...]) -> bool:
    """False if a split names a dim that is not there or has fewer elements than parts."""
    parts: dict[int, int] = {}
    for sbp, size in zip(nd_sbp, hierarchy, strict=True):
        if sbp.is_split:
            if sbp.dim >= type.ndim:
                return False
            parts[sbp.dim] = parts.get(sbp.dim, 1) * size
    return all(type.shape[dim] >= n or n == 1 for dim, n in parts.items())


# ---- time of computing ---------------------------------------------------------------------------


def _is_product(
    listed: list[SbpSignature], types: tuple[TensorType, ...], results: tuple[TensorType, ...]
) -> bool:
    """Is it a matrix product or the like: two splits that meet in partial sums."""
    if len(results) != 1 or len(types) < 2 or min(types[0].ndim, types[1].ndim) < 2:
        return False
    return any(
        s.outputs[0].is_partial and s.inputs[0].is_split and s.inputs[1].is_split for s in listed
    )


def compute_seconds(node: Node, layout_of: Callable[[Value], NdSbp] | None = None) -> float:
    """Estimated time of computing a node on each rank.

    layout_of: tells how its values lie; None: nobody knows, and one rank does all of it.
    """
    types, results = ([v.type for v in values] for values in (node.inputs, node.outputs))
    listed = axis_signatures(node, 1)
    whole = (BROADCAST,) * len(node.placement.hierarchy)
    values = [*node.inputs, *node.outputs]
    layouts = tuple([whole if layout_of is None else layout_of(value) for value in values])
    is_product = _is_product(listed, tuple(types), tuple(results))
    return _seconds(node, (*types, *results), layouts, is_product)


def _seconds(
    node: Node, types: tuple[TensorType, ...], nd_sbps: tuple[NdSbp, ...], is_product: bool
) -> float:
    """Reading and writing local bytes, or the arithmetic of a product, whichever is longer; nothing
    for values that are there already.

    A product of sizes m, k, n has operands of mk, kn and mn elements, so mkn is the root of their
    product.
    """
    op = node.declared
    if node.op in SOURCES or op.is_view:
        return 0.0
    device = node.placement.type
    numels = [
        t.numel / num_parts(s, node.placement.hierarchy)
        for t, s in zip(types, nd_sbps, strict=True)
    ]
    if op.picks:
        numels[0] = min(numels[0], numels[-1])
    nbytes = sum(n * t.dtype.bytes for n, t in zip(numels, types, strict=True))
    seconds: float = nbytes / BYTES_PER_SECOND[device]
    flops = 0.0
    if is_product:
        flops = 2.0 * math.sqrt(numels[0] * numels[1] * numels[-1])
    elif op.flops is not None and types[0].numel:
        share = numels[0] / types[0].numel  # of what is cut in as many parts as its first input
        flops = op.flops(*types[: len(node.inputs)], **op.defaults | node.attrs) * share
    seconds = max(seconds, flops / FLOPS_PER_SECOND[device])
    return seconds + CALL_SECONDS


def num_parts(nd_sbp: NdSbp, hierarchy: tuple[int, ...]) -> int:
    """Return the number of parts into which a value is cut, copies and summands not counted."""
    return math.prod(n for s, n in zip(nd_sbp, hierarchy, strict=False) if s.is_split)


def local_nbytes(value: Value) -> int:
    """Bytes of a value on one rank, evenly split."""
    return value.type.nbytes // num_parts(value.sbp or (), value.placement.hierarchy)


# ---- where inputs may come from ------------------------------------------------------------------


def op_signature(
    node: Node,
    layouts: Mapping[int, NdSbp],
    fixed: tuple[NdSbp | None, ...],
    *,
    moves_overwritten: bool = False,
) -> NdSignature:
    """Choose how a node that is no structural one runs on inputs that lie in `layouts`, by value
    id.

    fixed: of each output the layout that it must have, if there is one.  moves_overwritten: whether
    it may overwrite a copy in another layout, as in eager execution, which then moves that back.
    Raises SbpError if no signature fits.
    """
    op, placement = node.declared, node.placement
    sbps = tuple([layout_at(node, layouts[v.id]) for v in node.inputs])
    types, out_types = (tuple([v.type for v in vs]) for vs in (node.inputs, node.outputs))
    try:
        found = choose(op, types, out_types, sbps, node.attrs, placement, fixed)
    except SbpError:
        found = None
    overwritten = () if moves_overwritten else op.mutates.values()
    if found is None or not all(
        same_layout(found.inputs[i], sbps[i], placement.hierarchy) for i in overwritten
    ):
        raise no_signature(node, [nd_sbp_str(layouts[v.id]) for v in node.inputs])
    return found


def layout_at(node: Node, nd_sbp: NdSbp) -> NdSbp:
    """The layout in which a node gets a value: one of a grid with another number of axes comes in
    copies."""
    same = len(nd_sbp) == node.placement.ndim
    return nd_sbp if same else all_broadcast(node.placement.ndim)


def no_signature(node: Node, had: Sequence[str]) -> SbpError:
    """The error of a node that no signature fits. had: how each of its inputs may lie."""
    inputs = ", ".join(
        f"{v} {v.type} {text} on {v.placement.notation}"
        for v, text in zip(node.inputs, had, strict=True)
    )
    fixed = ", ".join(
        f"{v.type} {nd_sbp_str(v.sbp) if v.sbp else '?'} on {v.placement.notation}"
        for v in node.outputs
    )
    candidates = "; ".join(map(str, _choices(node))) or "none"
    return SbpError(
        f"{node.describe()}: no SBP signature fits its inputs ({inputs}) and outputs "
        f"({fixed}); candidates are {candidates}; change a to_global before or after it"
    )


def check_placements(node: Node) -> None:
    """Raises PlacementError if an op's inputs lie in different places (scalars may come from
    anywhere)."""
    first: Value | None = None
    for value in node.inputs:
        if value.type.ndim == 0:
            continue
        if first is None:
            first = value
        elif value.placement != first.placement:
            raise PlacementError(
                f"{node.describe()}: its inputs lie in different places, {first} {first.type} on "
                f"{first.placement.notation} and {value} {value.type} on "
                f"{value.placement.notation}; move one with to_global(placement=..., sbp=...)"
            )


def edge_weights(graph: LogicalGraph) -> dict[int, int]:
    """Count how often each value is made in a step, by value id: num_pieces downstream of unpack,
    else 1.
    """
    weights: dict[int, int] = {}
    for node in graph:
        weight = graph.num_pieces if node.op == "unpack" else 1
        if node.op not in ("accumulate", "pack"):
            for value in node.inputs:
                weight = max(weight, weights[value.id])
        for value in node.outputs:
            weights[value.id] = weight
    return weights
