"""Draws of tokens, against the distributions they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.serving.language.messages import Submit
from oneflow.serving.language.sampling import choose, draw, log_softmax


def asked(temperature: float, top_p: float = 1.0, seed: int = 3, logprobs: int = -1) -> Submit:
    return Submit(0, [1], 1, [], temperature, top_p, seed, logprobs)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.8), (1.0, 0.3)])
def test_draws_follow_the_distribution(temperature: float, top_p: float) -> None:
    scores = np.random.default_rng(1).normal(size=12).astype(np.float32)
    shares = np.exp(log_softmax(scores / temperature))
    order = np.argsort(-shares)
    kept = order[: 1 + int(np.searchsorted(np.cumsum(shares[order]), top_p))]
    wanted = np.zeros(12)
    wanted[kept] = shares[kept] / shares[kept].sum()
    count = 4000
    drawn = [draw(asked(temperature, top_p), scores, i) for i in range(count)]
    found = np.bincount(drawn, minlength=12) / count
    assert np.abs(found - wanted).max() < 4 * np.sqrt(0.25 / count)
    assert not found[wanted == 0].any()


def test_many_words_are_cut_by_their_shares_as_few_are() -> None:
    scores = np.zeros(2000, np.float32)  # all alike: 60 % of the shares are 1200 words
    drawn = {draw(asked(1.0, 0.6), scores, i) for i in range(3000)}
    assert 1000 < len(drawn) <= 1201


def test_a_draw_depends_on_seed_and_number_alone() -> None:
    scores = np.random.default_rng(2).normal(size=300).astype(np.float32)
    first = [draw(asked(1.0), scores, i) for i in range(20)]
    assert [draw(asked(1.0), scores, i) for i in range(20)] == first
    assert [draw(asked(1.0, seed=4), scores, i) for i in range(20)] != first


def test_the_likeliest_come_with_their_log_probabilities() -> None:
    scores = np.array([1.0, 3.0, -2.0, 2.0], np.float32)
    choice = choose(asked(0.0, logprobs=2), scores, 0)
    wanted = scores - np.log(np.exp(scores.astype(np.float64)).sum())
    assert choice.token == 1
    assert choice.logprob == pytest.approx(wanted[1])
    assert [token for token, _ in choice.best] == [1, 3]
    assert [score for _, score in choice.best] == pytest.approx([wanted[1], wanted[3]])
