"""Attention with several heads and the transformer's layers, against torch in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import ShapeError
from tests.parity.values import compare, to_flow

pytestmark = [  # of torch, about masks of two dtypes and its own fast path
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]
LENGTH, SOURCES, N, SIZE, HEADS = 3, 5, 2, 8, 2
CAUSAL = torch.triu(torch.full((LENGTH, SOURCES), -math.inf, dtype=torch.float64), 1)
PADDING = torch.tensor([[False] * SOURCES, [False] * 3 + [True] * 2])
BLIND = torch.tensor([[False] * SOURCES, [True] * SOURCES, [True] * 4 + [False]])
PER_HEAD = torch.linspace(-1, 1, N * HEADS * LENGTH * SOURCES, dtype=torch.float64)
PER_HEAD = PER_HEAD.reshape(N * HEADS, LENGTH, SOURCES)

LAYERS: list[dict[str, Any]] = [
    {},
    {"bias": False, "batch_first": True},
    {"add_bias_kv": True, "kdim": 6, "vdim": 7},
    {"add_zero_attn": True, "add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True, "kdim": 6},
]
CALLS: list[dict[str, Any]] = [
    {},
    {"need_weights": False},
    {"average_attn_weights": False, "key_padding_mask": PADDING},
    {"need_weights": False, "key_padding_mask": PADDING, "attn_mask": CAUSAL},
    {"need_weights": False, "attn_mask": PER_HEAD},
    {"need_weights": False, "attn_mask": BLIND},
    {"need_weights": False, "attn_mask": CAUSAL, "is_causal": True},
    {"attn_mask": CAUSAL, "is_causal": True, "key_padding_mask": PADDING.double()},
]


def twins(kind: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Torch's layer and ours with its parameters, which must have the same names both ways."""
    theirs = getattr(torch.nn, kind)(*args, **options).double()
    with torch.no_grad():
        for i, parameter in enumerate(theirs.parameters()):
            values = torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64)
            parameter.copy_(torch.sin(7 * values + i).reshape(parameter.shape) / 2)
    ours = getattr(nn, kind)(*args, **options).double()
    ours.load_state_dict(to_flow(theirs.state_dict()))
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    return theirs, ours


def agree(theirs: Any, ours: Any, inputs: list[Any], **call: Any) -> None:
    """The same outputs, and the same gradients by inputs and parameters."""
    leaves = [x.requires_grad_() for x in inputs]
    mine = to_flow([*leaves])
    wanted, got = theirs(*leaves, **call), ours(*mine, **to_flow(call))
    compare(wanted, got, where="value")
    if isinstance(wanted, tuple):
        wanted, got = wanted[0], got[0]
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    for a, b in zip(leaves, mine, strict=True):
        compare(a.grad, b.grad, where="gradient of an input")
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        compare(a.grad, b.grad, where=f"gradient of {name}")


def drawn(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.tensor(rng.normal(size=shape))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call))
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: " ".join(layer))
def test_attention_agrees(layer: Any, call: Any, rng: np.random.Generator) -> None:
    theirs, ours = twins("MultiheadAttention", SIZE, HEADS, **layer)
    sizes = (SIZE, layer.get("kdim", SIZE), layer.get("vdim", SIZE))
    inputs = [
        drawn(rng, n, N, size) for n, size in zip((LENGTH, SOURCES, SOURCES), sizes, strict=True)
    ]
    if layer.get("batch_first"):
        inputs = [x.transpose(0, 1).contiguous() for x in inputs]
    agree(theirs, ours, inputs, **call)


def test_attention_without_a_batch_and_to_itself(rng: np.random.Generator) -> None:
    theirs, ours = twins("MultiheadAttention", SIZE, HEADS)
    inputs = [drawn(rng, LENGTH, SIZE), drawn(rng, SOURCES, SIZE), drawn(rng, SOURCES, SIZE)]
    agree(theirs, ours, inputs, key_padding_mask=PADDING[1])
    x = drawn(rng, LENGTH, N, SIZE)
    wanted, got = theirs(x, x, x), ours(*[to_flow(x)] * 3)
    compare(wanted, got, where="to itself")


