"""Puts a graph that was traced in one place on the ranks of a job: data parallel, by layouts.

A graph whose values all lie on one placement knows nothing of how many ranks there are. Its nodes
are moved to ranks 0..n-1; arrays that the pipeline feeds are cut along the batch, variables are
copies, and the compiler works out the rest (gradients become sums over the ranks where they are
needed).
"""

from __future__ import annotations

from oneflow.core.errors import PlacementError
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split, all_broadcast
from oneflow.graph.names import CAPTURED
from oneflow.jobs.tables import is_shadow


def replace_placement(graph: LogicalGraph, devices: int, device_type: str) -> None:
    """Edits `graph` so that it runs on ranks 0..devices-1.

    A graph that was traced with placements of exactly these ranks keeps them, and only moves to the
    device type; one on a single placement with one hierarchy axis is put on all ranks, with its
    layouts; other graphs raise PlacementError.
    """
    places = {node.placement: None for node in graph}
    ranks = sorted({rank for place in places for rank in place.rank_ids})
    if devices > 1 and ranks == list(range(devices)):
        for node in graph:
            node.placement = Placement(device_type, node.placement.ranks)
        return
    if len({(p.hierarchy, p.rank_ids) for p in places}) != 1 or next(iter(places)).ndim != 1:
        listed = ", ".join(map(str, list(places)[:4]))
        raise PlacementError(
            f"graph {graph.name} was traced for ranks {ranks} in {listed}; it runs on exactly "
            f"{len(ranks)} devices numbered from 0, not on {devices}. Trace it in one process, "
            "with local tensors, to run it on any number"
        )
    everywhere = Placement(device_type, list(range(devices)))
    was_local = len(ranks) == 1
    for node in graph:
        node.placement = everywhere
        for value in node.outputs:
            if value.sbp is not None and was_local:
                value.sbp = _spread(node)
    if devices > 1 and was_local:
        _check_batch(graph, devices)


def _spread(node: Node) -> NdSbp:
    """Return how a value that lay on one rank lies on several. Rows of embeddings, whose shadow is
    a variable, are split."""
    if node.op == "variable" and is_shadow(node.outputs[0]):
        return (Split(0),)
    if node.op == "unpack":
        return _spread(node.inputs[0].node)
    if node.op == "input" and str(node.attrs.get("name")).startswith("input."):
        return (Split(0),) if node.outputs[0].type.shape else (BROADCAST,)
    if node.op == "to_global" and node.outputs[0].sbp is not None:
        return node.outputs[0].sbp
    return (BROADCAST,)


def _check_batch(graph: LogicalGraph, devices: int) -> None:
    for node in graph.of_kind("input"):
        shape = node.outputs[0].type.shape
        if node.outputs[0].sbp == (Split(0),) and shape[0] % (devices * graph.num_pieces):
            pieces = f" in {graph.num_pieces} pieces" if graph.num_pieces > 1 else ""
            raise PlacementError(
                f"graph {graph.name}: a batch of {shape[0]} rows{pieces} cannot be divided evenly "
                f"between {devices} devices; export the job with a batch that is a multiple of "
                f"{devices * graph.num_pieces}"
            )


def free_variables(graph: LogicalGraph) -> None:
    """Let the search for layouts lay out the variables of the model: its parameters and buffers,
    and the optimizers' states; no tensor that the program has captured, and no rows of embeddings.
    """
    for node in graph.of_kind("variable"):
        (value,) = node.outputs
        is_partial = any(s.is_partial for s in value.sbp or ())
        is_own = not str(node.attrs["name"]).startswith(CAPTURED) and not is_shadow(value)
        if is_own and node.placement.size > 1 and not is_partial:
            node.attrs = {**node.attrs, "free": True}


def gather_outputs(graph: LogicalGraph, wanted: set[int], devices: int, device_type: str) -> None:
    """Whole copies of the wanted outputs on every rank; the other outputs are taken away."""
    everywhere = Placement(device_type, list(range(devices)))
    for node in graph.of_kind("output"):
        if node.attrs["index"] not in wanted:
            graph.erase(node)
            continue
        value = node.inputs[0]
        whole = graph.insert(
            node, "to_global", [value], [value.type], everywhere, {}, sbp=[all_broadcast(1)]
        )
        whole.stage = value.node.stage
        graph.set_input(node, 0, whole.outputs[0])
        node.placement = everywhere
