"""The rules that every order of a graph's nodes keeps, and the valid order closest to a wanted one.

Nodes are numbers here, their positions in the graph before it is ordered: an order is tried several
times, and neither rules nor readers change in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from oneflow.core.errors import GraphError
from oneflow.core.graph import DECLARED, Node, Value


class Rules:
    """Nodes that must come after others.

    position: number of a node, by its id.

    readers: numbers of the nodes that read a node's results, once per use. writers:
    of those that overwrite its inputs.  reads: of the makers of its inputs.
    """

    def __init__(self, nodes: list[Node], position: dict[int, int]) -> None:
        self._nodes = nodes
        self.readers = [[position[u.id] for v in n.outputs for u in v.users] for n in nodes]
        self.reads = [[position[v.node.id] for v in n.inputs] for n in nodes]
        self.writers = _after_readers(nodes, position)
        self._waits = [len(made) for made in self.reads]
        for some in self.writers.values():
            for writer in some:
                self._waits[writer] += 1
        both = [(*r, *self.writers.get(i, ())) for i, r in enumerate(self.readers)]
        self._followers = both
        self._before = np.repeat(np.arange(len(nodes)), [len(some) for some in both])
        self._after = np.fromiter((j for some in both for j in some), np.int64, len(self._before))

    def sorted(self, sequence: Sequence[int], place: list[int]) -> list[int]:
        """Sort so that of the nodes that can run, the one with the lowest place always comes next;
        of one place, the first in `sequence`. Raises GraphError where there is no order.

        place: of each node, by its number.
        """
        ranks = sorted(sequence, key=place.__getitem__)
        rank_of = np.empty(len(ranks), np.int64)
        rank_of[ranks] = np.arange(len(ranks))
        if (rank_of[self._before] < rank_of[self._after]).all():
            return ranks
        return self._closest(ranks, rank_of.tolist())

    def _closest(self, ranks: list[int], rank_of: list[int]) -> list[int]:
        waits = self._waits.copy()
        ready = [rank_of[i] for i, count in enumerate(waits) if count == 0]
        heapify(ready)
        result = []
        while ready:
            i = ranks[heappop(ready)]
            result.append(i)
            for j in self._followers[i]:
                waits[j] -= 1
                if waits[j] == 0:
                    heappush(ready, rank_of[j])
        if len(result) != len(ranks):
            raise _no_order(self._nodes, waits)
        return result


def _after_readers(nodes: list[Node], position: dict[int, int]) -> dict[int, list[int]]:
    """Reader -> writers that must come after it."""
    after: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for source in DECLARED[node.op].mutates.values():
            for reader in _readers(node.inputs[source], node):
                if reader is not node:
                    after.setdefault(position[reader.id], []).append(i)
    return after


def _readers(value: Value, writer: Node) -> Iterator[Node]:
    """The nodes that read a value, or a view of it, before `writer` overwrites it."""
    for user in value.users:
        yield user
        if user is writer or not user.outputs or user.overwrites(value):
            continue
        if user.shared_input(0) is value:
            yield from _readers(user.outputs[0], writer)


def _no_order(nodes: list[Node], waits: list[int]) -> GraphError:
    stuck = next(n for n, count in zip(nodes, waits, strict=True) if count and n.overwritten)
    return GraphError(
        f"{stuck.describe()}: it overwrites a value that is still read after it has run; "
        "read the value that the update returns, or clone the old one first"
    )