def test_given_keys_take_the_place_of_projected_ones(rng: np.random.Generator) -> None:
    theirs, _ = twins("MultiheadAttention", SIZE, HEADS)
    x = [drawn(rng, n, N, SIZE) for n in (LENGTH, SOURCES, SOURCES)]
    given = [drawn(rng, N * HEADS, 4, SIZE // HEADS) for _ in range(2)]
    parts = (theirs.in_proj_weight, theirs.in_proj_bias, None, None, True, 0.0)
    last = (theirs.out_proj.weight, theirs.out_proj.bias)
    args: Any = (*x, SIZE, HEADS, *parts, *last)
    more: Any = {"static_k": given[0], "static_v": given[1]}
    wanted = torch.nn.functional.multi_head_attention_forward(*args, **more)
    got = nn.functional.multi_head_attention_forward(*to_flow(args), **to_flow(more))
    compare(wanted, got, where="value")


def test_a_row_that_sees_nothing_gives_zeros(rng: np.random.Generator) -> None:
    q, k, v = (drawn(rng, 1, n, 4) for n in (3, 5, 5))
    for mask in (~BLIND, torch.zeros(3, 5).double().masked_fill(BLIND, -math.inf)):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        got = nn.functional.scaled_dot_product_attention(*to_flow((q, k, v, mask)))
        assert got[0, 1].tolist() == [0.0] * 4
        compare(wanted, got, where="value")


def test_dropout_of_weights_is_seen_in_training_only(rng: np.random.Generator) -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS, dropout=0.5)
    x = to_flow(drawn(rng, 40, N, SIZE).float())
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert 0.4 < (weights == 0).float().mean().item() < 0.6
    _, weights = layer.eval()(x, x, x)
    np.testing.assert_allclose(weights.sum(-1).numpy(), 1, rtol=1e-5)


def test_mistakes_are_refused() -> None:
    layer, x = nn.MultiheadAttention(SIZE, HEADS), flow.ones(LENGTH, N, SIZE)
    with pytest.raises(ValueError, match="is_causal needs attn_mask"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(ShapeError, match=r"attn_mask .* must have the shape \(3, 3\) or"):
        layer(x, x, x, attn_mask=flow.ones(2, 3))
    with pytest.raises(ValueError, match="bools or floating-point"):
        layer(x, x, x, key_padding_mask=flow.ones(N, LENGTH, dtype=flow.int64))
    with pytest.raises(ShapeError, match="last dim of 8"):
        layer(x[..., :4], x, x)
    with pytest.raises(ValueError, match="multiple"):
        nn.MultiheadAttention(SIZE, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_first": True, "batch_first": True, "activation": "gelu"},
        {"norm_first": False, "bias": False, "layer_norm_eps": 1e-3},
    ],
)
def test_a_whole_transformer_agrees(options: Any, rng: np.random.Generator) -> None:
    sizes = (SIZE, HEADS, 2, 2, 6, 0.0)
    theirs, ours = twins("Transformer", *sizes, **options)
    batch_first = options.get("batch_first", False)
    shapes = [(N, n, SIZE) if batch_first else (n, N, SIZE) for n in (SOURCES, LENGTH)]
    causal = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    found = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=flow.float64)
    compare(causal, found, where="mask")
    inputs = [drawn(rng, *shape) for shape in shapes]
    agree(
        theirs,
        ours,
        inputs,
        tgt_mask=causal,
        tgt_is_causal=True,
        src_key_padding_mask=PADDING,
        memory_key_padding_mask=PADDING,
    )


def test_layers_take_any_activation_and_a_stack_copies_them(rng: np.random.Generator) -> None:
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 6, 0.0, activation=flow.tanh)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(SIZE), enable_nested_tensor=False)
    theirs = torch.nn.TransformerEncoderLayer(SIZE, HEADS, 6, 0.0, activation=torch.tanh)
    twin = torch.nn.TransformerEncoder(theirs, 2, torch.nn.LayerNorm(SIZE)).double()
    stack.double().load_state_dict(to_flow(twin.state_dict()))
    agree(twin, stack, [drawn(rng, LENGTH, N, SIZE)])
    with pytest.raises(ValueError, match="relu/gelu"):
        nn.TransformerDecoderLayer(SIZE, HEADS, activation="tanh")
