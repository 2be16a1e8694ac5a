"""Orders in which the ranks of a pipeline run their stages, micro-batch by micro-batch.

An order is a list of passes of one rank. Along each edge between two stages micro-batches follow
one another in ascending order, so the first message sent is the first received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from oneflow.core.errors import InternalError


class Pass(NamedTuple):
    """The forward or backward pass of a stage with one micro-batch."""

    is_forward: bool
    stage: int
    micro_batch: int


def looped(num_stages: int, num_ranks: int) -> list[int]:
    """The rank of each stage: rank after rank, again and again."""
    return [stage % num_ranks for stage in range(num_stages)]


def folded(num_stages: int, num_ranks: int) -> list[int]:
    """The rank of each stage: up to the last rank and back."""
    way = [*range(num_ranks), *reversed(range(num_ranks))]
    return [way[stage % len(way)] for stage in range(num_stages)]


def all_forward_first(stages: Sequence[int], num_micro_batches: int) -> list[Pass]:
    """All forward passes stage after stage, then all backward passes in the opposite order."""
    batches = range(num_micro_batches)
    return [Pass(True, s, i) for s in stages for i in batches] + [
        Pass(False, s, i) for s in reversed(stages) for i in batches
    ]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """A backward pass after each forward pass, once the stages behind are at work."""
    ahead = min(num_micro_batches, num_stages - stage - 1)
    forward = [Pass(True, stage, i) for i in range(num_micro_batches)]
    backward = [Pass(False, stage, i) for i in range(num_micro_batches)]
    return _alternating(forward, backward, ahead)


def interleaved(
    stages: Sequence[int], rank: int, num_ranks: int, num_micro_batches: int
) -> list[Pass]:
    """The same for several stages of a rank, `num_ranks` apart, which take turns round by round
    (Narayanan et al., 2021). Raises ValueError if the micro-batches make no whole rounds.
    """
    rounds = max(1, num_micro_batches // num_ranks)
    if num_micro_batches % rounds:
        raise ValueError(f"{num_micro_batches} micro-batches make no {rounds} equal rounds")
    size = num_micro_batches // rounds
    places = [(s, r * size + i) for r in range(rounds) for s in stages for i in range(size)]
    back = [(s, r * size + i) for r in range(rounds) for s in reversed(stages) for i in range(size)]
    ahead = (len(stages) - 1) * size + 2 * (num_ranks - 1 - rank)
    forward = [Pass(True, *place) for place in places]
    return _alternating(forward, [Pass(False, *place) for place in back], ahead)


def _alternating(forward: list[Pass], backward: list[Pass], ahead: int) -> list[Pass]:
    ahead = min(ahead, len(forward))
    made = forward[:ahead]
    for i, one in enumerate(forward[ahead:]):
        made += [one, backward[i]]
    return made + backward[len(forward) - ahead :]


def as_soon_as_possible(places: Sequence[int], num_micro_batches: int) -> list[list[Pass]]:
    """The order of each rank if all passes take one unit of time and each rank takes the backward
    pass that is ready, or else the forward pass of its last stage that is.

    places: the rank of each stage.  A rank holds at most two micro-batches for each rank of the
    pipeline.
    """
    num_stages, num_ranks = len(places), max(places) + 1
    most = 2 * num_ranks
    ready: list[list[deque[int]]] = [[deque(), deque()] for _ in range(num_stages)]  # back, forward
    ready[0][True].extend(range(num_micro_batches))
    held, orders = [0] * num_ranks, [list[Pass]() for _ in range(num_ranks)]
    left = 2 * num_stages * num_micro_batches
    while left:
        done = []
        for rank in range(num_ranks):
            own = [s for s, r in enumerate(places) if r == rank]
            chosen = _choose(ready, own, held[rank] < most)
            if chosen is not None:
                done.append(chosen)
                orders[rank].append(chosen)
                held[rank] += 1 if chosen.is_forward else -1
        for made in done:
            following = made.stage + (1 if made.is_forward else -1)
            if following == num_stages:
                ready[made.stage][False].append(made.micro_batch)
            elif following >= 0:
                ready[following][made.is_forward].append(made.micro_batch)
        left -= len(done)
        if not done:
            raise InternalError(f"no pass of {left} is ready: stages on ranks {places}")
    return orders


def _choose(ready: list[list[deque[int]]], stages: list[int], has_room: bool) -> Pass | None:
    for stage in stages:
        if ready[stage][False]:
            return Pass(False, stage, ready[stage][False].popleft())
    for stage in reversed(stages):
        if ready[stage][True] and (has_room or stage != stages[0]):
            return Pass(True, stage, ready[stage][True].popleft())
    return None
