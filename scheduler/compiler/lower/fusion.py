"""Fusion of moves: as many ride on one boxing actor as the user allows (`flow.boxing`).

More moves in one actor: fewer messages. Fewer: the first can start before the last is ready.
"""

from __future__ import annotations

from oneflow.boxing.transitions import make_step
from oneflow.core.errors import InternalError
from oneflow.core.graph import Node
from oneflow.core.job_config import JobConfig


def fused(nodes: list[Node], config: JobConfig) -> list[list[Node]]:
    """Boxing nodes that could share one actor, divided as `config` says; in their order."""
    if not config.fuse_boxing:
        return [[node] for node in nodes]
    groups: dict[str, list[Node]] = {}
    alone: list[list[Node]] = []
    for node in nodes:
        kind = boxing_kind(node) if config.unfused_boxing or not config.mix_boxing else ""
        if kind in config.unfused_boxing:
            alone.append([node])
        else:
            groups.setdefault("" if config.mix_boxing else kind, []).append(node)
    return [part for group in groups.values() for part in _within_limits(group, config)] + alone


def boxing_kind(node: Node) -> str:
    """A row of the table of transitions; between placements: reduce (of partial sums, to one rank),
    broadcast (from one rank) or transfer. An op that runs on parts, or moves rows, is one too."""
    if node.op in ("parts", "exchange"):
        return "transfer"
    source, target = node.inputs[0], node.outputs[0]
    if source.sbp is None or target.sbp is None:
        raise InternalError("a boxing node before its SBP is known")
    if source.placement != target.placement:
        if target.placement.size == 1 and any(s.is_partial for s in source.sbp):
            return "reduce"
        if source.placement.size == 1:
            return "broadcast"
    return make_step(source.sbp, source.placement, target.sbp, target.placement).kind


def _within_limits(nodes: list[Node], config: JobConfig) -> list[list[Node]]:
    """Cut into runs of at most so many tensors and bytes; one that is too large goes alone."""
    parts: list[list[Node]] = []
    nbytes = 0
    for node in nodes:
        own = node.outputs[0].type.nbytes
        too_many = config.fusion_ops and parts and len(parts[-1]) >= config.fusion_ops
        too_large = config.fusion_nbytes and nbytes + own > config.fusion_nbytes
        if not parts or too_many or too_large:
            parts.append([])
            nbytes = 0
        parts[-1].append(node)
        nbytes += own
    return parts
