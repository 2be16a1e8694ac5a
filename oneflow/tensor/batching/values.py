"""The tensors of one sample, the batched tensors behind, and how programs get and leave them."""

from __future__ import annotations

from typing import NamedTuple

from oneflow.core.dispatch import call
from oneflow.core.errors import BatchingError
from oneflow.core.op import find_op
from oneflow.core.tensor_type import TensorType
from oneflow.tensor.tensor import Tensor, raw

DIFFERENT, SAME, ERROR = "different", "same", "error"
RANDOMNESS = (ERROR, DIFFERENT, SAME)


class Level:
    """One call of `vmap`: all its tensors name it, so that calls within calls do not mix theirs.

    size: the number of samples.  randomness: "different" numbers for each sample, the "same" for
    all, or "error".
    """

    __slots__ = ("randomness", "size")

    def __init__(self, size: int, randomness: str) -> None:
        self.size, self.randomness = size, randomness


class Batched(NamedTuple):
    """The `value` of a tensor of one sample.

    whole: the tensor of all samples, which are its dim 0; the tensor itself where it is the same
    for all of them, and can be read.  is_split: whether it has that dim.
    """

    level: Level
    whole: Tensor
    is_split: bool

    @property
    def shown(self) -> str:
        """The part of a printed tensor in place of its values."""
        return f"samples={self.level.size}"

    def refuse(self, what: str, kind: TensorType) -> None:
        """Raise the error for a call that reads values of one sample."""
        if not self.is_split:
            return
        raise BatchingError(
            f"vmap: {what} needs the values of {kind}, of which each of {self.level.size} samples "
            "has its own, and they are computed all at once; flow.where(condition, a, b) chooses "
            "for each sample, and a loop over samples may read them"
        )


def sample_of(level: Level, whole: Tensor, is_split: bool = True) -> Tensor:
    """Return the tensor of one sample. It has no history at its own level.

    Example:
        a tensor `whole` of float32[8, 3] gives one of float32[3] for a level of size 8.
    """
    kind = whole.meta
    x = raw(kind.with_shape(kind.shape[1:]) if is_split else kind, None, whole._device)
    set_whole(x, level, whole, is_split)
    return x


def set_whole(x: Tensor, level: Level, whole: Tensor, is_split: bool) -> None:
    """Let `x` be the tensor of one sample of `whole`. It is read where all samples share it."""
    x.value = Batched(level, whole, is_split)
    x._array = None if is_split else whole._array


def with_front(x: Tensor, dim: int) -> Tensor:
    """Return a view of `x` whose dim 0 is its dim `dim`."""
    order = (dim, *(i for i in range(x.ndim) if i != dim))
    return turned(x, order)


def from_front(x: Tensor, dim: int) -> Tensor:
    """Return a view of `x` whose dim `dim` is its dim 0."""
    order = (*range(1, dim + 1), 0, *range(dim + 1, x.ndim))
    return turned(x, order)


def turned(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return a view of `x` with its dims in another order; `x` itself where it is the same."""
    if order == tuple(range(x.ndim)):
        return x
    made: Tensor = call(find_op("transpose"), x, dims=order)
    return made


def shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `x` in another shape; `x` itself where it is the same."""
    if x.meta.shape == shape:
        return x
    made: Tensor = call(find_op("reshape"), x, shape=shape)
    return made


def repeated(x: Tensor, size: int) -> Tensor:
    """Return a view of `x` with a new dim 0 of that size."""
    made: Tensor = call(find_op("expand"), x, shape=(size, *x.meta.shape))
    return made
