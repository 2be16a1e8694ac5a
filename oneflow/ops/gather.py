"""Reading and writing by index tensors (int32 or int64), and one-hot codes.

`gather` replaces a dim by the index's dims (embeddings, index_select); `dim_gather` and
`dim_scatter*` choose one position along a dim for each element.
"""

from __future__ import annotations

from oneflow.core.dtype import DType, bool_, int32, int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.expression import Expression, scalar, symbol, where
from oneflow.core.op import Box, Boxes, Op, declare
from oneflow.core.operand import Attrs, Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import unary
from oneflow.ops.checks import require_dim, require_same_dtype
from oneflow.ops.formulated import Formulated

_INDEX = symbol("index")


def _check_index(name: str, index: Operand) -> None:
    if index.dtype not in (int32, int64):
        raise DTypeError(f"{name}: the index must be int32 or int64, but it is {index}; cast it")


def _along_dim(x: TensorType, *_: TensorType, dim: int, **__: object) -> dict[int, range]:
    """The positions of `dim`, which the second operand holds."""
    return {1: range(x.shape[dim])}


def _first_position(attrs: Attrs, box: Box) -> Attrs:
    """The attrs of a rank with the part `box` of x: `offset` if it does not hold all of the dim."""
    dim = attrs["dim"]
    if box.shape[dim] == attrs.get("size"):  # whole here: an index outside is an error
        return attrs
    return {**attrs, "offset": box.starts[dim]}


class Gather(Op):
    """out[..., *i, ...] = x[..., index[*i], ...], where *i stands in the place of dim `dim` of x.

    An index outside the dim raises IndexError. offset: set on a shard of `dim`: its first position;
    indices that lie on other shards then give zeros.
    """

    name = "gather"
    picks = True
    precision = "follow"
    positions = staticmethod(_along_dim)

    @staticmethod
    def infer(
        x: Operand,
        index: Operand,
        *,
        dim: int,
        size: int | None = None,
    ) -> TensorType:
        _check_index("gather", index)
        require_dim("gather", x, dim)
        return x.meta.with_shape((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))

    @staticmethod
    def sbp(x: TensorType, index: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        listed = [SbpSignature((BROADCAST, Split(i)), (Split(dim + i),)) for i in range(index.ndim)]
        for i in range(x.ndim):
            if i != dim:
                moved = i if i < dim else i + index.ndim - 1
                listed.append(SbpSignature((Split(i), BROADCAST), (Split(moved),)))
        if x.dtype is not bool_:
            listed.append(SbpSignature((Split(dim), BROADCAST), (PARTIAL,)))
            listed.append(signature("P B -> P"))
        return listed

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _first_position(attrs, in_boxes[0])

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, index: Tensor, out: Tensor, *, dim: int, **_: object
    ) -> Gradients:
        size = x.meta.shape[dim]
        return (lambda: gather_grad(d, index, dim=dim, size=size)), None


_gather = declare(Gather)


def gather(x: Tensor, index: Tensor, *, dim: int) -> Tensor:
    """Gather, told the size of `dim`, by which a rank knows whether it holds all of it."""
    return _gather(x, index, dim=dim, size=x.meta.shape[dim])


