"""Continuous batching: the scheduler of the tokens of each step, over one cache of blocks.

A step takes at most `budget` tokens. Sequences that write get one each, oldest first; the rest
goes to prompts, in pieces, so that a long prompt holds up the others for one piece at a time; then
waiting sequences are let in, in the order in which they came, while their blocks are free. A
sequence that needs a block when none is free takes those of the youngest, which waits again, first
in the line, and reads all its tokens anew. The oldest always goes on, so that each ends.

Nothing here touches a model: `plan` decides, the caller computes and tells `advance`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from oneflow.core.errors import InternalError
from oneflow.serving.language.messages import Submit

SCORED_ROWS = 32
"""Rows of a step in which every row's scores are wanted."""


class Sequence:
    """A sequence under way. tokens: given and made ones. done: how many of them are in the cache.

    order: of arrival.
    """

    def __init__(self, submit: Submit, order: int) -> None:
        self.submit, self.order = submit, order
        self.tokens = list(submit.tokens)
        self.blocks: list[int] = []
        self.done = 0
        self.scored = 1
        """Tokens of the prompt whose scores were told; the first has none."""

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.done

    @property
    def num_made(self) -> int:
        return len(self.tokens) - len(self.submit.tokens)

    @property
    def is_scoring(self) -> bool:
        return self.submit.scores_prompt and self.scored < len(self.submit.tokens)


class Chunk(NamedTuple):
    """A piece of a sequence: its tokens from `begin` to `end`."""

    sequence: Sequence
    begin: int
    end: int


class Scheduler:
    """The state of all sequences. block: tokens of a block. most: sequences that run at once."""

    def __init__(self, blocks: int, block: int, most: int, budget: int) -> None:
        self.blocks, self.block, self.most, self.budget = blocks, block, most, budget
        self.free = list(range(blocks))
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self._by_id: dict[int, Sequence] = {}
        self._num_submitted = 0

    @property
    def is_idle(self) -> bool:
        return not self._by_id

    @property
    def num_used(self) -> int:
        return self.blocks - len(self.free)

    def submit(self, submit: Submit) -> None:
        if submit.id in self._by_id:
            raise InternalError(f"sequence {submit.id} was submitted twice")
        sequence = Sequence(submit, self._num_submitted)
        self._num_submitted += 1
        self._by_id[submit.id] = sequence
        self.waiting.append(sequence)

    def end(self, number: int) -> None:
        """Forget a sequence; one that is not there has ended before it was cancelled."""
        sequence = self._by_id.pop(number, None)
        if sequence is None:
            return
        self._release(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def plan(self) -> list[Chunk]:
        """Choose the pieces of the next step: none only if there is no sequence."""
        budget = self.budget
        if any(s.is_scoring for s in (*self.running, *self.waiting)):
            budget = min(budget, SCORED_ROWS)
        chunks: list[Chunk] = []
        before = self.num_preempted
        for sequence in sorted(self.running, key=lambda s: (s.pending > 1, s.order)):
            if sequence in self.running and budget > 0:
                budget -= self._take(sequence, budget, chunks)
        was_full = self.num_preempted > before
        while self.waiting and not was_full and budget > 0 and len(self.running) < self.most:
            sequence = self.waiting[0]
            if self._num_blocks(len(sequence.tokens)) > len(self.free):
                break
            self.running.append(self.waiting.popleft())
            budget -= self._take(sequence, budget, chunks)
        return chunks

    def advance(self, chunk: Chunk) -> bool:
        """Record a computed piece; return whether its sequence now gets its next token."""
        chunk.sequence.done = chunk.end
        return chunk.sequence.pending == 0

    def _num_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _take(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Plan a piece of a sequence and give it the blocks for it; returns its tokens."""
        count = min(sequence.pending, budget)
        missing = self._num_blocks(sequence.done + count) - len(sequence.blocks)
        while missing > len(self.free):
            youngest = max(self.running, key=lambda s: s.order)
            self._preempt(youngest)
            chunks[:] = [chunk for chunk in chunks if chunk.sequence is not youngest]
            if youngest is sequence:
                return 0
        sequence.blocks += [self.free.pop() for _ in range(missing)]
        chunks.append(Chunk(sequence, sequence.done, sequence.done + count))
        return count

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preempted += 1
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks, sequence.done = [], 0
