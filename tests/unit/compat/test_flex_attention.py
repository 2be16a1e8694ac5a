"""flex_attention beside PyTorch's, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as theirs

import oneflow as flow
from oneflow.core.errors import ShapeError
from oneflow.nn.attention import flex_attention as ours

B, H, Q, K, E = 2, 4, 9, 13, 8
RNG = np.random.default_rng(0)
QUERY = RNG.standard_normal((B, H, Q, E)).astype(np.float32)
KEY = RNG.standard_normal((B, H, K, E)).astype(np.float32)
VALUE = RNG.standard_normal((B, H, K, 5)).astype(np.float32)
SLOPES = np.linspace(0.1, 1, H).astype(np.float32)
PARTS = np.sort(RNG.integers(0, 3, K))

SCORES: dict[str, Callable[[Any], Any]] = {
    "none": lambda lib: None,
    "alibi": lambda lib: lambda s, b, h, q, k: s + lib.tensor(SLOPES)[h] * (k - q),
    "capped": lambda lib: lambda s, b, h, q, k: 20 * lib.tanh(s / 20),
    "where": lambda lib: lambda s, b, h, q, k: lib.where((q + k + b) % 3 == 0, s, s * 0.5),
}
MASKS: dict[str, Callable[[Any], Any]] = {
    "none": lambda lib: None,
    "causal": lambda lib: lambda b, h, q, k: q >= k,
    "window": lambda lib: lambda b, h, q, k: (q - k).abs() <= 2 + h,
    "documents": lambda lib: lambda b, h, q, k: lib.tensor(PARTS)[q] == lib.tensor(PARTS)[k],
    "blind rows": lambda lib: lambda b, h, q, k: (q > 3) & (k > b),
}


def run(lib: Any, module: Any, score: str, mask: str) -> list[np.ndarray]:
    mod = MASKS[mask](lib)
    block = None if mod is None else module.create_block_mask(mod, B, H, Q, K, "cpu", BLOCK_SIZE=4)
    xs = [lib.tensor(x) for x in (QUERY, KEY, VALUE)]
    made = module.flex_attention(
        *xs, score_mod=SCORES[score](lib), block_mask=block, return_lse=True
    )
    found = [x.numpy() for x in made]
    if block is not None:
        found += [block.to_dense().numpy(), np.array(block.sparsity()), np.array(block.shape)]
        found += [block.kv_num_blocks.numpy(), block.full_kv_num_blocks.numpy()]
    return found


def dense(q: Any, k: Any, v: Any, score: str, mask: str) -> Any:
    """The formula in PyTorch, whose own kernel has no gradients on CPUs."""
    at = [torch.arange(n).reshape([n if i == d else 1 for i in range(4)])
          for d, n in enumerate((B, H, Q, K))]  # fmt: skip
    s = q @ k.transpose(-2, -1) / E**0.5
    mod, seen = SCORES[score](torch), MASKS[mask](torch)
    s = s if mod is None else mod(s, *at)
    s = s if seen is None else s.masked_fill(~seen(*at), -torch.inf)
    return torch.softmax(s, -1).nan_to_num() @ v


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_values_and_gradients_are_pytorchs(score: str, mask: str) -> None:
    mine = run(flow, ours, score, mask)
    expected = run(torch, theirs, score, mask)
    for a, b in zip(mine, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    grads = []
    for lib in (flow, torch):
        xs = [lib.tensor(x, requires_grad=True) for x in (QUERY, KEY, VALUE)]
        if lib is torch:
            out = dense(*xs, score, mask)
        else:
            mod = MASKS[mask](flow)
            block = None if mod is None else ours.create_block_mask(mod, B, H, Q, K)
            out = ours.flex_attention(*xs, score_mod=SCORES[score](flow), block_mask=block)
        out.sin().sum().backward()
        grads.append([x.grad.numpy() for x in xs])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, np.nan_to_num(b), rtol=2e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore")
def test_heads_are_shared_and_scores_are_told() -> None:
    few = KEY[:, :2], VALUE[:, :2]
    xs = [flow.tensor(x.copy()) for x in (QUERY, *few)]
    wanted = ours.AuxRequest(lse=True, max_scores=True)
    out, aux = ours.flex_attention(*xs, enable_gqa=True, scale=0.3, return_aux=wanted)
    qs: list[Any] = [torch.tensor(x.copy()) for x in (QUERY, *few)]
    expected = theirs.flex_attention(*qs, enable_gqa=True, scale=0.3, return_lse=True)
    for a, b in zip((out, aux.lse), expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-4, atol=2e-5)
    scores = QUERY @ np.repeat(few[0], 2, axis=1).swapaxes(-2, -1) * 0.3
    np.testing.assert_allclose(aux.max_scores.numpy(), scores.max(-1), rtol=1e-4)
    with pytest.raises(ShapeError, match="enable_gqa"):
        ours.flex_attention(*(flow.tensor(x.copy()) for x in (QUERY, *few)))
    mask = ours.create_block_mask(lambda b, h, q, k: q >= k, None, None, Q, Q)
    with pytest.raises(ShapeError, match="block_mask is for"):
        ours.flex_attention(*(flow.tensor(x) for x in (QUERY, KEY, VALUE)), block_mask=mask)


def test_masks_are_joined() -> None:
    causal, near = MASKS["causal"](flow), MASKS["window"](flow)
    q, k, h = np.arange(Q)[:, None], np.arange(K), np.arange(H)[:, None, None]
    seen, close = q >= k, np.abs(q - k) <= 2 + h
    both = ours.create_mask(ours.and_masks(causal, near), 1, H, Q, K)
    either = ours.create_mask(ours.or_masks(causal, near), 1, H, Q, K)
    assert both.numpy().tolist() == [(seen & close).tolist()]
    assert either.numpy().tolist() == [(seen | close).tolist()]
    block = ours.create_block_mask(near, 1, H, Q, K)
    assert block[:, 1:3].shape == (1, 2, Q, K)
    assert block[:, [0]].dense.numpy().tolist() == [close[:1].tolist()]
