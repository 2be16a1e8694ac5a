"""The choice of the next token from the scores of all words."""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array
from oneflow.serving.language.messages import Choice, Submit

_FIRST = 256
"""Words among which those of `top_p` are looked for first."""


def needs_scores(submit: Submit) -> bool:
    """Whether the likeliest word alone does not do."""
    return submit.temperature > 0 or submit.logprobs >= 0


def choose(submit: Submit, scores: Array, number: int) -> Choice:
    """Choose the next token of a sequence. number: of tokens that it made before."""
    token = draw(submit, scores, number) if submit.temperature > 0 else int(scores.argmax())
    return told(submit, scores, token)


def told(submit: Submit, scores: Array, token: int) -> Choice:
    """A token, with log-probabilities if the request asks for them."""
    if submit.logprobs < 0:
        return Choice(token)
    logprobs = log_softmax(scores)
    count = min(submit.logprobs, len(logprobs))
    best: list[tuple[int, float]] = []
    if count:
        found = np.argpartition(logprobs, -count)[-count:]
        found = found[np.argsort(-logprobs[found], kind="stable")]
        best = [(int(i), float(logprobs[i])) for i in found]
    return Choice(token, float(logprobs[token]), best)


def draw(submit: Submit, scores: Array, number: int) -> int:
    """A token drawn from the likeliest words that together have `top_p` of all.

    A function of the seed, the scores and the number of the token alone: it is the same
    with any others in the batch, and when the sequence is computed again.
    """
    shares = np.exp((scores - scores.max()) / np.float32(submit.temperature))
    kept = None if submit.top_p >= 1 else _likeliest(shares, submit.top_p)
    sums = np.cumsum(shares if kept is None else shares[kept], dtype=np.float64)
    rng = np.random.Generator(np.random.Philox(key=[submit.seed, number]))
    place = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    place = min(place, len(sums) - 1)
    return place if kept is None else int(kept[place])


def _likeliest(shares: Array, top_p: float) -> Array:
    """The fewest words that together have `top_p` of all, the likeliest first."""
    wanted, count = top_p * shares.sum(dtype=np.float64), _FIRST
    while True:  # sorting all of them takes longer than all the rest
        count = min(count, len(shares))
        found = np.argpartition(shares, -count)[-count:]
        found = found[np.argsort(-shares[found], kind="stable")]
        before = np.cumsum(shares[found], dtype=np.float64) - shares[found]
        kept: Array = found[before < wanted]
        if len(kept) < count or count == len(shares):
            return kept
        count *= 16


def log_softmax(scores: Array) -> Array:
    wide: Array = scores.astype(np.float64)
    wide -= wide.max()
    found: Array = wide - np.log(np.exp(wide).sum())
    return found
