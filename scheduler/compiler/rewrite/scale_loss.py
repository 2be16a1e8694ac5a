"""A gradient scaler inside of a graph: backward passes begin with the scale, gradients are divided
by it before they are used, and a step with a gradient that is not finite changes nothing.

The scale and its counts are variables of the graph, so that they are in its state, in job files,
and never leave the device:

    System-GradScaler-scale             float32[]
    System-GradScaler-growth_tracker    int64[]     the finite steps since the scale changed
    System-GradScaler-skipped.N         int64[]     steps of optimizer N that were left out
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from oneflow.core.dtype import float16, float32, int64
from oneflow.core.errors import GraphError
from oneflow.core.graph import GRADIENT, SEED, UPDATE, LogicalGraph, Node, Value
from oneflow.core.job_config import SCALE, SKIPPED, TRACKER, Cluster, JobConfig, Scaling
from oneflow.core.placement import Placement
from oneflow.core.sbp import PARTIAL, all_broadcast
from oneflow.ops.assign import assign
from oneflow.ops.binary import add, mul, sub
from oneflow.ops.cast import cast
from oneflow.ops.compare import logical_and, scalar_compare
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_add, scalar_mul, scalar_rdiv
from oneflow.ops.shape import reshape
from oneflow.ops.unary import copy, isfinite
from oneflow.ops.update import AND_CAST, IS_WANTED
from oneflow.ops.where import masked_fill, where
from oneflow.scheduler.compiler.rewrite.insertion import Insertion, inserting

STEP = "step."
"""Names of inputs begin so that are the number of an update."""


def scale_loss(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Scales as `config.scaling` says."""
    if config.scaling is not None and graph.of_kind(GRADIENT):
        _Scaling(graph, config.scaling).run()


