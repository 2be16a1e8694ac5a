"""The scheduler of sequences, without a model: all end, with every block free, for any requests."""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.serving.language.messages import Submit
from oneflow.serving.language.scheduling import Chunk, Scheduler, Sequence


def submit(number: int, prompt: int, limit: int, *, scores: bool = False) -> Submit:
    return Submit(number, list(range(prompt)), limit, [], 0.0, 1.0, 0, 0, scores)


def run(scheduler: Scheduler, chunks: list[Chunk]) -> list[int]:
    """Compute a step; the sequences that ended."""
    ended = []
    for chunk in chunks:
        sequence = chunk.sequence
        if scheduler.advance(chunk):
            sequence.tokens.append(7)
            if sequence.num_made == sequence.submit.limit:
                scheduler.end(sequence.submit.id)
                ended.append(sequence.submit.id)
    return ended


def check(scheduler: Scheduler, chunks: list[Chunk]) -> None:
    """No block is lost or shared, and each piece has blocks for its tokens."""
    held = [block for s in scheduler.running for block in s.blocks]
    assert sorted(held + scheduler.free) == list(range(scheduler.blocks))
    assert not any(s.blocks for s in scheduler.waiting)
    assert sum(c.end - c.begin for c in chunks) <= scheduler.budget
    sequences = [id(c.sequence) for c in chunks]
    assert len(set(sequences)) == len(sequences) <= scheduler.most
    for chunk in chunks:
        assert chunk.begin == chunk.sequence.done < chunk.end <= len(chunk.sequence.tokens)
        assert len(chunk.sequence.blocks) * scheduler.block >= chunk.end


@pytest.mark.parametrize("seed", range(60))
def test_all_sequences_end_and_leave_every_block_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks, block = int(rng.integers(4, 20)), int(rng.integers(1, 9))
    scheduler = Scheduler(
        blocks, block, most=int(rng.integers(1, 6)), budget=int(rng.integers(6, 40))
    )
    most, left, ended = blocks * block, 40, 0
    for _ in range(20_000):
        if left and rng.random() < 0.3:
            prompt = int(rng.integers(1, most))
            limit = int(rng.integers(1, most - prompt + 1))
            scheduler.submit(submit(left, prompt, limit))
            left -= 1
        chunks = scheduler.plan()
        check(scheduler, chunks)
        assert bool(chunks) is not scheduler.is_idle  # whatever is there makes progress
        ended += len(run(scheduler, chunks))
        if rng.random() < 0.02:
            scheduler.end(int(rng.integers(1, 41)))
        if scheduler.is_idle and not left:
            break
    assert scheduler.is_idle and scheduler.num_used == 0
    assert ended > 10


def test_a_long_prompt_goes_in_pieces_beside_those_that_write() -> None:
    scheduler = Scheduler(blocks=20, block=16, most=4, budget=32)
    scheduler.submit(submit(1, 5, 9))
    run(scheduler, scheduler.plan())
    scheduler.submit(submit(2, 100, 9))
    sizes = []
    for _ in range(4):
        chunks = scheduler.plan()
        sizes.append({c.sequence.submit.id: c.end - c.begin for c in chunks})
        run(scheduler, chunks)
    assert sizes == [{1: 1, 2: 31}, {1: 1, 2: 31}, {1: 1, 2: 31}, {1: 1, 2: 7}]


def test_the_youngest_gives_its_blocks_and_waits_first_in_the_line() -> None:
    scheduler = Scheduler(blocks=4, block=4, most=3, budget=32)
    for number, prompt in ((1, 8), (2, 8), (3, 4)):
        scheduler.submit(submit(number, prompt, 8))
    run(scheduler, scheduler.plan())
    chunks = scheduler.plan()
    assert [c.sequence.submit.id for c in chunks] == [1]
    assert [s.submit.id for s in scheduler.waiting] == [2, 3]
    assert scheduler.num_preempted == 1
    preempted: Sequence = scheduler.waiting[0]
    assert len(preempted.tokens) == 9 and preempted.done == 0


def test_a_step_with_prompts_that_are_scored_is_small() -> None:
    scheduler = Scheduler(blocks=20, block=16, most=4, budget=128)
    scheduler.submit(submit(1, 100, 1, scores=True))
    assert [(c.begin, c.end) for c in scheduler.plan()] == [(0, 32)]
