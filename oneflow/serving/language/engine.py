"""A decoder and its scheduler: sequences come in, tokens go out, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oneflow.core.errors import ArgumentError, ModelError
from oneflow.kernels.array import Array
from oneflow.serving.language.config import DecoderConfig, load_config
from oneflow.serving.language.decoder import CacheSize, Decoder
from oneflow.serving.language.messages import Choice, Made, Opened, Steps, Submit
from oneflow.serving.language.sampling import choose, needs_scores, told
from oneflow.serving.language.scheduling import Chunk, Scheduler
from oneflow.serving.language.step import MOST_WANTED, Step, StepInputs, bucket, empty_inputs
from oneflow.serving.language.weights import Ranks, Weights

Run = Callable[[StepInputs], tuple[Array, Array]]


@dataclass(frozen=True)
class EngineSettings:
    """The sizes of an engine.

    context: tokens of a sequence at most; 0: as many as the model takes, up to 8192. block: tokens
    of a block. cache_tokens: tokens of the whole cache; 0: enough for all sequences, up to 2 GiB.
    budget: tokens of a step at most. most: sequences that run at once.
    """

    context: int = 0
    block: int = 16
    cache_tokens: int = 0
    budget: int = 128
    most: int = MOST_WANTED

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST_WANTED:
            raise ArgumentError(f"sequences at once must be 1 to {MOST_WANTED}, got {self.most}")
        if self.budget < self.most:
            raise ArgumentError(
                f"{self.budget} tokens a step are too few for {self.most} sequences at once"
            )
        if self.block < 1 or min(self.context, self.cache_tokens) < 0:
            raise ArgumentError("sizes of the context and of the cache must not be negative")


MOST_CONTEXT = 8192
_CACHE_NBYTES = 2 << 30


class Model(NamedTuple):
    """A decoder with its cache and its plans. context: tokens of a sequence at most."""

    config: DecoderConfig
    step: Step
    size: CacheSize
    context: int

    @property
    def most_blocks(self) -> int:
        return -(-self.context // self.size.block)


def open_model(folder: Path, ranks: Ranks, settings: EngineSettings) -> Model:
    """Read a model. Raises ModelError."""
    config = load_config(folder)
    context = settings.context or min(config.positions, MOST_CONTEXT)
    if context > config.positions:
        raise ModelError(f"{folder} takes {config.positions} tokens, not {context}")
    size = _cache_size(config, context, settings)
    context = min(context, size.blocks * size.block)
    with Weights(folder, ranks) as weights:
        decoder = Decoder(config, weights, size)
    return Model(config, Step(decoder.eval()), size, context)


def _cache_size(config: DecoderConfig, context: int, settings: EngineSettings) -> CacheSize:
    block = settings.block
    whole = -(-context // block) * settings.most
    token_nbytes = 8 * config.layers * config.shared * config.depth
    fitting = _CACHE_NBYTES // (token_nbytes * block)
    asked = -(-settings.cache_tokens // block)
    return CacheSize(max(1, asked or min(whole, fitting)), block)


class Engine:
    """A model that sequences share. run: computes a step, on all ranks of the model."""

    def __init__(self, model: Model, run: Run, settings: EngineSettings) -> None:
        self.model, self._run = model, run
        self.scheduler = Scheduler(*model.size, most=settings.most, budget=settings.budget)

    def opened(self) -> Opened:
        config = self.model.config
        return Opened(self.model.context, config.words, list(config.stops), self.model.size.blocks)

    def submit(self, submit: Submit) -> None:
        self.scheduler.submit(submit)

    def step(self) -> Steps:
        """Compute a step, if there is any work, and return its tokens."""
        chunks = self.scheduler.plan()
        made: list[Made] = []
        if chunks:
            inputs, rows = _inputs(chunks, self.model.most_blocks)
            best, scores = self._run(inputs)
            for chunk, row in zip(chunks, rows, strict=True):
                made += self._results(chunk, best, scores, row)
        return self.report(made)

    def report(self, made: list[Made]) -> Steps:
        s = self.scheduler
        return Steps(made, s.num_used, len(s.running), len(s.waiting), s.num_preempted)

    def _results(self, chunk: Chunk, best: Array, scores: Array, row: int) -> list[Made]:
        """Return the results of a chunk. row: its first row in `best` and `scores`."""
        sequence, found = chunk.sequence, []
        if sequence.is_scoring:
            found.append(_prompt_scores(chunk, scores, row))
            row += chunk.end - chunk.begin - 1
        if not self.scheduler.advance(chunk):
            return found
        submit, number = sequence.submit, sequence.num_made
        if not submit.limit:  # the scores of the prompt were all that was asked for
            self.scheduler.end(submit.id)
            return [*found, Made(submit.id, [], "length")]
        if needs_scores(submit):
            choice = choose(submit, scores[row], number)
        else:
            choice = Choice(int(best[row]))
        end = ""
        if choice.token in submit.stops:
            end = "stop"
        elif number + 1 >= submit.limit:
            end = "length"
        sequence.tokens.append(choice.token)
        if end:
            self.scheduler.end(submit.id)
        found.append(Made(submit.id, [] if end == "stop" else [choice], end))
        return found


def _prompt_scores(chunk: Chunk, scores: Array, row: int) -> Made:
    """Scores of the prompt's tokens that follow those of a chunk."""
    sequence = chunk.sequence
    prompt, choices = sequence.submit.tokens, []
    for at in range(chunk.begin, chunk.end):
        if sequence.scored == at + 1 < len(prompt):
            own = scores[row + at - chunk.begin]
            choices.append(told(sequence.submit, own, prompt[at + 1]))
            sequence.scored += 1
    return Made(sequence.submit.id, choices, of_prompt=True)


def _inputs(chunks: list[Chunk], most: int) -> tuple[StepInputs, list[int]]:
    """The arrays of a step, and the first row of each chunk among those that are wanted."""
    sizes = [chunk.end - chunk.begin for chunk in chunks]
    inputs = empty_inputs(bucket(sum(sizes)), most)
    is_small = len(inputs.words) == len(inputs.wanted)  # then every row is wanted
    first, rows = 0, []
    for number, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
        sequence, own = chunk.sequence, slice(first, first + size)
        inputs.words[own] = sequence.tokens[chunk.begin : chunk.end]
        inputs.lengths[own] = np.arange(chunk.begin + 1, chunk.end + 1)
        inputs.tables[own, : len(sequence.blocks)] = sequence.blocks
        last = first + size - 1
        if is_small:
            rows.append(first if sequence.is_scoring else last)
        else:
            inputs.wanted[number] = last
            rows.append(number)
        first += size
    if is_small:
        inputs.wanted[:] = np.arange(len(inputs.wanted))
    return inputs, rows
