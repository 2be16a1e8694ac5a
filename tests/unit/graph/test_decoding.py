"""Decoding with `nn.Graph`: a static cache in buffers, one call a token, sampling in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import oneflow as flow

ROWS, HEADS, SHARED, DEPTH, LENGTH, WORDS = 3, 4, 2, 8, 12, 17
WIDTH = HEADS * DEPTH


def attention_model(lib: Any) -> Any:
    """One layer of attention, with a cache in which each row is at a position of its own."""
    nn = lib.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            for name in ("keys", "values"):
                self.register_buffer(name, lib.zeros(ROWS, SHARED, LENGTH, DEPTH))

        def forward(self, words: Any, at: Any) -> Any:
            x = self.words(words)
            k, v = self.kv(x).view(ROWS, HEADS, 1, DEPTH).chunk(2, 1)
            places = at.view(ROWS, 1, 1, 1).expand(ROWS, SHARED, 1, DEPTH)
            self.keys.scatter_(2, places, k)
            self.values.scatter_(2, places, v)
            mask = lib.arange(LENGTH) <= at.view(ROWS, 1, 1, 1)
            seen = nn.functional.scaled_dot_product_attention(
                self.q(x).view(ROWS, HEADS, 1, DEPTH), self.keys, self.values, mask, enable_gqa=True
            )
            return self.head(seen.reshape(ROWS, WIDTH))

    model, drawn = Model(), np.random.default_rng(0)
    with lib.no_grad():
        for p in model.parameters():
            p.copy_(lib.tensor(drawn.standard_normal(tuple(p.shape)).astype(np.float32)))
    return model


class Greedy(flow.nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, words: Any, at: Any) -> Any:
        with flow.no_grad():
            logits = self.model(words, at)
            return logits, logits.argmax(-1), at + 1


class Sampled(Greedy):
    """The likeliest words, of which those are left out that follow `top_p` of all."""

    top_k, top_p = 5, 0.9

    def build(self, words: Any, at: Any, temperature: Any) -> Any:
        with flow.no_grad():
            best, places = flow.topk(self.model(words, at) / temperature, self.top_k)
            shares = flow.softmax(best, -1)
            shares = shares.masked_fill(shares.cumsum(-1) - shares > self.top_p, 0.0)
            chosen = flow.multinomial(shares, 1)
            return places, shares, places.gather(1, chosen)[:, 0], at + 1


def test_rows_decode_at_their_own_positions_in_one_call_a_token() -> None:
    """The logits of PyTorch's eager code; and the caches are written where they lie."""
    model, theirs = attention_model(flow), attention_model(torch)
    memory = model.keys._array
    step = Greedy(model)
    words, at = flow.tensor([1, 2, 3]), flow.tensor([0, 4, 2])
    other, position = torch.tensor([1, 2, 3]), torch.tensor([0, 4, 2])
    for _ in range(6):
        logits, words, at = step(words, at)
        with torch.no_grad():
            wanted = theirs(other, position)
        other, position = wanted.argmax(-1), position + 1
        np.testing.assert_allclose(logits.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
        assert words.tolist() == other.tolist()
        assert at.tolist() == position.tolist()
        np.testing.assert_allclose(model.keys.numpy(), theirs.keys.numpy(), atol=1e-5)
    assert model.keys._array is memory
    ops = {node.op for node in step._spec.plans.now.job.bound.plan.graph}
    assert {"dim_assign", "attention"} <= ops
    assert not {"dim_scatter", "assign"} & ops


def test_sampling_in_the_graph_follows_the_seed_and_keeps_to_the_likeliest_words() -> None:
    def sample(seed: int) -> list[list[int]]:
        step = Sampled(attention_model(flow))
        flow.manual_seed(seed)
        words, at, made = flow.tensor([1, 2, 3]), flow.tensor([0, 4, 2]), []
        for _ in range(6):
            places, shares, words, at = step(words, at, flow.tensor(2.0))
            made.append(words.tolist())
            for word, some, share in zip(words.tolist(), places.tolist(), shares, strict=True):
                assert share.numpy()[some.index(word)] > 0
        return made

    first = sample(7)
    assert sample(7) == first
    assert sample(8) != first
