"""Bytes that live at each position of a segment while its ops are joined: no join may raise their
peak, as one kernel for a sum over all steps of a recurrent network would, which needs every term at
once where sums one by one need two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from oneflow.core.graph import Value, find_root

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode

MOST_APART = 2000
"""Positions of which a join looks at the bytes: more of them would take more than linear time. Over
more nothing is kept alive."""


class LiveBytes:
    """Bytes of temporaries by position, as the nodes are joined so far.

    published: values that are none, because they have memory of their own.
    """

    def __init__(self, nodes: Sequence[BoundNode], published: frozenset[int]) -> None:
        self._nodes = nodes
        self._sizes: dict[int, int] = {}  # of memory, by the value that it was made for
        self._last: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        first: dict[int, int] = {}
        changes = [0] * (len(nodes) + 1)
        for i, bound in enumerate(nodes):
            for value in bound.node.inputs:
                self._last[self._root(value)] = i
            for value, type_ in zip(bound.node.outputs, bound.call.out_types, strict=True):
                root = self._root(value)
                self._last[root] = i
                if root == value.id and root not in published:
                    first[root], self._sizes[root] = i, type_.nbytes
            extra = sum(t.nbytes for t in bound.call.workspace)
            changes[i] += extra
            changes[i + 1] -= extra
        for root, size in self._sizes.items():
            changes[first[root]] += size
            changes[self._last[root] + 1] -= size
        self._live = list(accumulate(changes))
        self._peak = max(self._live)

    def _root(self, value: Value) -> int:
        root = self._roots.get(value.id)
        if root is None:
            root = self._roots[value.id] = find_root(value).id
        return root

    def join(self, members: Sequence[int], i: int) -> int:
        """Let `members`, which run at the position of their last one, run at `i`. Where that keeps
        more alive meanwhile than it saves, and more than the peak of the segment, nothing changes,
        and the result is the greatest number of bytes that would be added; else 0.

        A kernel may always run with the next one: the inputs of both are little more than those of
        either.
        """
        start, last = members[-1], self._last
        made = {self._root(v) for m in members for v in self._nodes[m].node.outputs}
        read = {self._root(v) for m in members for v in self._nodes[m].node.inputs} - made
        prolonged = [r for r in read if r in self._sizes and last[r] < i]
        changes: defaultdict[int, int] = defaultdict(int)  # of bytes, by position
        for r in prolonged:
            changes[max(last[r], start) + 1] += self._sizes[r]
        for r in made:
            if last[r] > start and r in self._sizes:
                changes[start + 1] -= self._sizes[r]
                changes[i if last[r] > i else last[r] + 1] += self._sizes[r]
        if i - start > MOST_APART:
            if changes[start + 1] > 0:
                return changes[start + 1]
        else:
            added = list(accumulate(changes.get(at, 0) for at in range(start + 1, i + 1)))
            before = self._live[start + 1 : i + 1]
            now = [a + b for a, b in zip(added, before, strict=True)]
            most = max(now)
            if most > self._peak and len(now) > 1:
                return max(added)
            self._peak = max(self._peak, most)
            self._live[start + 1 : i + 1] = now
        last.update((r, i) for r in prolonged)
        return 0
