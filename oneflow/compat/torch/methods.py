"""Methods and functions of PyTorch that few scripts call: dtypes that meet, questions, filling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.dtype import DType, DTypeLike, category, dtype_of
from oneflow.core.dtype import promote as promoted_dtype
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.no_effect import without_effect
from oneflow.core.operand import Number, ShapeLike, TensorLike
from oneflow.functional import arithmetic, creation, methods, shaping, strides
from oneflow.functional.from_data import tensor
from oneflow.functional.promotion import get_default_dtype, meet, with_number
from oneflow.functional.random_state import Generator
from oneflow.ops import unary
from oneflow.tensor.creation_like import Where
from oneflow.tensor.inplace import check_writable, overwrite
from oneflow.tensor.tensor import Tensor, wrap
from oneflow.tensor.views import view_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# ---- dtypes --------------------------------------------------------------------------------------


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DType:
    """The dtype in which tensors of two dtypes meet."""
    return promoted_dtype(dtype_of(type1), dtype_of(type2))


def can_cast(from_: DTypeLike, to: DTypeLike) -> bool:
    """Whether a result of one dtype may be written into a tensor of another."""
    return category(dtype_of(from_)) <= category(dtype_of(to))


def result_type(tensor1: TensorLike, tensor2: TensorLike) -> DType:
    """The dtype of the sum of two tensors or numbers."""
    if isinstance(tensor1, Tensor) and isinstance(tensor2, Tensor):
        return meet(tensor1, tensor2)
    if isinstance(tensor1, Tensor) and isinstance(tensor2, bool | int | float | complex):
        return with_number(tensor1.meta.dtype, tensor2)
    if isinstance(tensor2, Tensor):
        return result_type(tensor2, tensor1)
    return meet(tensor(tensor1), tensor(tensor2))


def is_signed(input: Tensor) -> bool:
    """Has the tensor's dtype negative numbers?"""
    return bool(input.meta.dtype.is_signed)


# ---- new tensors ---------------------------------------------------------------------------------


def scalar_tensor(
    s: Number,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """A tensor without dims, of the default dtype if none is given."""
    wanted = dtype or get_default_dtype()
    return creation.full((), s, dtype=wanted, requires_grad=requires_grad, **where)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Uninitialised memory, of which element (i, j, ...) lies i * stride[0] + j * stride[1] + ...
    elements from the beginning.
    """
    if len(size) != len(stride):
        raise ShapeError(f"empty_strided: {len(size)} sizes, but {len(stride)} strides")
    length = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    memory = creation.empty((length,), dtype=dtype or get_default_dtype(), **where)
    made = strides.as_strided(memory, size, stride).detach()
    made.requires_grad = requires_grad
    return made


# ---- questions -----------------------------------------------------------------------------------


def is_inference(input: Tensor) -> bool:
    """False: no tensor is closed to autograd for ever."""
    return False


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Do both tensors show the same memory in the same way?"""
    a, b = self._array, tensor._array
    return (a.shape, a.strides, a.dtype) == (
        b.shape,
        b.strides,
        b.dtype,
    ) and self.data_ptr() == tensor.data_ptr()


def is_shared(self: Tensor) -> bool:
    """False: see `share_memory_`."""
    return False


def share_memory_(self: Tensor) -> Tensor:
    """The tensor itself: other processes get copies."""
    without_effect("Tensor.share_memory_", "tensors are copied to other processes")
    return self


def record_stream(self: Tensor, stream: object) -> None:
    """Nothing: memory is freed in the order in which the device works."""


# ---- in place ------------------------------------------------------------------------------------


def contiguous_(self: Tensor) -> Tensor:
    """Lays the elements out row by row."""
    if not self.is_contiguous():
        self.data = self.contiguous().detach()
    return self


def detach_(self: Tensor) -> Tensor:
    """Forgets the tensor's history; that of the tensor whose view it is stays."""
    view = view_of(self)
    if view is not None:
        view.is_detached = True
    self._grad_fn, self._requires_grad = None, False
    return self


def fill_diagonal_(self: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """Writes a number to the elements with equal indices; wrap: in a tall matrix again and again.

    Raises ShapeError below 2 dims, and for more than 2 that are not equal.
    """
    shape = tuple(self.shape)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"fill_diagonal_: no diagonal in {self.meta}")
    mask = np.zeros(shape, np.bool_)
    np.fill_diagonal(mask, True, wrap=wrap)
    return self.masked_fill_(tensor(mask, device=self.device), fill_value)


def apply_(self: Tensor, callable: Callable[[float], float]) -> Tensor:
    """Replace each element by the function of it, one after another: slow."""
    return _elementwise(self, callable, self)


def map_(self: Tensor, other: Tensor, callable: Callable[[float, float], float]) -> Tensor:
    """Replace each element by the function of it and of that of `other`, broadcast."""
    return _elementwise(self, callable, self, other)


def _elementwise(x: Tensor, function: Callable[..., float], *inputs: Tensor) -> Tensor:
    check_writable(x)
    arrays = np.broadcast_arrays(*(t.detach().numpy() for t in inputs))
    flat = [function(*values) for values in zip(*(a.ravel().tolist() for a in arrays), strict=True)]
    made = np.array(flat, dtype=x.meta.dtype.np).reshape(tuple(x.shape))
    return overwrite(x, wrap(made))


def log_normal_(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with exp of normally distributed numbers."""
    if not std > 0:
        raise ArgumentError(f"log_normal_ expects std > 0.0, but found std={std}")
    drawn = creation.randn_like(self, generator=generator)
    return overwrite(self, unary.exp(arithmetic.add(arithmetic.mul(drawn, std), mean)))


def cauchy_(
    self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with numbers of the Cauchy distribution."""
    if not sigma > 0:
        raise ArgumentError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    drawn = creation.rand_like(self, generator=generator)
    angle = arithmetic.mul(arithmetic.sub(drawn, 0.5), float(np.pi))
    return overwrite(self, arithmetic.add(arithmetic.mul(unary.tan(angle), sigma), median))


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with numbers of trials up to the first success, each of probability p."""
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: p must be between 0 and 1, got {p}")
    drawn = creation.rand_like(self.float(), generator=generator)
    trials = arithmetic.div(unary.log1p(unary.neg(drawn)), float(np.log1p(-p)))
    return overwrite(self, arithmetic.add(unary.floor(trials), 1.0))


def resize_(self: Tensor, *sizes: ShapeLike) -> Tensor:
    """Gives the tensor another shape: the elements stay in their order; more are uninitialised."""
    shape = creation.shape_of(sizes)
    check_writable(self)
    old = self.detach().reshape((-1,))
    new = creation.empty(shape, dtype=self.meta.dtype, device=self.device)
    count = min(old.numel(), new.numel())
    new.view(-1)[:count] = old[:count]
    self.data = new
    return self


def resize_as_(self: Tensor, other: Tensor) -> Tensor:
    """`resize_` to the shape of another tensor."""
    return resize_(self, tuple(other.shape))


def set_(self: Tensor, source: Tensor | None = None) -> Tensor:
    """Shows the memory of another tensor, with its shape; without one: none."""
    self.data = creation.empty((0,), dtype=self.meta.dtype) if source is None else source
    return self


def offload(self: Tensor) -> None:
    """Nothing: tensors stay where they are."""
    without_effect("Tensor.offload", "tensors stay in the memory of their device")


def load(self: Tensor) -> None:
    """Nothing: see `offload`."""


transpose_ = methods.reshaping(shaping.transpose)
t_ = methods.reshaping(shaping.t)
