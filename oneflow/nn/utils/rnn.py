"""Sequences of different lengths: padded to one tensor, or packed without padding.

A packed sequence holds the first elements of all sequences, then the second ones, and so on, the
longest sequence first; recurrent layers take it and compute nothing beyond the end of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.concat_split import cat, narrow, stack
from oneflow.functional.creation import full
from oneflow.functional.from_data import tensor
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.shaping import reshape, transpose
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor, needs_data

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences of different lengths without padding.

    data: the elements; batch_sizes: number of sequences that have a first, second, ... element.
    sorted_indices: the sequences, longest first; unsorted_indices: where each stands there; None
    where the sequences came sorted.
    """

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        made: PackedSequence = super().__new__(
            cls, data, batch_sizes, sorted_indices, unsorted_indices
        )
        return made

    def _with(self, change: Callable[[Tensor], Tensor]) -> PackedSequence:
        return type(self)(
            change(self.data), self.batch_sizes, self.sorted_indices, self.unsorted_indices
        )

    def to(self, where: Device | DType | str, copy: bool = False) -> PackedSequence:
        """The same sequences on another device or in another dtype."""
        return self._with(lambda x: x.to(where, copy=copy))

    def cuda(self) -> PackedSequence:
        """The same sequences on this rank's GPU."""
        return self.to("cuda")

    def cpu(self) -> PackedSequence:
        """The same sequences on the CPU."""
        return self.to("cpu")

    def double(self) -> PackedSequence:
        """The same sequences in float64."""
        return self._with(lambda x: x.double())

    def float(self) -> PackedSequence:
        """The same sequences in float32."""
        return self._with(lambda x: x.float())

    def half(self) -> PackedSequence:
        """The same sequences in float16."""
        return self._with(lambda x: x.half())

    def long(self) -> PackedSequence:
        """The same sequences in int64."""
        return self._with(lambda x: x.long())

    @property
    def is_cuda(self) -> bool:
        """Whether the elements are on a GPU."""
        return bool(self.data.is_cuda)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes an order of 0 .. n - 1; None for None."""
    if permutation is None:
        return None
    return tensor(np.argsort(permutation.numpy()), device=permutation.device)


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Pack sequences (length, n, ...), or (n, length, ...) if batch_first, of the given lengths.

    enforce_sorted: the lengths must fall; False: they are sorted here. Raises ShapeError.
    """
    if isinstance(lengths, Tensor):
        needs_data(lengths, "a tensor of lengths", "give numbers made outside of build()")
    sizes = np.asarray(lengths.numpy() if isinstance(lengths, Tensor) else lengths, np.int64)
    x: Tensor = transpose(input, 0, 1) if batch_first else input
    if sizes.shape != (x.shape[1],) or sizes.min(initial=1) < 1 or sizes.max() > x.shape[0]:
        raise ShapeError(
            f"pack_padded_sequence: {x.shape[1]} sequences need as many lengths of 1 .. "
            f"{x.shape[0]}, got {sizes.tolist()}"
        )
    order = None
    if not enforce_sorted:
        sorting = np.argsort(-sizes, kind="stable")
        sizes = sizes[sorting]
        order = tensor(sorting, device=x.device)
        x = index_select(x, 1, order)
    elif (np.diff(sizes) > 0).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
            "You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence"
        )
    steps = np.arange(sizes[0])
    has = steps[:, None] < sizes[None, :]
    flat = reshape(x, (-1, *x.shape[2:]))
    chosen = tensor(np.flatnonzero(has), device=x.device)
    return PackedSequence(index_select(flat, 0, chosen), tensor(has.sum(1)), order)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(padded sequences in their first order, their lengths).  total_length: pad to this one."""
    counts = sequence.batch_sizes.numpy()
    steps = len(counts) if total_length is None else total_length
    if steps < len(counts):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total_length} and max sequence length being {len(counts)}"
        )
    data = sequence.data
    blank = full((1, *data.shape[1:]), padding_value, dtype=data.dtype, **layout_of(data))
    places = np.full((steps, counts[0]), len(data))
    has = np.arange(counts[0])[None, :] < counts[:, None]
    places[: len(counts)][has] = np.arange(len(data))
    lengths = has.sum(0)
    if sequence.unsorted_indices is not None:
        first = sequence.unsorted_indices.numpy()
        places, lengths = places[:, first], lengths[first]
    flat = index_select(cat([data, blank], 0), 0, tensor(places.reshape(-1), device=data.device))
    padded: Tensor = reshape(flat, (steps, int(counts[0]), *data.shape[1:]))
    return (transpose(padded, 0, 1) if batch_first else padded), tensor(lengths)


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences (length, ...) as one tensor (length, n, ...); (n, length, ...) if batch_first."""
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"padding_side should be 'right' or 'left', got {padding_side!r}")
    if not len(sequences):
        raise ArgumentError("pad_sequence: received an empty list of sequences")
    longest = max(len(s) for s in sequences)
    rows = []
    for sequence in sequences:
        short = (longest - len(sequence), *sequence.shape[1:])
        blank = full(short, padding_value, dtype=sequence.dtype, **layout_of(sequence))
        parts = [sequence, blank] if padding_side == "right" else [blank, sequence]
        rows.append(cat(parts, 0) if short[0] else sequence)
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences that `pad_sequence` put together."""
    x: Tensor = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [narrow(x[i], 0, 0, int(n)) for i, n in enumerate(sizes)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of sequences (length, ...)."""
    lengths = [len(s) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that `pack_sequence` put together."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
