"""An order of the nodes in which less memory is live at once.

A temporary is live from the node that makes it to the last one that reads it. From a given order
two kinds of moves follow, each decided in one walk over the nodes:

  later    a node that makes more than it is the last to read waits until its first reader runs
  sooner   a node that is the last to read at least what it makes runs as soon as it can

The first holds back what is wanted late (masks, positions, casts of weights), the second lets the
updates of parameters follow their gradients. Each new order is kept only if the peak of live bytes
falls. Values that travel between actors have registers of their own and count nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.graph import Node, Value
from oneflow.core.op import find_op
from oneflow.core.placement import Placement

Sort = Callable[[list[Node], list[int]], list[Node]]
"""(nodes, place of each) -> a valid order that is close to the places."""

ROUNDS = 8
"""Walks of a thorough search."""


def lower_peak(
    nodes: list[Node], before: Callable[[list[Node]], dict[int, list[int]]], sort: Sort, rounds: int
) -> list[Node]:
    """The best order found.

    before: of some nodes, position -> positions of the nodes that must come after it beside its
    readers. rounds: >= 1.
    """
    temporaries = Temporaries(nodes)
    lives = Lives(nodes, temporaries)
    best, least = nodes, lives.peak()
    current = nodes
    for _ in range(rounds):
        start = least
        for walk in (_later, _sooner):
            places = walk(current, lives, before(current))
            if all(place == i for i, place in enumerate(places)):
                continue
            current = sort(current, places)
            lives = Lives(current, temporaries)
            peak = lives.peak()
            if peak < least:
                best, least = current, peak
        if least == start:
            break
    return best


class Temporaries:
    """The temporaries of a graph, numbered; those that share memory are one.

    made, read: those that a node makes and reads, by its id.  sizes: bytes on one rank.
    by_placement: their numbers, by where they are.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.made: dict[int, list[int]] = {}
        self.read: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        self.by_placement: dict[Placement, list[int]] = {}
        self._numbers: dict[int, int] = {}
        numbers = self._numbers
        for node in nodes:
            ids = [v.id for v in node.inputs]
            self.read[node.id] = sorted({numbers[i] for i in ids if i in numbers})
            self.made[node.id] = [] if node.is_structural else self._make(node)

    def _make(self, node: Node) -> list[int]:
        op, numbers = find_op(node.op), self._numbers
        made: list[int] = []
        for k, value in enumerate(node.outputs):
            source = op.mutates.get(k, 0 if op.is_view or op.is_alias else None)
            if source is not None:
                shared = numbers.get(node.inputs[source].id)
                if shared is not None:
                    numbers[value.id] = shared
            elif not any(u.is_structural and u.op != "repeat" for u in value.users):
                numbers[value.id] = number = len(self.sizes)
                made.append(number)
                self.sizes.append(local_nbytes(value))
                self.by_placement.setdefault(node.placement, []).append(number)
        return made


class Lives:
    """The times at which temporaries are live in one order of the nodes.

    made, read: of each node.  readers: positions of the node that makes a temporary and of all that
    read it, ascending.
    """

    def __init__(self, nodes: list[Node], temporaries: Temporaries) -> None:
        self._temporaries, self._length = temporaries, len(nodes)
        self.sizes = temporaries.sizes
        self.made = [temporaries.made[node.id] for node in nodes]
        self.read = [temporaries.read[node.id] for node in nodes]
        self.readers: list[list[int]] = [[] for _ in self.sizes]
        for i, (made, read) in enumerate(zip(self.made, self.read, strict=True)):
            for number in made:
                self.readers[number].append(i)
            for number in read:
                self.readers[number].append(i)

    def peak(self) -> int:
        """Most bytes that are live at once, summed over the placements."""
        every = self._temporaries.by_placement.values()
        return sum(_peak([self._life(number) for number in some], self._length) for some in every)

    def _life(self, number: int) -> tuple[int, int, int]:
        readers = self.readers[number]
        return self.sizes[number], readers[0], readers[-1]


def _peak(lives: list[tuple[int, int, int]], length: int) -> int:
    sizes, first, last = np.array(lives, np.int64).T
    changes: np.ndarray[Any, Any] = np.zeros(length + 1, np.int64)
    np.add.at(changes, first, sizes)
    np.add.at(changes, last + 1, -sizes)
    return int(np.cumsum(changes).max())


def local_nbytes(value: Value) -> int:
    """Bytes of a value on one rank, evenly split."""
    parts = 1
    for extent, sbp in zip(value.placement.hierarchy, value.sbp or (), strict=False):
        parts *= extent if sbp.is_split else 1
    return value.type.nbytes // parts


def is_movable(node: Node) -> bool:
    """Whether a node may run at any time that its inputs and readers leave to it."""
    return not node.is_structural and not find_op(node.op).has_effect


def _later(nodes: list[Node], lives: Lives, before: dict[int, list[int]]) -> list[int]:
    places = list(range(len(nodes)))
    positions = {node.id: i for i, node in enumerate(nodes)}
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        if not is_movable(node) or find_op(node.op).mutates:
            continue
        bounds = [places[positions[u.id]] for v in node.outputs for u in v.users]
        bounds += [places[j] for j in before.get(i, ())]
        first = min(bounds, default=0)
        if first <= places[i] + 1:
            continue
        kept = sum(
            lives.sizes[number]
            for number in lives.read[i]
            if max((places[j] for j in lives.readers[number] if j != i), default=0) < first
        )
        saved = sum(lives.sizes[number] for number in lives.made[i])
        if saved > kept or (not lives.made[i] and not kept):
            places[i] = first
    return places


def _sooner(nodes: list[Node], lives: Lives, before: dict[int, list[int]]) -> list[int]:
    places = list(range(len(nodes)))
    positions = {node.id: i for i, node in enumerate(nodes)}
    waits: dict[int, list[int]] = {}
    for reader, writers in before.items():
        for writer in writers:
            waits.setdefault(writer, []).append(reader)
    for i, node in enumerate(nodes):
        if not is_movable(node) or not node.inputs:
            continue
        bounds = [places[positions[v.node.id]] for v in node.inputs]
        first = max(bounds + [places[j] for j in waits.get(i, ())])
        if first >= places[i] - 1:
            continue
        freed = sum(
            lives.sizes[number]
            for number in lives.read[i]
            if max((places[j] for j in lives.readers[number] if j != i), default=0) <= first
        )
        if freed and freed >= sum(lives.sizes[number] for number in lives.made[i]):
            places[i] = first
    return places