class GatherGrad(Op):
    """Zeros with `size` positions along `dim`, to which d is added at the index: the gradient of
    `gather`.

    Equal indices add up in a fixed order. offset: the first position of a shard of `dim`; others
    are left out.
    """

    name = "gather_grad"

    @staticmethod
    def infer(d: Operand, index: Operand, *, dim: int, size: int) -> TensorType:
        _check_index("gather_grad", index)
        if dim > d.ndim or d.shape[dim : dim + index.ndim] != index.shape:
            raise ShapeError(
                f"gather_grad: dims {dim} to {dim + index.ndim - 1} of {d} must be those of {index}"
            )
        return d.meta.with_shape((*d.shape[:dim], size, *d.shape[dim + index.ndim :]))

    @staticmethod
    def sbp(d: TensorType, index: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        listed = [SbpSignature((Split(dim + i), Split(i)), (PARTIAL,)) for i in range(index.ndim)]
        for i in range(d.ndim):
            if i < dim:
                listed.append(SbpSignature((Split(i), BROADCAST), (Split(i),)))
            elif i >= dim + index.ndim:
                moved = i - index.ndim + 1
                listed.append(SbpSignature((Split(i), BROADCAST), (Split(moved),)))
        listed.append(SbpSignature((BROADCAST, BROADCAST), (Split(dim),)))
        listed.append(signature("P B -> P"))
        return listed

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        dim, box = attrs["dim"], out_boxes[0]
        return {**attrs, "offset": box.starts[dim], "size": box.shape[dim]}

    @staticmethod
    def grad(
        d: Tensor, d_in: Tensor, index: Tensor, out: Tensor, *, dim: int, **_: object
    ) -> Gradients:
        return (lambda: gather(d, index, dim=dim)), None


gather_grad = declare(GatherGrad)


def _aligned(name: str, x: Operand, index: Operand, dim: int) -> None:
    """Raises ShapeError unless index and x differ in size along `dim` alone."""
    _check_index(name, index)
    require_dim(name, x, dim)
    if index.ndim != x.ndim:
        raise ShapeError(
            f"{name} along dim {dim}: Index tensor must have the same number of dimensions as "
            f"input tensor, but the index is {index} and the input {x}"
        )
    for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if i != dim and n != m:
            raise ShapeError(
                f"{name} along dim {dim}: {x} and the index {index} differ in other dims: Size "
                f"does not match at dimension {i}"
            )


def _aligned_signatures(x: TensorType, dim: int, num_inputs: int) -> list[SbpSignature]:
    return [SbpSignature((Split(i),) * num_inputs, (Split(i),)) for i in range(x.ndim) if i != dim]


class DimGather(Op):
    """out[i, j, ...] = x[i, index[i, j, ...], ...] for dim 1, and so on. x and index differ along
    `dim` only. size, offset: as of `gather`."""

    name = "dim_gather"
    precision = "follow"
    positions = staticmethod(_along_dim)

    @staticmethod
    def infer(x: Operand, index: Operand, *, dim: int, size: int | None = None) -> TensorType:
        _aligned("dim_gather", x, index, dim)
        return x.meta.with_shape(index.shape)

    @staticmethod
    def sbp(x: TensorType, index: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        along = SbpSignature((BROADCAST, Split(dim)), (Split(dim),))
        listed = [*_aligned_signatures(x, dim, 2), along]
        if x.dtype is not bool_:
            listed.append(SbpSignature((Split(dim), BROADCAST), (PARTIAL,)))
            listed.append(signature("P B -> P"))
        return listed

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _first_position(attrs, in_boxes[0])

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, index: Tensor, out: Tensor, *, dim: int, **_: object
    ) -> Gradients:
        def d_x() -> Tensor:
            return dim_scatter_add(unary.full_like(x, value=0), index, d, dim=dim)

        return d_x, None


_dim_gather = declare(DimGather)


def dim_gather(x: Tensor, index: Tensor, *, dim: int) -> Tensor:
    """DimGather, told the size of `dim`, by which a rank knows whether it holds all of it."""
    return _dim_gather(x, index, dim=dim, size=x.meta.shape[dim])


def _scatter_signatures(x: TensorType, dim: int) -> list[SbpSignature]:
    """Also: a rank with a part of `dim` writes the elements that fall into it."""
    into_part = SbpSignature((Split(dim), BROADCAST, BROADCAST), (Split(dim),))
    return [*_aligned_signatures(x, dim, 3), into_part]


def _scatter_type(name: str, x: Operand, index: Operand, source: Operand, dim: int) -> TensorType:
    _aligned(name, x, index, dim)
    require_same_dtype(name, x, source)
    if source.shape != index.shape:
        raise ShapeError(f"{name}: the source {source} must have the shape of the index {index}")
    return x.meta


class DimScatter(Op):
    """A copy of x with source[i, j, ...] at [i, index[i, j, ...], ...] for dim 1, and so on; the
    last of equals wins. size: of `dim`.  offset: set on a shard of `dim`: its first position;
    indices that lie on other shards are left out."""

    name = "dim_scatter"
    precision = "follow"
    positions = staticmethod(_along_dim)

    @staticmethod
    def infer(
        x: Operand, index: Operand, source: Operand, *, dim: int, size: int | None = None
    ) -> TensorType:
        return _scatter_type("dim_scatter", x, index, source, dim)

    @staticmethod
    def sbp(
        x: TensorType, index: TensorType, source: TensorType, *, dim: int, **_: object
    ) -> list[SbpSignature]:
        sums = [] if x.dtype is bool_ else [signature("P B P -> P")]
        return _scatter_signatures(x, dim) + sums

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _first_position(attrs, in_boxes[0])

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, index: Tensor, source: Tensor, out: Tensor, *, dim: int, **_: object
    ) -> Gradients:
        def d_x() -> Tensor:
            return dim_scatter(d, index, unary.full_like(source, value=0), dim=dim)

        return d_x, None, lambda: dim_gather(d, index, dim=dim)


