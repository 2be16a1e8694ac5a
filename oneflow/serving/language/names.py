"""Names of weights in the files of each family."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from oneflow.serving.language.weights import Piece


class Names(NamedTuple):
    """Names of a family's weights.

    words, places, last, head: the tables of words and of positions, the last norm, and the table by
    which words are chosen.  piece, norm: the names of a part of a layer.
    """

    words: str
    places: str
    last: str
    head: str
    piece: Callable[[str, int], Piece]
    norm: Callable[[str, int], str]


_LLAMA = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "before": "input_layernorm",
    "between": "post_attention_layernorm",
}
_GPT2 = {
    "out": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "before": "ln_1",
    "between": "ln_2",
}


def _llama(weights: Container[str]) -> Names:
    # A base model's files lack the prefix of the model with a head.
    prefix = "model." if "model.embed_tokens.weight" in weights else ""

    def name(part: str, layer: int) -> str:
        return f"{prefix}layers.{layer}.{_LLAMA[part]}"

    return Names(
        words=f"{prefix}embed_tokens.weight",
        places="",
        last=f"{prefix}norm",
        head="lm_head.weight",
        piece=lambda part, layer: Piece(f"{name(part, layer)}.weight"),
        norm=name,
    )


def _gpt2(weights: Container[str]) -> Names:
    """Names of GPT-2, which stores matrices as (in, out), and those of q, k and v in one."""
    prefix = "transformer." if "transformer.wte.weight" in weights else ""

    def name(part: str, layer: int) -> str:
        return f"{prefix}h.{layer}.{_GPT2[part]}"

    def piece(part: str, layer: int) -> Piece:
        if part in "qkv":
            together = f"{prefix}h.{layer}.attn.c_attn.weight"
            return Piece(together, is_turned=True, section=("qkv".index(part), 3))
        return Piece(f"{name(part, layer)}.weight", is_turned=True)

    return Names(
        words=f"{prefix}wte.weight",
        places=f"{prefix}wpe.weight",
        last=f"{prefix}ln_f",
        head="lm_head.weight",
        piece=piece,
        norm=name,
    )


NAMES: dict[str, Callable[[Container[str]], Names]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
}
