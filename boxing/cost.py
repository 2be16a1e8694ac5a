"""What a change of layout costs: exact bytes, and seconds in the latency-bandwidth model."""

from __future__ import annotations

from oneflow.boxing.link import ONE_HOST, Network
from oneflow.boxing.route import choose_route, route_seconds
from oneflow.boxing.transitions import received_bytes
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType


def boxing_seconds(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> float:
    """Estimated seconds from one layout of a tensor of `type` to another; 0.0 if they are equal.

    Raises SbpError if a layout does not fit the tensor, or for partial sums of booleans.
    """
    return route_seconds(type, src_sbp, src_placement, dst_sbp, dst_placement, network)


def boxing_bytes(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> int:
    """Exact bytes that the chosen route moves between ranks, over all of them."""
    route = choose_route(type, src_sbp, src_placement, dst_sbp, dst_placement, network)
    return sum(
        received_bytes(type, step, rank) for step in route for rank in step.dst_placement.rank_ids
    )