_dim_scatter = declare(DimScatter)


def dim_scatter(x: Tensor, index: Tensor, source: Tensor, *, dim: int) -> Tensor:
    """DimScatter, told the size of `dim`, by which a rank knows whether it holds all of it."""
    return _dim_scatter(x, index, source, dim=dim, size=x.meta.shape[dim])


class DimAssign(Op):
    """x[i, index[i, j, ...], ...] <- source[i, j, ...] for dim 1, and so on: `dim_scatter` into x
    itself, of which nothing else is read or written. size, offset: as there."""

    name = "dim_assign"
    mutates = {0: 0}
    has_effect = True
    positions = staticmethod(_along_dim)

    @staticmethod
    def infer(
        x: Operand, index: Operand, source: Operand, *, dim: int, size: int | None = None
    ) -> TensorType:
        return _scatter_type("dim_assign", x, index, source, dim)

    @staticmethod
    def sbp(
        x: TensorType, index: TensorType, source: TensorType, *, dim: int, **_: object
    ) -> list[SbpSignature]:
        return _scatter_signatures(x, dim)

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _first_position(attrs, in_boxes[0])


_dim_assign = declare(DimAssign)


def dim_assign(x: Tensor, index: Tensor, source: Tensor, *, dim: int) -> Tensor:
    """DimAssign, told the size of `dim`, by which a rank knows whether it holds all of it."""
    return _dim_assign(x, index, source, dim=dim, size=x.meta.shape[dim])


class DimScatterAdd(Op):
    """A scatter as dim_scatter, but adding to the elements there; equal indices add up."""

    name = "dim_scatter_add"
    precision = "follow"
    positions = staticmethod(_along_dim)

    @staticmethod
    def infer(
        x: Operand, index: Operand, source: Operand, *, dim: int, size: int | None = None
    ) -> TensorType:
        return _scatter_type("dim_scatter_add", x, index, source, dim)

    @staticmethod
    def sbp(
        x: TensorType, index: TensorType, source: TensorType, *, dim: int, **_: object
    ) -> list[SbpSignature]:
        along = SbpSignature((PARTIAL, Split(dim), Split(dim)), (PARTIAL,))
        sums = [] if x.dtype is bool_ else [along, signature("P B P -> P")]
        return _scatter_signatures(x, dim) + sums

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _first_position(attrs, in_boxes[0])

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, index: Tensor, source: Tensor, out: Tensor, *, dim: int, **_: object
    ) -> Gradients:
        return d, None, lambda: dim_gather(d, index, dim=dim)


_dim_scatter_add = declare(DimScatterAdd)


def dim_scatter_add(x: Tensor, index: Tensor, source: Tensor, *, dim: int) -> Tensor:
    """DimScatterAdd, told the size of `dim`, by which a rank knows whether it holds all of it."""
    return _dim_scatter_add(x, index, source, dim=dim, size=x.meta.shape[dim])


class CheckedIndex(Formulated):
    """The positions themselves, those below 0 counted from the end. Positions outside of
    -size .. size - 1, or of 0 .. size - 1 unless `wraps`, raise IndexError.

    size: the number of positions of dim `dim`, which errors name.
    """

    name = "checked_index"

    @staticmethod
    def infer(index: Operand, *, size: int, dim: int, wraps: bool) -> TensorType:
        _check_index("checked_index", index)
        return index.meta

    @staticmethod
    def positions(index: TensorType, *, size: int, wraps: bool, **_: object) -> dict[int, range]:
        return {0: range(-size if wraps else 0, size)}

    @staticmethod
    def formula(*_: TensorType, **__: object) -> Expression:
        return where(_INDEX >= 0, _INDEX, _INDEX + scalar("size"))


checked_index = declare(CheckedIndex)


class OneHot(Op):
    """out[..., k] = 1 where index[...] == k, else 0, for k in 0 .. depth - 1, outside of which an
    index is an error."""

    name = "one_hot"

    @staticmethod
    def infer(index: Operand, *, depth: int, dtype: DType) -> TensorType:
        _check_index("one_hot", index)
        if depth < 1:
            raise ShapeError(f"one_hot needs a depth of at least 1, got {depth}")
        return TensorType((*index.shape, depth), dtype)

    @staticmethod
    def positions(index: TensorType, *, depth: int, **_: object) -> dict[int, range]:
        return {0: range(depth)}

    @staticmethod
    def sbp(index: TensorType, **_: object) -> list[SbpSignature]:
        return [signature(f"S{i} -> S{i}") for i in range(index.ndim)]


one_hot = declare(OneHot)
