"""An order of the nodes in which less memory is live at once.

A temporary is live from the node that makes it to the last one that reads it. From a given order
two kinds of moves follow, each decided in one walk over the nodes:

  later    a node that makes more than it is the last to read waits until its first reader runs
  sooner   a node that is the last to read at least as much as it makes runs as soon as it can

The first holds back values that are wanted late (masks, positions, casts of weights), the second
lets the updates of parameters follow their gradients. Each new order is kept only if the peak of
live bytes falls. Values that travel between actors have registers of their own and count nothing
here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oneflow.core.graph import DECLARED, STRUCTURAL, Node
from oneflow.core.placement import Placement
from oneflow.scheduler.compiler.layout.signatures import local_nbytes
from oneflow.scheduler.compiler.schedule.order_rules import Rules

HELD = STRUCTURAL - {"repeat"}
"""Readers whose values are in registers."""

ROUNDS = 8
"""Walks of a thorough search."""


def lower_peak(nodes: list[Node], sequence: list[int], rules: Rules, rounds: int) -> list[int]:
    """The best order found.

    sequence: the order to begin with, of the numbers by which `rules` knows the nodes. rounds:
    >= 1.
    """
    temporaries = Temporaries(nodes)
    best, least = sequence, temporaries.peak(sequence)
    current = sequence
    for _ in range(rounds):
        start = least
        for walk in (_later, _sooner):
            places = [0] * len(nodes)
            for place, i in enumerate(current):
                places[i] = place
            if not walk(current, places, temporaries, rules):
                continue
            current = rules.sorted(current, places)
            peak = temporaries.peak(current)
            if peak < least:
                best, least = current, peak
        if least == start:
            break
    return best


class Temporaries:
    """The temporaries of a graph, numbered; those that share memory are one.

    made, read: those that each node makes and reads.  sizes: bytes on one rank.  users: of each,
    the node that makes it and all that read it.  can_wait, can_hurry: whether a node may be moved
    by a walk.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.made: list[list[int]] = []
        self.read: list[list[int]] = []
        self.sizes: list[int] = []
        self.users: list[list[int]] = []
        self.can_wait: list[bool] = []
        self.can_hurry: list[bool] = []
        self._by_placement: dict[Placement, list[int]] = {}
        self._numbers: dict[int, int] = {}
        numbers, users = self._numbers, self.users
        for i, node in enumerate(nodes):
            ids = [v.id for v in node.inputs if v.id in numbers]
            read = sorted({numbers[i] for i in ids}) if ids else []
            made: list[int] = []
            movable = waits = False
            if not node.is_structural:
                op = DECLARED[node.op]
                made = self._make(node, bool(op.mutates or op.is_view or op.is_alias))
                movable = not op.has_effect
                waits = movable and not op.mutates
            self.read.append(read)
            self.made.append(made)
            for number in made:
                users[number].append(i)
            for number in read:
                users[number].append(i)
            self.can_wait.append(waits)
            self.can_hurry.append(movable and bool(node.inputs))
        counts = [len(some) for some in users]
        self._starts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        self._users = np.array([i for some in users for i in some], np.int64)
        self._groups = [np.array(some) for some in self._by_placement.values()]
        self._sizes = np.array(self.sizes, np.int64)

    def _make(self, node: Node, may_share: bool) -> list[int]:
        numbers = self._numbers
        made: list[int] = []
        for k, value in enumerate(node.outputs):
            source = node.shared_input(k) if may_share else None
            if source is not None:
                if source.id in numbers:
                    numbers[value.id] = numbers[source.id]
            elif HELD.isdisjoint([u.op for u in value.users]):
                numbers[value.id] = number = len(self.sizes)
                made.append(number)
                self.sizes.append(local_nbytes(value))
                self.users.append([])
                self._by_placement.setdefault(node.placement, []).append(number)
        return made

    def peak(self, sequence: Sequence[int]) -> int:
        """Most bytes that are live at once in an order, summed over the placements."""
        if not self.sizes:
            return 0
        place = np.empty(len(sequence), np.int64)
        place[sequence] = np.arange(len(sequence))
        used = place[self._users]
        first = np.minimum.reduceat(used, self._starts)
        last = np.maximum.reduceat(used, self._starts)
        total = 0
        for some in self._groups:
            changes = np.zeros(len(sequence) + 1, np.int64)
            np.add.at(changes, first[some], self._sizes[some])
            np.add.at(changes, last[some] + 1, -self._sizes[some])
            total += int(np.cumsum(changes).max())
        return total

    def freed(self, i: int, places: list[int], until: int) -> int:
        """Bytes that node `i` reads, and others only before place `until`."""
        total = 0
        for number in self.read[i]:
            for j in self.users[number]:
                if j != i and places[j] >= until:
                    break
            else:
                total += self.sizes[number]
        return total


def is_movable(node: Node) -> bool:
    """Whether a node may run at any time that its inputs and readers leave to it."""
    return not node.is_structural and not node.declared.has_effect


def _later(sequence: list[int], places: list[int], temporaries: Temporaries, rules: Rules) -> bool:
    """Change places so that nodes wait. Returns whether one does."""
    sizes, writers, changed = temporaries.sizes, rules.writers, False
    for i in reversed(sequence):
        if not temporaries.can_wait[i]:
            continue
        bounds = [places[j] for j in rules.readers[i]]
        if i in writers:
            bounds += [places[j] for j in writers[i]]
        first = min(bounds, default=0)
        if first <= places[i] + 1:
            continue
        kept = temporaries.freed(i, places, first)
        made = temporaries.made[i]
        if sum([sizes[number] for number in made]) > kept or (not made and not kept):
            places[i], changed = first, True
    return changed


def _sooner(sequence: list[int], places: list[int], temporaries: Temporaries, rules: Rules) -> bool:
    """Change places so that nodes run early. Returns whether one does."""
    sizes, changed = temporaries.sizes, False
    waits: dict[int, list[int]] = {}
    for reader, writers in rules.writers.items():
        for writer in writers:
            waits.setdefault(writer, []).append(reader)
    for i in sequence:
        if not temporaries.can_hurry[i]:
            continue
        bounds = [places[j] for j in rules.reads[i]]
        if i in waits:
            bounds += [places[j] for j in waits[i]]
        first = max(bounds)
        if first >= places[i] - 1:
            continue
        freed = temporaries.freed(i, places, first + 1)
        if freed and freed >= sum([sizes[number] for number in temporaries.made[i]]):
            places[i], changed = first, True
    return changed
