"""Attention with several heads as a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.functional.creation import empty
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import Linear
from oneflow.nn.parameter import Parameter
from oneflow.tensor.creation_like import Kind
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

PACKED = ("in_proj_weight",)
SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class MultiheadAttention(Module):
    """Attention of `num_heads` heads, each over embed_dim / num_heads of the projected sizes.

    kdim, vdim: sizes of keys and values, embed_dim if None. dropout: rate at which weights become
    zero in training. add_bias_kv: one more learned key and value; add_zero_attn: one more of
    zeros. batch_first: tensors are (n, length, size), else (length, n, size).
    """

    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        **kind: Unpack[Kind],
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: embed_dim ({embed_dim}) must be a positive multiple of "
                f"num_heads ({num_heads})"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.head_dim = embed_dim // num_heads
        self._qkv_same_embed_dim = self.kdim == embed_dim == self.vdim

        def made(*shape: int) -> Parameter:
            return Parameter(empty(shape, **kind))

        if self._qkv_same_embed_dim:
            self.in_proj_weight = made(3 * embed_dim, embed_dim)
        else:
            for name, size in zip(SEPARATE, (embed_dim, self.kdim, self.vdim), strict=True):
                self.register_parameter(name, made(embed_dim, size))
        for name in SEPARATE if self._qkv_same_embed_dim else PACKED:
            self.register_parameter(name, None)
        self.register_parameter("in_proj_bias", made(3 * embed_dim) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, **kind)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, made(1, 1, embed_dim) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Draws new first values: weights by Xavier's rule, biases zero."""
        for name in PACKED + SEPARATE:
            weight = getattr(self, name)
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values and, if need_weights, the weights; see
        `F.multi_head_attention_forward`.
        """
        result: tuple[Tensor, Tensor | None] = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            batch_first=self.batch_first,
        )
        return result
