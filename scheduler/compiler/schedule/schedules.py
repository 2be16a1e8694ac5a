"""Pipeline schedules: the order in which the stages on a device take turns, piece by piece.

A task is one stage's forward pass of a piece, its backward pass, or, split off from that, the
gradients of its weights. The last stage goes from one pass to the other without leaving its device:
its forward task does both. p devices, stage c of V = v p on device c mod p, m pieces, and F, B, W
seconds for a stage's forward pass, gradients of inputs and gradients of weights:

  1F1B         stage i runs p - i pieces ahead, then one backward and one forward in turn. A step
               takes (m + p - 1)(F + B + W), and stage i keeps min(m, p - i) pieces.
  interleaved  1F1B of virtual stages, p pieces of each at a time. A step takes
               (m + (p - 1) / v) v (F + B + W) with F, B, W of one virtual stage. (Narayanan et
               al., SC 2021, section 2.2; the order is theirs.)
  zero bubble  1F1B whose weight gradients come i pieces late on stage i, where they
               fill idle time. A step takes m (F + B + W) + (p - 1)(F + B - W) if W is at most F
               and B, and every stage keeps min(m, p) pieces: "ZB-H1" of Qi et al., ICLR 2024.

A device follows its order strictly. Taking whichever task is ready would do in a world without
latency: a weight gradient that begins just before a late piece comes in holds that piece up, and
every stage behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain


class Phase(IntEnum):
    """A part of the work of a stage on one piece."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHTS = 2


Task = tuple[Phase, int]
"""A phase of a stage."""


def one_forward_one_backward(stage: int, num_stages: int, num_pieces: int) -> list[Task]:
    """The order of 1F1B on the device of a stage."""
    return _alternating(stage, num_stages, num_pieces, None)


def zero_bubble(stage: int, num_stages: int, num_pieces: int) -> list[Task]:
    """The order of ZB-H1 on the device of a stage."""
    return _alternating(stage, num_stages, num_pieces, stage)


def _alternating(stage: int, num_stages: int, num_pieces: int, lag: int | None) -> list[Task]:
    """lag: pieces by which weight gradients come late; None: they are part of the backward."""
    forward, backward, weights = ((phase, stage) for phase in Phase)
    ahead = min(num_pieces, num_stages - stage)
    order: list[Task] = [forward] * ahead
    for piece in range(num_pieces):
        order.append(backward)
        if lag is not None and piece >= lag:
            order.append(weights)
        if piece + ahead < num_pieces:
            order.append(forward)
    if lag is not None:
        order += [weights] * min(lag, num_pieces)
    return order


def interleaved(device: int, num_devices: int, num_stages: int, num_pieces: int) -> list[Task]:
    """The order of interleaved 1F1B on a device."""
    stages = range(device, num_stages, num_devices)
    groups = [min(num_devices, num_pieces - first) for first in range(0, num_pieces, num_devices)]

    def passes(phase: Phase, stages: Iterable[int]) -> list[Task]:
        return [(phase, stage) for size in groups for stage in stages for _ in range(size)]

    forwards = passes(Phase.FORWARD, stages)
    backwards = passes(Phase.BACKWARD, stages[::-1])
    ahead = 2 * (num_devices - device - 1) + (len(stages) - 1) * num_devices
    ahead = min(ahead, len(forwards))
    rest = zip(forwards[ahead:], backwards, strict=False)
    return [*forwards[:ahead], *chain(*rest), *backwards[len(forwards) - ahead :]]


@dataclass
class Schedule:
    """The orders of all devices, and when each task begins and ends in them.

    orders: per device, of a whole step.  begins, ends: per task, of each piece, in passes.
    """

    orders: list[list[Task]]
    begins: dict[Task, list[int]]
    ends: dict[Task, list[int]]

    def most_kept(self, first: Task, lasts: Iterable[tuple[Task, bool]]) -> int:
        """The largest number of pieces that have begun `first` and are still needed.

        lasts: tasks that need a piece, and whether they do so until they end; else until they
        begin.
        """
        begins = self.begins[first]
        until = [
            max(piece)
            for piece in zip(
                *((self.ends if to_end else self.begins)[task] for task, to_end in lasts),
                strict=True,
            )
        ]
        kept = most = done = 0
        for begin in begins:
            kept += 1
            while done < len(until) and until[done] <= begin and kept > 1:
                done += 1
                kept -= 1
            most = max(most, kept)
        return most


def run(
    orders: Sequence[Iterable[Task]], tasks: Collection[Task], num_stages: int, num_pieces: int
) -> Schedule | None:
    """Run the orders with a forward or weight pass of one unit of time and a whole backward of two.

    tasks: those that exist; others are passed over.  None: a task would wait for ever for one that
    its own device runs later.
    """
    own = [[task for task in order if task in tasks] for order in orders]
    begins: dict[Task, list[int]] = {task: [] for task in tasks}
    ends: dict[Task, list[int]] = {task: [] for task in tasks}
    awaited = {task: _awaited(task, tasks, num_stages) for task in tasks}
    seconds = _durations(tasks)
    clocks, next_of = [0] * len(own), [0] * len(own)
    waiting = set(range(len(own)))
    while waiting:
        moved = False
        for device in sorted(waiting):
            order = own[device]
            while next_of[device] < len(order):
                task = order[next_of[device]]
                piece = len(ends[task])
                if any(len(ends[other]) <= piece for other in awaited[task]):
                    break
                ready = max((ends[other][piece] for other in awaited[task]), default=0)
                begin = max(clocks[device], ready)
                clocks[device] = begin + seconds(task)
                begins[task].append(begin)
                ends[task].append(clocks[device])
                next_of[device] += 1
                moved = True
            if next_of[device] == len(order):
                waiting.discard(device)
        if not moved and waiting:
            return None
    if any(len(done) != num_pieces for done in ends.values()):
        return None
    return Schedule(own, begins, ends)


def _awaited(task: Task, tasks: Collection[Task], num_stages: int) -> list[Task]:
    """The tasks that a task needs the same piece of."""
    phase, stage = task
    if phase is Phase.FORWARD:
        found: list[Task] = [(phase, c) for c in range(stage - 1, -1, -1)]
    elif phase is Phase.BACKWARD:
        found = [(phase, c) for c in range(stage + 1, num_stages)]
        found += [(Phase.FORWARD, c) for c in range(num_stages - 1, -1, -1)]
    else:
        found = [(Phase.BACKWARD, c) for c in range(stage, num_stages)]
        found += [(Phase.FORWARD, c) for c in range(num_stages - 1, -1, -1)]
    return [other for other in found if other in tasks][:1]


def _durations(tasks: Collection[Task]) -> Callable[[Task], int]:
    backward = 1 if any(phase is Phase.WEIGHTS for phase, _ in tasks) else 2

    def seconds(task: Task) -> int:
        phase, stage = task
        if phase is Phase.FORWARD:
            return 1 if (Phase.BACKWARD, stage) in tasks else 1 + backward
        return backward if phase is Phase.BACKWARD else 1

    return seconds