class _Scaling:
    def __init__(self, graph: LogicalGraph, settings: Scaling) -> None:
        self._graph, self._settings = graph, settings
        self._numbers: dict[str, Any] = graph.variables
        """Variables by name, as they are before the step."""
        self._finite: dict[int, Any] = {}
        """bool[] of each optimizer: whether it may update."""

    def run(self) -> None:
        """Scale, and let each optimizer see its own gradients: its updates follow these."""
        for node in self._graph.of_kind(SEED):
            self._scale(node)
        gradients = defaultdict[int, list[Node]](list)
        for node in self._graph.of_kind(GRADIENT):
            gradients[_optimizer(node)].append(node)
        for number, nodes in gradients.items():
            self._finite[number] = self._unscale(nodes)
        current = -1
        for node in list(self._graph):
            if node.op == GRADIENT:
                current = _optimizer(node)
            elif node.op == "input":
                self._count(node)
            elif node.phase == UPDATE and current >= 0:
                self._predicate(node, self._finite[current])
        self._end(next(iter(self._graph.of_kind("output")), None))

    def _scale(self, node: Node) -> None:
        (gradient,) = node.inputs
        with inserting(self._graph, node) as at:
            self._graph.set_input(node, 0, _times(at, gradient, self._numbers[SCALE]))

    def _unscale(self, gradients: list[Node]) -> Value:
        """Divide the gradients of an optimizer by the scale. Returns whether all are finite."""
        last = gradients[-1]
        with inserting(self._graph, last.next, like=last) as at:
            inverse = at.call(scalar_rdiv, self._numbers[SCALE], value=1.0)
            sums: dict[Placement, Any] = {}
            for node in gradients:
                total = self._unscale_one(at, node, inverse)
                known = sums.get(total.placement)
                sums[total.placement] = total if known is None else at.call(add, known, total)
            first, *others = [_beside(at, s, self._numbers[SCALE]) for s in sums.values()]
            for other in others:
                first = at.call(add, first, other)
            found: Value = at.call(isfinite, first)
        return found

    def _unscale_one(self, at: Insertion, node: Node, inverse: Value) -> Value:
        """The readers of a gradient get it divided. Returns 0 if all of it is finite, else NaN: as
        a sum, so that shards need no gathering.
        """
        (gradient,) = node.outputs
        if gradient.type.dtype is float16:
            raise GraphError(
                "a GradScaler cannot unscale float16 gradients: keep parameters in float32, with "
                "config.enable_amp(True)"
            )
        readers = list(gradient.users)
        lies = gradient.sbp
        if lies is None or PARTIAL in lies:  # it may overflow when it is added up
            lies = self._numbers[str(node.attrs["of"])].sbp
        made = _times(at, at.to_global(gradient, gradient.placement, lies), inverse)
        self._graph.replace_uses(gradient, made, only=readers)
        zeros = at.call(cast, at.call(scalar_mul, made, value=0.0), dtype=float32)
        total: Value = at.call(reduce_sum, zeros, dims=tuple(range(made.type.ndim)))
        return total

    def _count(self, node: Node) -> None:
        """The number of an update is of those that were not left out."""
        name = str(node.attrs["name"])
        if not name.startswith(STEP):
            return
        (number,) = node.outputs
        skipped = self._numbers[SKIPPED + name.removeprefix(STEP)]
        with inserting(self._graph, node.next, like=node) as at:
            made = at.call(sub, number, _beside(at, skipped, number))
        self._graph.replace_uses(number, made, keep=made.node)

    def _predicate(self, node: Node, finite: Value) -> None:
        """An op that overwrites does so where its gradients are finite; one that writes elsewhere,
        too, is told.
        """
        op = node.declared
        if not op.mutates:
            return
        with inserting(self._graph, node) as at:
            wanted = _beside(at, finite, node.inputs[0])
            if op.operands[-1:] == (IS_WANTED,):
                is_number = op in AND_CAST.values()
                told = at.call(cast, wanted, dtype=int64) if is_number else wanted
                self._graph.add_input(node, told)
                return
            kept = {output: at.call(copy, node.inputs[i]) for output, i in op.mutates.items()}
        for output, before in kept.items():
            updated = node.outputs[output]
            readers = list(updated.users)
            with inserting(self._graph, node.next, like=node) as at:
                chosen = at.call(assign, updated, at.call(where, wanted, updated, before))
            self._graph.replace_uses(updated, chosen, only=readers)

    def _end(self, before: Node | None) -> None:
        """Count steps left out, and grow or shrink the scale."""
        scale, tracker = self._numbers[SCALE], self._numbers[TRACKER]
        s = self._settings
        with inserting(self._graph, before, like=scale.node, phase=UPDATE):
            everywhere = None
            for number, finite in self._finite.items():
                count = self._numbers[f"{SKIPPED}{number}"]
                assign(count, where(finite, count, scalar_add(count, value=1)))
                everywhere = finite if everywhere is None else logical_and(everywhere, finite)
            if everywhere is None or s.growth == s.backoff == 1.0:
                return
            count = scalar_add(tracker, value=1)
            is_due = scalar_compare(count, kind="eq", value=s.interval)
            grown = scalar_mul(scale, value=s.growth)
            grown = where(logical_and(is_due, isfinite(grown)), grown, scale)
            shrunk = scalar_mul(scale, value=s.backoff)
            none = sub(count, count)
            assign(tracker, where(everywhere, masked_fill(count, is_due, value=0), none))
            assign(scale, where(everywhere, grown, shrunk))


def _optimizer(node: Node) -> int:
    return int(str(node.attrs["optimizer"]))


def _times(at: Insertion, gradient: Value, factor: Value) -> Value:
    """A gradient times a number."""
    shape = (1,) * gradient.type.ndim
    beside = at.call(cast, _beside(at, factor, gradient), dtype=gradient.type.dtype)
    made: Value = at.call(mul, gradient, at.call(reshape, beside, shape=shape))
    return made


def _beside(at: Insertion, number: Value, like: Value) -> Any:
    """A number on the placement of another value, whole on every rank."""
    return at.to_global(number, like.placement, all_broadcast(like.placement.ndim))
