"""The planner's view of one change of layout: the route it takes, and those it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.link import DEVICE, SHARED_MEMORY, Network, network_of
from oneflow.boxing.notation import Change
from oneflow.boxing.route import all_routes
from oneflow.boxing.transitions import RouteStep, received_bytes, step_cost
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.core.tensor_type import TensorType


@dataclass(frozen=True)
class StepView:
    """One step. nbytes: received from others over all ranks; busiest_nbytes: by the one that
    receives most; seconds: predicted."""

    step: RouteStep
    nbytes: int
    busiest_nbytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        step = self.step
        return {
            "kind": step.kind,
            "from": _layout(step.src_sbp, step.src_placement),
            "to": _layout(step.dst_sbp, step.dst_placement),
            "bytes": self.nbytes,
            "busiest_rank_bytes": self.busiest_nbytes,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class RouteView:
    """One route and its sums."""

    steps: tuple[StepView, ...]

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.steps)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @property
    def name(self) -> str:
        """The kinds of its steps with the layouts between them."""
        if not self.steps:
            return "nothing to do"
        parts = [self.steps[0].step.kind]
        for view in self.steps[1:]:
            step = view.step
            parts += [f"[{_layout(step.src_sbp, step.src_placement)}]", step.kind]
        return " ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "route": self.name,
            "steps": [s.to_json() for s in self.steps],
            "bytes": self.nbytes,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class ChangeView:
    """All that can be said of one change. routes: the chosen one first, then from fast to slow."""

    type: TensorType
    change: Change
    links: str
    bound_nbytes: int
    routes: tuple[RouteView, ...]

    def to_json(self) -> dict[str, Any]:
        change = self.change
        return {
            "type": str(self.type),
            "from": _layout(change.src_sbp, change.src_placement),
            "to": _layout(change.dst_sbp, change.dst_placement),
            "links": self.links,
            "lower_bound_bytes": self.bound_nbytes,
            "chosen": self.routes[0].to_json(),
            "alternatives": [r.to_json() for r in self.routes[1:]],
        }

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._chosen(), "", *self._losers()])

    def _head(self) -> list[str]:
        change, type_ = self.change, self.type
        return [
            f"{type_}, {_count(type_.nbytes)}, over {self.links}",
            f"from {_layout(change.src_sbp, change.src_placement)}",
            f"to   {_layout(change.dst_sbp, change.dst_placement)}",
        ]

    def _chosen(self) -> list[str]:
        chosen = self.routes[0]
        rows = [("step", "kind", "to", "bytes, all ranks", "into the busiest", "predicted")]
        for number, view in enumerate(chosen.steps, 1):
            to = _layout(view.step.dst_sbp, view.step.dst_placement)
            nbytes = f"{view.nbytes:,}", f"{view.busiest_nbytes:,}"
            rows.append((str(number), view.step.kind, to, *nbytes, _time(view.seconds)))
        if not chosen.steps:
            rows.append(("", "nothing to do", "", "0", "0", _time(0.0)))
        total = ("", "in all", "", f"{chosen.nbytes:,}", "", _time(chosen.seconds))
        bound = ("", "lower bound", "", f"{self.bound_nbytes:,}", "", "")
        return _table([*rows, total, bound], numbers_from=3)

    def _losers(self) -> list[str]:
        if len(self.routes) == 1:
            return ["no other route was considered"]
        rows = [("not taken", "bytes, all ranks", "predicted")]
        rows += [(r.name, f"{r.nbytes:,}", _time(r.seconds)) for r in self.routes[1:]]
        return _table(rows, numbers_from=1)


def explain(type: TensorType, change: Change, hosts: tuple[int, ...] = ()) -> ChangeView:
    """Explain the routes of the planner for a tensor of `type`.

    hosts: the host of each rank, counted from 0; all on one if empty. Raises SbpError if a layout
    does not fit the tensor.
    """
    network = _network(change, hosts)
    name = _links(change, network)
    layouts = change.src_sbp, change.src_placement, change.dst_sbp, change.dst_placement
    bound = lower_bound_nbytes(type, *layouts)
    if layouts[:2] == layouts[2:]:
        return ChangeView(type, change, name, bound, (RouteView(()),))
    found = {r.steps: None for r in all_routes(type, *layouts, network)}
    routes = tuple(_route_view(type, steps, network) for steps in found)
    return ChangeView(type, change, name, bound, routes)


def _network(change: Change, hosts: tuple[int, ...]) -> Network:
    kinds = {change.src_placement.type, change.dst_placement.type}
    near = DEVICE if kinds == {"cuda"} else SHARED_MEMORY
    return network_of([str(host) for host in hosts], near)


def _links(change: Change, network: Network) -> str:
    near = "NCCL" if network.near is DEVICE else "shared memory"
    ranks = {*change.src_placement.rank_ids, *change.dst_placement.rank_ids}
    return f"{near} and TCP between hosts" if network.spans(ranks) else near


def _route_view(type: TensorType, steps: tuple[RouteStep, ...], network: Network) -> RouteView:
    return RouteView(tuple(_step_view(type, step, network) for step in steps))


def _step_view(type: TensorType, step: RouteStep, network: Network) -> StepView:
    counts = [received_bytes(type, step, rank) for rank in step.dst_placement.rank_ids]
    return StepView(step, sum(counts), max(counts), step_cost(type, step, network)[0])


def _layout(nd_sbp: NdSbp, placement: Placement) -> str:
    return f"{nd_sbp_str(nd_sbp)}@{placement.notation}"


def _count(nbytes: int) -> str:
    return f"{nbytes:,} byte{'s' * (nbytes != 1)}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _table(rows: Sequence[tuple[str, ...]], numbers_from: int) -> list[str]:
    """Columns of equal width, those from `numbers_from` on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i >= numbers_from else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
