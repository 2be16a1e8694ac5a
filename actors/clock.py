"""Where a rank is: which step, and how many pieces a step has. Random ops read it."""

from __future__ import annotations


class StepClock:
    """step: of the job, from 0.  num_pieces: micro-batches per step."""

    __slots__ = ("num_pieces", "step")

    def __init__(self, num_pieces: int) -> None:
        self.step = 0
        self.num_pieces = num_pieces
