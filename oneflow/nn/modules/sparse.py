"""Look-up tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError
from oneflow.functional.creation import empty
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PaddingError(ArgumentError, AssertionError):
    """A padding_idx that no row of the table has."""


class Options(TypedDict, total=False):
    """The keywords of an embedding that is made of a given table."""

    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool
    device: DeviceLike | None
    dtype: DTypeLike | None


class Embedding(Module):
    """Indices of any shape -> rows of weight (num_embeddings, embedding_dim), standard normal at
    first.

    padding_idx: this row starts as zeros and never changes.  max_norm, norm_type: rows that are
    read are first scaled down to this norm, in place.  scale_grad_by_freq: gradients are divided by
    how often a row was read.  sparse is accepted and changes nothing.  _weight: the table to start
    with.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise PaddingError(
                    f"Padding_idx must be within num_embeddings: padding_idx is {padding_idx}, "
                    f"num_embeddings {num_embeddings}"
                )
            padding_idx %= num_embeddings
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        shape = (num_embeddings, embedding_dim)
        if _weight is None:
            self.weight = Parameter(empty(shape, device=device, dtype=dtype))
            self.reset_parameters()
            return
        if tuple(_weight.shape) != shape:
            raise ArgumentError(
                "Shape of weight does not match num_embeddings and embedding_dim: "
                f"{_weight.meta}, {shape}"
            )
        self.weight = Parameter(_weight)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        **options: Unpack[Options],
    ) -> Embedding:
        """A layer over a given table; freeze: it is not to be learned."""
        rows, columns = embeddings.shape
        made = cls(rows, columns, padding_idx, _weight=embeddings, **options)
        made.weight.requires_grad = not freeze
        return made

    def reset_parameters(self) -> None:
        """Draws new first values."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(
            indices,
            self.weight,
            padding_idx=self.padding_idx,
            max_norm=self.max_norm,
            norm_type=self.norm_type,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text if self.max_norm is None else f"{text}, max_norm={self.max_norm}"


class EmbeddingBag(Module):
    """Bags of indices -> the sum, mean or maximum of their rows of weight.

    See `F.embedding_bag` for bags, modes and the other options.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        table = Embedding(
            num_embeddings, embedding_dim, padding_idx, _weight=_weight, device=device, dtype=dtype
        )
        self.weight, self.padding_idx = table.weight, table.padding_idx
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
