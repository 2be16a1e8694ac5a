"""Reductions over dims, running sums, and the positions of extremes.

`dims` is a tuple of dims (not negative); `keepdim` leaves them in place with size 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from oneflow.core.dtype import DType, bool_, float32, int64
from oneflow.core.errors import PositionError, ShapeError
from oneflow.core.op import Op, declare, row
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import PARTIAL, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, cast, compare, shape, slicing, unary, where
from oneflow.ops.checks import ANY, BOOL, NUMBER, require, require_dim

if TYPE_CHECKING:
    from oneflow.core.precision import Precision

Dims = tuple[int, ...]
Rule = Callable[[Tensor, Tensor, Tensor, Dims, bool], Tensor]
"""d_x of (d_out, x, out, dims, keepdim)."""


class Reduction(Protocol):
    def __call__(self, x: Tensor, /, *, dims: Dims, keepdim: bool = False) -> Tensor: ...


class Position(Protocol):
    def __call__(self, x: Tensor, /, *, dim: int, keepdim: bool = False) -> Tensor: ...


def _reduced_shape(x: Operand, dims: Dims, keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if i in dims else n for i, n in enumerate(x.shape))
    return tuple(n for i, n in enumerate(x.shape) if i not in dims)


def _check_dims(name: str, x: Operand, dims: Dims) -> None:
    for dim in dims:
        require_dim(name, x, dim)
    if len(set(dims)) != len(dims):
        raise ShapeError(f"{name}: a dim appears twice in {dims}")


def kept_signatures(x: TensorType, dims: Dims, keepdim: bool) -> list[SbpSignature]:
    """Split along a dim that the reduction keeps."""
    result = []
    for i in range(x.ndim):
        if i not in dims:
            gone = 0 if keepdim else sum(dim < i for dim in dims)
            result.append(SbpSignature((Split(i),), (Split(i - gone),)))
    return result


def _reduction(
    name: str,
    rule: Rule | None = None,
    *,
    accepts: str = NUMBER,
    result: DType | None = None,
    is_sum: bool = False,
    has_identity: bool = True,
    written: Callable[..., Tensor] | None = None,
    precision: Precision = "follow",
    widens: tuple[str, ...] | None = None,
) -> Reduction:
    """Declares one row of the table. has_identity: an empty reduction has a value."""

    def infer(x: Operand, *, dims: Dims, keepdim: bool = False) -> TensorType:
        require(name, x, accepts)
        _check_dims(name, x, dims)
        if not has_identity and any(x.shape[i] == 0 for i in dims):
            raise ShapeError(f"{name} of no elements has no value: {x} over dims {dims}")
        return TensorType(_reduced_shape(x, dims, keepdim), result or x.dtype)

    def sbp(x: TensorType, *, dims: Dims, keepdim: bool) -> list[SbpSignature]:
        listed = kept_signatures(x, dims, keepdim)
        if is_sum:
            listed += [SbpSignature((Split(i),), (PARTIAL,)) for i in dims]
            listed.append(signature("P -> P"))
        return listed

    def flops(x: TensorType, **_: object) -> int:
        return x.numel

    doc = f"{name[7:]} over dims."
    if rule is None:
        return row(name, infer, sbp=sbp, flops=flops, doc=doc, precision=precision)
    known = rule

    def grad(d: Tensor, x: Tensor, out: Tensor, *, dims: Dims, keepdim: bool) -> Gradients:
        return (known(d, x, out, dims, keepdim),)

    return row(
        name,
        infer,
        sbp=sbp,
        flops=flops,
        grad=grad,
        written=written,
        doc=doc,
        precision=precision,
        widens=widens,
    )


def _kept(t: Tensor, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """A reduced tensor with its dims back as size 1, so that it broadcasts against x."""
    return t if keepdim else shape.reshape(t, shape=_reduced_shape(x.meta, dims, True))


def _sum_grad(d: Tensor, x: Tensor, out: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    if d.meta.shape:  # a number broadcasts as it is
        d = _kept(d, x, dims, keepdim)
    return shape.expand(d, shape=x.meta.shape)


def _extreme_grad(d: Tensor, x: Tensor, out: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """Equal extremes share the gradient evenly, and NaNs do, which are the extreme where they
    are.
    """
    is_other = compare.ne(x, _kept(out, x, dims, keepdim))
    if x.meta.dtype.is_floating_point:
        is_other = compare.logical_and(is_other, compare.eq(x, x))
    wide = float32 if x.meta.dtype.bytes == 2 else x.meta.dtype
    count = reduce_sum(cast.cast(unary.logical_not(is_other), dtype=wide), dims=dims, keepdim=True)
    share = binary.div(cast.cast(_kept(d, x, dims, keepdim), dtype=wide), count)
    share = shape.expand(cast.cast(share, dtype=x.meta.dtype), shape=x.meta.shape)
    d_x: Tensor = where.masked_fill(share, is_other, value=0)
    return d_x


def _prod_grad(d: Tensor, x: Tensor, out: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """Product of the others: through the product of the nonzero elements, so that zeros divide
    nothing."""
    is_zero = compare.scalar_compare(x, value=0, kind="eq")
    nonzero = where.masked_fill(x, is_zero, value=1)
    product = reduce_prod(nonzero, dims=dims, keepdim=True)
    zeros = reduce_sum(cast.cast(is_zero, dtype=x.meta.dtype), dims=dims, keepdim=True)
    others_zeros = binary.sub(zeros, cast.cast(is_zero, dtype=x.meta.dtype))
    has_zero = compare.scalar_compare(others_zeros, value=0, kind="ne")
    # With a zero among the others the product is 0, or NaN where an infinity or a NaN is, too.
    none = shape.expand(binary.mul(product, unary.full_like(product, value=0)), shape=x.meta.shape)
    others = where.where(has_zero, none, binary.div(product, nonzero))
    d_x: Tensor = binary.mul(_kept(d, x, dims, keepdim), others)
    return d_x


def _written_prod(x: Tensor, *, dims: Dims, keepdim: bool) -> Tensor:
    """Products of pairs, again and again: nothing is divided, so zeros have derivatives of every
    order.
    """
    own = x.meta.shape
    kept = tuple(i for i in range(x.ndim) if i not in dims)
    size = math.prod(own[i] for i in dims)
    lead = tuple(own[i] for i in kept)
    rows = shape.reshape(shape.transpose(x, dims=(*kept, *dims)), shape=(*lead, size))
    power = 1 << max(size - 1, 0).bit_length()
    none = (0,) * len(kept)
    rows = shape.pad(rows, pads=(*none, *none, 0, power - size), value=1)
    while power > 1:
        power //= 2
        first, second = (
            slicing.slice(
                rows, starts=(*none, start), stops=(*lead, start + power), steps=(1,) * rows.ndim
            )
            for start in (0, power)
        )
        rows = binary.mul(first, second)
    return shape.reshape(rows, shape=_reduced_shape(x.meta, dims, keepdim))


reduce_sum = _reduction("reduce_sum", _sum_grad, is_sum=True, precision="keep")
reduce_prod = _reduction(
    "reduce_prod", _prod_grad, written=_written_prod, precision="keep", widens=("cpu", "cuda")
)
reduce_max = _reduction("reduce_max", _extreme_grad, accepts=ANY, has_identity=False)
reduce_min = _reduction("reduce_min", _extreme_grad, accepts=ANY, has_identity=False)
reduce_any = _reduction("reduce_any", accepts=BOOL, result=bool_)
reduce_all = _reduction("reduce_all", accepts=BOOL, result=bool_)


def sum_to_shape(x: Tensor, target: tuple[int, ...]) -> Tensor:
    """Sums `x` over the dims along which `target` was broadcast to it; `x` itself if the shapes are
    equal."""
    own = x.meta.shape
    if own == target:
        return x
    added = len(own) - len(target)
    grown = tuple(i for i, n in enumerate(own) if i < added or (target[i - added] == 1 and n != 1))
    if grown:
        x = reduce_sum(x, dims=grown, keepdim=False)
    return x if x.meta.shape == target else shape.reshape(x, shape=target)


# ---- positions -----------------------------------------------------------------------------------


def _position(name: str) -> Position:
    def infer(x: Operand, *, dim: int, keepdim: bool = False) -> TensorType:
        require(name, x, ANY)
        require_dim(name, x, dim)
        if x.shape[dim] == 0:
            raise PositionError(f"{name}: dim {dim} of {x} is empty and has no extreme")
        return TensorType(_reduced_shape(x, (dim,), keepdim), int64)

    def sbp(x: TensorType, *, dim: int, keepdim: bool) -> list[SbpSignature]:
        return kept_signatures(x, (dim,), keepdim)

    return row(
        name,
        infer,
        sbp=sbp,
        doc=f"int64: the first {name} along `dim`.",
        precision="follow",
    )


argmax = _position("argmax")
argmin = _position("argmin")


# ---- running sums and products -------------------------------------------------------------------


class Cumsum(Op):
    """Running sums along `dim`."""

    name = "cumsum"
    precision = "keep"

    @staticmethod
    def infer(x: Operand, *, dim: int) -> TensorType:
        require("cumsum", x, NUMBER)
        require_dim("cumsum", x, dim)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dim: int) -> list[SbpSignature]:
        return [*kept_signatures(x, (dim,), True), signature("P -> P")]

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dim: int) -> Gradients:
        return (_reversed_cumsum(d, dim),)


cumsum = declare(Cumsum)


class Cumprod(Op):
    """Running products along `dim`."""

    name = "cumprod"
    precision = "keep"

    @staticmethod
    def infer(x: Operand, *, dim: int) -> TensorType:
        require("cumprod", x, NUMBER)
        require_dim("cumprod", x, dim)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dim: int) -> list[SbpSignature]:
        return kept_signatures(x, (dim,), True)

    @staticmethod
    def written(x: Tensor, *, dim: int) -> Tensor:
        """Each step multiplies by the products that end a power of two before."""
        y, n, step = x, x.meta.shape[dim], 1
        whole = x.meta.shape
        while step < n:
            stops = tuple(m - step * (i == dim) for i, m in enumerate(whole))
            ones = (1,) * len(whole)
            before = slicing.slice(y, starts=(0,) * len(whole), stops=stops, steps=ones)
            pads = tuple(step * (i == 2 * dim) for i in range(2 * len(whole)))
            y = binary.mul(y, shape.pad(before, pads=pads, value=1))
            step *= 2
        return y

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dim: int) -> Gradients:
        """Sums over the products that an element is a factor of, divided by it. The first zero of a
        row has that sum with itself left out, up to the second zero; elements behind it have none.
        """
        if x.meta.shape[dim] == 1:
            return (d,)  # also of an infinity
        is_zero = compare.scalar_compare(x, value=0, kind="eq")
        zeros = cumsum(_as(is_zero, x), dim=dim)
        none = compare.scalar_compare(zeros, value=0, kind="ne")
        once = compare.scalar_compare(zeros, value=1, kind="eq")
        is_first = compare.logical_and(is_zero, once)
        others = cumprod(where.masked_fill(x, is_first, value=1), dim=dim)
        beyond = unary.logical_not(once)
        after = _reversed_cumsum(where.masked_fill(binary.mul(d, others), beyond, value=0), dim)
        before = _reversed_cumsum(where.masked_fill(binary.mul(d, out), none, value=0), dim)
        slope = binary.div(before, where.masked_fill(x, is_zero, value=1))
        kept = where.masked_fill(slope, none, value=0)
        return (where.where(is_first, after, kept),)


cumprod = declare(Cumprod)


def _as(mask: Tensor, x: Tensor) -> Tensor:
    return cast.cast(mask, dtype=x.meta.dtype)


def _reversed_cumsum(d: Tensor, dim: int) -> Tensor:
    return shape.flip(cumsum(shape.flip(d, dims=(dim,)), dim=dim), dims=(dim,))
