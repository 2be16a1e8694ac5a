"""One step of a decoder: rows of tokens in, next words out, as plans of a few sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oneflow.core.sbp import BROADCAST
from oneflow.graph.graph import Graph
from oneflow.kernels.array import Array
from oneflow.serving.language.decoder import Decoder
from oneflow.tensor.convert import from_numpy
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

MOST_WANTED = 32
"""Rows of a step behind which the next word is wanted, at most."""


class StepInputs(NamedTuple):
    """Inputs of Decoder.forward, int64."""

    words: Array
    lengths: Array
    tables: Array
    wanted: Array


def bucket(count: int) -> int:
    """The number of rows of the plan that takes `count` of them: the next power of 2."""
    return 1 << max(count - 1, 0).bit_length()


def empty_inputs(rows: int, most: int) -> StepInputs:
    """Inputs that are all padding. most: blocks of a table."""
    shapes = ((rows,), (rows,), (rows, most), (min(rows, MOST_WANTED),))
    return StepInputs(*(np.zeros(shape, np.int64) for shape in shapes))


class Step(Graph):
    """The decoder's plans, one for each number of rows."""

    @Graph.with_dynamic_input_shape(size=16)
    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def build(
        self, words: Tensor, lengths: Tensor, tables: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        with no_grad():
            best, scores = self.decoder(words, lengths, tables, wanted)
        return best, scores

    def run(self, inputs: StepInputs) -> tuple[Array, Array]:
        """Compute the likeliest next word, and the scores of all words, of each wanted row."""
        placement = self.decoder.ranks.placement
        given = [from_numpy(array) for array in inputs]
        if placement is not None:
            given = [x.to_global(placement, BROADCAST, check_meta=False) for x in given]
        best, scores = self(*given)
        if placement is not None:
            best, scores = best.to_local(), scores.to_local()
        return best.numpy(), scores.numpy()


def warm_up(step: Step, budget: int, most: int) -> None:
    """Make the plans of all sizes, so that no request waits for one. most: blocks of a table."""
    rows = 1
    while rows <= bucket(budget):
        step.run(empty_inputs(rows, most))
        rows *= 2
