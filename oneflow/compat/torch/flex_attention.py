"""`torch.nn.attention.flex_attention`: attention whose scores and mask are functions of positions.

The functions are called once, on positions of all queries and keys at a time: `b` has the shape
(B, 1, 1, 1), `h` (1, H, 1, 1), `q_idx` (1, 1, Q, 1) and `kv_idx` (1, 1, 1, K). The mask is dense,
so its blocks save no work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import int32
from oneflow.core.errors import CallError, ShapeError
from oneflow.core.operand import Index
from oneflow.functional.creation import arange, zeros_like
from oneflow.functional.elementwise import masked_fill
from oneflow.functional.linalg.products import matmul
from oneflow.functional.nn.activation import softmax
from oneflow.functional.reduction import amax, logsumexp
from oneflow.functional.shaping import repeat_interleave
from oneflow.functional.sort_and_search import argsort, where
from oneflow.ops.cast import cast
from oneflow.tensor.tensor import Tensor

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]
FlexKernelOptions = dict[str, Any]


class AuxRequest(NamedTuple):
    """The values to return beside the result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """Values beside the result, (B, H, Q) each, of those that were asked for."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Let each query see each key."""
    found: Tensor = batch >= 0
    return found


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return a mask that lets the positions pass that all of them let."""

    def both(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        found = noop_mask(b, h, q_idx, kv_idx)
        for mask in mask_mods:
            found = found & mask(b, h, q_idx, kv_idx)
        return found

    return both


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return a mask that lets the positions pass that any of them lets."""

    def either(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        found = b < 0
        for mask in mask_mods:
            found = found | mask(b, h, q_idx, kv_idx)
        return found

    return either


def _positions(sizes: Sequence[int], device: DeviceLike) -> list[Tensor]:
    """The positions along each of (B, H, Q, K), in a shape that meets the others."""
    made = []
    for dim, size in enumerate(sizes):
        shape = [1] * 4
        shape[dim] = size
        made.append(arange(size, device=device).reshape(shape))
    return made


def create_mask(
    mod_fn: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return a mask as a bool tensor (B, H, Q, K); None stands for 1."""
    sizes = B or 1, H or 1, Q_LEN, KV_LEN
    found: Tensor = mod_fn(*_positions(sizes, device or "cpu"))
    whole: Tensor = found.expand(*sizes)
    return whole


@dataclass(eq=False)
class BlockMask:
    """A mask with facts of its blocks.

    mask_mod: the mask.  dense: as a bool tensor (B, H, Q, K).  BLOCK_SIZE: queries and keys of a
    block.
    """

    mask_mod: MaskMod
    dense: Tensor
    BLOCK_SIZE: tuple[int, int] = (128, 128)

    @property
    def seq_lengths(self) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return self.dense.meta.shape[2], self.dense.meta.shape[3]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mask."""
        return tuple(self.dense.meta.shape)

    def numel(self) -> int:
        """Return the number of elements of the mask."""
        return math.prod(self.shape)

    def _counts(self) -> Tensor:
        """The elements of each block that let pass, (B, H, blocks of queries, blocks of keys)."""
        b, h, q, k = self.shape
        rows, columns = self.BLOCK_SIZE
        above, beside = -(-q // rows), -(-k // columns)
        padded = self.dense.new_zeros(b, h, above * rows, beside * columns)
        padded[:, :, :q, :k] = self.dense
        cut = padded.reshape(b, h, above, rows, beside, columns)
        counts: Tensor = cut.int().sum((3, 5))
        return counts

    def to_dense(self) -> Tensor:
        """Return for each block, int32, whether any of its elements lets pass."""
        return _int(self._counts() > 0)

    def _is_full(self) -> Tensor:
        rows, columns = self.BLOCK_SIZE
        found: Tensor = self._counts() == rows * columns
        return found

    def _is_partial(self) -> Tensor:
        found: Tensor = (self._counts() > 0) & ~self._is_full()
        return found

    def sparsity(self) -> float:
        """Return the percentage of elements outside of the blocks that let something pass; below 0
        where blocks reach beyond the mask.
        """
        rows, columns = self.BLOCK_SIZE
        seen = int(self.to_dense().sum()) * rows * columns
        return 100.0 * (1.0 - seen / self.numel())

    @property
    def kv_num_blocks(self) -> Tensor:
        """The number of blocks of keys that are partly seen by a block of queries."""
        return _int(_int(self._is_partial()).sum(-1))

    @property
    def kv_indices(self) -> Tensor:
        """The numbers of these blocks, those that are not seen last."""
        return _first(self._is_partial())

    @property
    def full_kv_num_blocks(self) -> Tensor:
        """The number of blocks of keys that are wholly seen by a block of queries."""
        return _int(_int(self._is_full()).sum(-1))

    @property
    def full_kv_indices(self) -> Tensor:
        """The numbers of these blocks, the others last."""
        return _first(self._is_full())

    def to(self, device: DeviceLike) -> BlockMask:
        """Return the mask on another device."""
        return BlockMask(self.mask_mod, self.dense.to(device), self.BLOCK_SIZE)

    def __getitem__(self, index: Index) -> BlockMask:
        """The mask of some batches and heads."""
        taken = self.dense[index]
        if taken.ndim != 4:
            raise CallError("BlockMask: index batches and heads by slices or lists, mask[:, 2:4]")
        return BlockMask(self.mask_mod, taken, self.BLOCK_SIZE)

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"

    to_string = __repr__


def _int(x: Tensor) -> Tensor:
    return cast(x, dtype=int32)


def _first(is_taken: Tensor) -> Tensor:
    return _int(argsort(_int(is_taken), dim=-1, descending=True, stable=True))


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLike | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    **_: object,
) -> BlockMask:
    """Return the mask of Q_LEN queries and KV_LEN keys; B, H: None if it is the same for all."""
    size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    return BlockMask(mask_mod, create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device), size)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: object = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Return softmax(score_mod(query @ key^T * scale)) @ value, over keys that the mask lets pass.

    query: (B, H, Q, E).  key: (B, H, K, E).  value: (B, H, K, V).  Result: (B, H, Q, V).  scale:
    None: 1 / sqrt(E).  enable_gqa: key and value may have fewer heads, each for several of the
    query.  A query that sees no key gives zeros.  return_lse: and the log of the sums of the
    exponentials, (B, H, Q).  Raises ShapeError for heads that do not fit.

    Example::

        causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128)
        flex_attention(q, k, v, block_mask=causal)
    """
    heads, own = query.meta.shape[1], key.meta.shape[1]
    if heads != own:
        if not enable_gqa or heads % own:
            raise ShapeError(
                f"flex_attention: query {query.meta} has {heads} heads and key {key.meta} {own}; "
                "give enable_gqa=True for a multiple"
            )
        key = repeat_interleave(key, heads // own, dim=1)
        value = repeat_interleave(value, heads // own, dim=1)
    if scale is None:
        scale = 1.0 / math.sqrt(query.meta.shape[-1])
    is_half = query.dtype.np.itemsize < 4
    wide = query.float() if is_half else query
    scores = matmul(wide, (key.float() if is_half else key).transpose(-2, -1)) * scale
    sizes = [*query.meta.shape[:3], key.meta.shape[2]]
    if score_mod is not None:
        scores = score_mod(scores, *_positions(sizes, query.device))
    if block_mask is not None:
        if list(block_mask.seq_lengths) != sizes[2:]:
            raise ShapeError(
                f"flex_attention: block_mask is for {block_mask.seq_lengths} queries and keys, "
                f"there are {sizes[2:]}"
            )
        scores = masked_fill(scores, ~block_mask.dense, -math.inf)
    top = amax(scores.detach(), -1, keepdim=True)
    is_blind = top == -math.inf
    seen = where(is_blind, zeros_like(scores), scores)
    weights = masked_fill(softmax(seen, -1), is_blind, 0.0)
    out = matmul(weights.to(value.dtype) if is_half else weights, value).to(query.dtype)
    if not (return_lse or return_aux):
        return out
    lse = masked_fill(logsumexp(seen, -1), is_blind[..., 0], -math.inf)
    if return_lse:
        return out, lse
    wanted = return_aux or AuxRequest()
    scores_at_most = top[..., 0] if wanted.max_scores else None
    return out, AuxOutput(lse if wanted.lse else None, scores_at_most)
