"""The place of a rank in time: its step, how many pieces a step has, and the seeds of its random
ops.
"""

from __future__ import annotations

from oneflow.core.draws import Randomness


class StepClock:
    """The clock of a rank.

    step: of the job, from 0. num_pieces: micro-batches per step. randomness: where the generators
    are before the step.
    """

    __slots__ = ("num_pieces", "randomness", "step")

    def __init__(self, num_pieces: int) -> None:
        self.step = 0
        self.num_pieces = num_pieces
        self.randomness = Randomness()

    def draw_anew(self) -> None:
        """End a step: the next one draws from new seeds."""
        if self.randomness.generators:
            self.randomness = self.randomness.after(1, self.num_pieces)
