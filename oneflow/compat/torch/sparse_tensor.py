"""Sparse tensors of `torch`: coordinates (COO), and compressed rows or columns (CSR, CSC).

A sparse tensor holds dense tensors: the places of its values and the values. All results are
computed of these with the ops that dense tensors have, so it runs on every device, and
gradients reach the values by themselves. Its class answers calls by PyTorch's protocol for
subclasses; a call that has no sparse form raises OneFlowError with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from oneflow import surfaces
from oneflow.compat.torch.layouts import sparse_coo, sparse_csc, sparse_csr
from oneflow.compat.torch.subclasses import OPERATORS, answer_calls, answering, without_subclasses
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType, DTypeLike, dtype_of, int64
from oneflow.core.errors import DTypeError, OneFlowError, PositionError, ShapeError
from oneflow.core.operand import Number
from oneflow.core.size import Size
from oneflow.core.tensor_type import TensorType
from oneflow.functional.concat_split import cat, stack
from oneflow.functional.creation import arange, zeros
from oneflow.functional.gather_scatter import index_add
from oneflow.functional.index_update import scatter_reduce
from oneflow.functional.linalg.products import matmul
from oneflow.functional.shaping import expand, repeat_interleave, reshape
from oneflow.functional.sort_and_search import bincount, nonzero, searchsorted, unique
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.formats import layout as Layout
from oneflow.tensor.tensor import MEMBERS, Tensor

Handler: TypeAlias = Callable[..., Any]
COMPRESSED = (sparse_csr, sparse_csc)


class SparseTensor(Tensor):
    """A tensor of which only some elements are stored; the others are zero.

    places: int64 (sparse dims, n), the position of each stored value.  elements: the values
    (n, *dense dims).  shape: of the whole.  kind: one of the sparse layouts.  coalesced: whether
    the places are sorted and differ.
    """

    _places: Tensor
    _elements: Tensor
    _kind: Layout
    _is_sorted: bool

    # ---- parts -----------------------------------------------------------------------------------

    def indices(self) -> Tensor:
        """Return the positions (sparse dims, n). Raises OneFlowError unless they are coalesced."""
        self._only(sparse_coo, "indices")
        if not self._is_sorted:
            raise OneFlowError(
                "Cannot get indices on an uncoalesced tensor, please call .coalesce() first"
            )
        return self._places

    def values(self) -> Tensor:
        """Return the values (n, *dense dims). Raises OneFlowError unless they are coalesced."""
        if self._kind is sparse_coo and not self._is_sorted:
            raise OneFlowError(
                "Cannot get values on an uncoalesced tensor, please call .coalesce() first"
            )
        return self._elements

    def _indices(self) -> Tensor:
        self._only(sparse_coo, "_indices")
        return self._places

    def _values(self) -> Tensor:
        return self._elements

    def _nnz(self) -> int:
        return int(self._elements.shape[0])

    def _begins(self, kind: Layout, dim: int, who: str) -> Tensor:
        self._only(kind, who)
        counts = bincount(self._places[dim], minlength=self.shape[dim])
        return cat([counts.new_zeros(1), counts.cumsum(0)])

    def crow_indices(self) -> Tensor:
        """Return where each row of a CSR matrix begins, and the end: (rows + 1)."""
        return self._begins(sparse_csr, 0, "crow_indices")

    def ccol_indices(self) -> Tensor:
        """Return where each column of a CSC matrix begins, and the end: (columns + 1)."""
        return self._begins(sparse_csc, 1, "ccol_indices")

    def col_indices(self) -> Tensor:
        """Return the column of each value of a CSR matrix."""
        self._only(sparse_csr, "col_indices")
        return self._places[1]

    def row_indices(self) -> Tensor:
        """Return the row of each value of a CSC matrix."""
        self._only(sparse_csc, "row_indices")
        return self._places[0]

    def _only(self, kind: Layout, who: str) -> None:
        if self._kind is not kind:
            raise OneFlowError(f"{who} expected a tensor of layout {kind}, got {self._kind}")

    def is_coalesced(self) -> bool:
        """Return whether the positions are sorted and differ."""
        self._only(sparse_coo, "is_coalesced")
        return self._is_sorted

    def _coalesced_(self, coalesced: bool) -> SparseTensor:
        self._only(sparse_coo, "_coalesced_")
        self._is_sorted = coalesced
        return self

    def sparse_dim(self) -> int:
        """Return the number of dims that positions have."""
        return int(self._places.shape[0])

    def dense_dim(self) -> int:
        """Return the number of dims that a value has."""
        return self._elements.ndim - 1

    # ---- what it is ------------------------------------------------------------------------------

    def _refuse_array(self) -> Any:
        raise OneFlowError("an op for dense tensors was given a sparse one: call to_dense() first")

    _array = property(_refuse_array)
    is_sparse = property(lambda self: self._kind is sparse_coo)
    is_sparse_csr = property(lambda self: self._kind is sparse_csr)
    layout = property(lambda self: self._kind)
    device = property(lambda self: self._elements.device)
    requires_grad = property(
        lambda self: self._elements.requires_grad,
        lambda self, wanted: setattr(self._elements, "requires_grad", wanted),
    )
    is_leaf = property(lambda self: self._elements.is_leaf)
    grad_fn = property(lambda self: self._elements.grad_fn)
    T = property(lambda self: transposed(self, 0, 1))

    def _own_grad(self) -> SparseTensor | None:
        found = self._elements.grad
        return None if found is None else self._with(found)

    def _take_grad(self, new: Tensor | None) -> None:
        self._elements.grad = new._elements if isinstance(new, SparseTensor) else new

    grad = property(_own_grad, _take_grad)

    def _replace(self, new: SparseTensor) -> None:
        """Take the parts of another tensor, as `x.data = y` does."""
        self.meta, self._device, self._kind = new.meta, new._device, new._kind
        self._places, self._is_sorted = new._places, new._is_sorted
        if new._elements.meta == self._elements.meta:
            self._elements.data = new._elements
        else:
            self._elements = new._elements.detach().requires_grad_(self.requires_grad)

    data = property(lambda self: self._with(self._elements.detach()), _replace)

    def __repr__(self) -> str:
        parts = {"indices": self._places}
        if self._kind is sparse_csr:
            parts = {"crow_indices": self.crow_indices(), "col_indices": self._places[1]}
        elif self._kind is sparse_csc:
            parts = {"ccol_indices": self.ccol_indices(), "row_indices": self._places[0]}
        parts["values"] = self._elements.detach()
        texts = [
            f"{name}={x!r}".replace("\n", "\n" + " " * (len(name) + 8)) for name, x in parts.items()
        ]
        kind = str(self._kind).rpartition(".")[2]
        texts.append(f"size={tuple(self.shape)}, nnz={self._nnz()}, layout=torch.{kind}")
        if self.requires_grad:
            texts[-1] += ", requires_grad=True"
        return f"tensor({(',' + chr(10) + ' ' * 7).join(texts)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        made = self._with(self._elements.detach().clone().requires_grad_(self.requires_grad))
        memo[id(self)] = made
        return made

    def __len__(self) -> int:
        return int(self.shape[0])

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        parts = (self._places, self._elements.detach(), tuple(self.shape), str(self._kind))
        return _again, (*parts, self._is_sorted)

    # ---- other forms -----------------------------------------------------------------------------

    def _with(self, elements: Tensor) -> SparseTensor:
        """The same positions with other values."""
        return assemble(self._places, elements, self.shape, self._kind, self._is_sorted)

    def _keys(self) -> Tensor:
        """The number of each position in the order of rows."""
        key, sizes = self._places[0] * 1, self.shape[: self.sparse_dim()]
        for dim, size in enumerate(sizes[1:], 1):
            key = key * size + self._places[dim]
        return key

    def coalesce(self) -> SparseTensor:
        """Return the tensor with sorted positions, values of the same one added."""
        if self._is_sorted or self._kind is not sparse_coo:
            return self
        sizes = [int(n) for n in self.shape[: self.sparse_dim()]]
        keys, inverse = unique(self._keys(), return_inverse=True)
        places, rest = [], keys
        for size in reversed(sizes):
            places.append(rest % size)
            rest = rest // size
        summed = _added(self._elements, inverse, int(keys.shape[0]))
        return assemble(stack(places[::-1]), summed, self.shape, sparse_coo, True)

    def to_dense(self, dtype: DTypeLike | None = None, *, masked_grad: bool = True) -> Tensor:
        """Return the tensor with its zeros."""
        count = math.prod(self.shape[: self.sparse_dim()])
        flat = _added(self._elements, self._keys(), count)
        whole = reshape(flat, tuple(self.shape))
        return whole if dtype is None else whole.to(dtype_of(dtype))

    def to_sparse(
        self, sparse_dim: int | None = None, *, layout: Layout | None = None
    ) -> SparseTensor:
        """Return the tensor in another sparse layout (COO unless `layout` says otherwise)."""
        wanted = sparse_coo if layout is None else layout
        if wanted is self._kind:
            return self
        if wanted is sparse_coo:
            order = sparse_sorted(self._places, self.shape) if self._kind is sparse_csc else None
            places = self._places if order is None else self._places[:, order]
            elements = self._elements if order is None else self._elements[order]
            return assemble(places, elements, self.shape, sparse_coo, True)
        if wanted not in COMPRESSED:
            raise OneFlowError(f"to_sparse: {wanted} is not there; sparse_coo, csr and csc are")
        matrix = self.to_sparse().coalesce()
        if matrix.sparse_dim() != 2 or matrix.dense_dim():
            raise ShapeError(f"{wanted} holds matrices, got {tuple(self.shape)}")
        if wanted is sparse_csr:
            return assemble(matrix._places, matrix._elements, self.shape, wanted, True)
        order = sparse_sorted(matrix._places.flip(0), self.shape[::-1])
        return assemble(matrix._places[:, order], matrix._elements[order], self.shape, wanted, True)

    def to_sparse_coo(self) -> SparseTensor:
        """Return the tensor by coordinates."""
        return self.to_sparse()

    def to_sparse_csr(self, dense_dim: int | None = None) -> SparseTensor:
        """Return the matrix by compressed rows."""
        return self.to_sparse(layout=sparse_csr)

    def to_sparse_csc(self, dense_dim: int | None = None) -> SparseTensor:
        """Return the matrix by compressed columns."""
        return self.to_sparse(layout=sparse_csc)

    def t(self) -> SparseTensor:
        """Return the transposed matrix; compressed rows become compressed columns."""
        return transposed(self, 0, 1)

    def to(self, *args: object, **kwargs: object) -> SparseTensor:
        """Return the tensor with values of another dtype, or on another device."""
        kwargs.pop("copy", None)
        elements = _moved(self._elements, args, kwargs)
        if elements is self._elements:
            return self
        places = self._places
        if elements.device != places.device:
            places = _moved(places, (elements.device,), {})
        return assemble(places, elements, self.shape, self._kind, self._is_sorted)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Set whether the values require gradients."""
        self._elements.requires_grad_(requires_grad)
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Handler,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer a call with a sparse tensor among its arguments."""
        handler = HANDLERS.get(func.__name__)
        if handler is None and args and func.__name__ in METHODS:
            handler = getattr(SparseTensor, func.__name__)
        if handler is None:
            raise OneFlowError(
                f"{func.__name__}: there is no form of it for sparse tensors; call it with "
                "x.to_dense()"
            )
        with without_subclasses():
            return handler(*args, **(kwargs or {}))


METHODS = (
    *("coalesce", "indices", "is_coalesced", "t", "to", "to_dense", "to_sparse", "to_sparse_coo"),
    *("to_sparse_csc", "to_sparse_csr", "values"),
)
"""Methods that functions of the same name call."""


def assemble(
    places: Tensor, elements: Tensor, shape: Sequence[int], kind: Layout, coalesced: bool
) -> SparseTensor:
    """Return the sparse tensor of these parts, which are not checked."""
    if SparseTensor not in answering:
        answer_calls(SparseTensor)
    made = object.__new__(SparseTensor)
    for name in MEMBERS:
        if name != "_array":
            setattr(made, name, getattr(elements, name))
    made._requires_grad, made._extra, made._version = False, None, [0]
    made._grad = made._grad_fn = None
    made.meta = TensorType(tuple(int(n) for n in shape), elements.dtype)
    made._places, made._elements, made._kind = places, elements, kind
    made._is_sorted = coalesced
    return made


def _again(
    places: Tensor, elements: Tensor, shape: Sequence[int], kind: str, coalesced: bool
) -> SparseTensor:
    kinds = {str(k): k for k in (sparse_coo, *COMPRESSED)}
    return assemble(places, elements, shape, kinds[kind], coalesced)


def _moved(x: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    convert: Callable[..., Tensor] = surfaces.find("tensor", "to")
    return convert(x, *args, **kwargs)


def _added(elements: Tensor, index: Tensor, count: int) -> Tensor:
    """The sum of the values of each index of 0 .. count - 1."""
    if elements.dtype.name == "bool":
        return _added(elements.int(), index, count) != 0
    shape = (count, *elements.shape[1:])
    empty = zeros(shape, dtype=elements.dtype, **layout_of(elements))
    return index_add(empty, 0, index, elements)


def sparse_sorted(places: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the order in which positions of a matrix go row by row."""
    order: Tensor = (places[0] * int(shape[1]) + places[1]).argsort(stable=True)
    return order


def _ranges(begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers begin, begin + 1 ... of each range one after another, and the range of each."""
    whole = repeat_interleave(arange(len(counts), dtype=int64, device=counts.device), counts)
    ends = counts.cumsum(0)
    at = arange(len(whole), dtype=int64, device=counts.device)
    return at - (ends - counts)[whole] + begins[whole], whole


def from_dense(x: Tensor, sparse_dim: int | None = None) -> SparseTensor:
    """Return the elements that are not zero by coordinates, of the first `sparse_dim` dims."""
    count = x.ndim if sparse_dim is None else sparse_dim
    if not 1 <= count <= x.ndim:
        raise ShapeError(f"to_sparse: {count} sparse dims of a tensor of {x.ndim}")
    filled = x.detach() != 0
    if count < x.ndim:
        filled = filled.reshape((*x.shape[:count], -1)).any(-1)
    places = nonzero(filled).transpose(0, 1)
    elements = x[tuple(places[i] for i in range(count))]
    return assemble(places.contiguous(), elements, x.shape, sparse_coo, True)


def transposed(x: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Return the tensor with two sparse dims exchanged."""
    ndim, count = x.ndim, x.sparse_dim()
    a, b = dim0 % ndim, dim1 % ndim
    if max(a, b) >= count:
        raise ShapeError(f"transpose: dims {dim0} and {dim1} are not both sparse")
    order = list(range(count))
    order[a], order[b] = b, a
    shape = list(x.shape)
    shape[a], shape[b] = shape[b], shape[a]
    kinds: dict[Layout, Layout] = {sparse_csr: sparse_csc, sparse_csc: sparse_csr}
    turned = kinds.get(x._kind, sparse_coo)
    kept = x._kind is not sparse_coo or a == b
    places = stack([x._places[i] for i in order])
    return assemble(places, x._elements, shape, turned, kept)


def selected(x: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """Return the slices at some positions of a sparse dim."""
    matrix, at = x.to_sparse().coalesce(), dim % x.ndim
    rows = matrix._places[at]
    order = rows.argsort(stable=True)
    counts = bincount(rows, minlength=x.shape[at])
    begins = cat([counts.new_zeros(1), counts.cumsum(0)])
    chosen, target = _ranges(begins[index], counts[index])
    chosen = order[chosen]
    places = [matrix._places[i][chosen] for i in range(matrix.sparse_dim())]
    places[at] = target
    shape = [*x.shape[:at], len(index), *x.shape[at + 1 :]]
    found = assemble(stack(places), matrix._elements[chosen], shape, sparse_coo, at == 0)
    return found.coalesce().to_sparse(layout=x._kind)


def summed(
    x: SparseTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """Return the sum: of all a number, over some dims a tensor, sparse if a dim is left."""
    if dim is None:
        return x._elements.sum()
    dims = {d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim)}
    count = x.sparse_dim()
    inner = [d - count + 1 for d in dims if d >= count]
    elements = x._elements.sum(inner, keepdim) if inner else x._elements
    left = [d for d in range(count) if d not in dims]
    if not left and not keepdim:
        return elements.sum(0)
    rows = [x._places[d] if d in left else 0 * x._places[d] for d in range(count)]
    kept = list(range(count)) if keepdim else left
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    made = assemble(stack([rows[d] for d in kept]), elements, shape, sparse_coo, False).coalesce()
    return made.to_sparse(layout=x._kind) if x._kind in COMPRESSED and keepdim else made


# ---- arithmetic ----------------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices, or of a matrix and a vector, of which one or both are sparse."""
    if not isinstance(a, SparseTensor):
        assert isinstance(b, SparseTensor)
        turned = transposed(b, 0, 1)
        return _product(turned, a) if a.ndim == 1 else _product(turned, a.t()).t()
    _check(a, b)
    if isinstance(b, SparseTensor):
        return _both_sparse(a, b)
    rows, columns = a._places[0], a._places[1]
    picked = b[columns]
    scaled = picked * (a._elements if b.ndim == 1 else a._elements.unsqueeze(-1))
    return _added(scaled, rows, int(a.shape[0]))


def _check(a: SparseTensor, b: Tensor) -> None:
    if a.sparse_dim() != 2 or a.dense_dim() or b.ndim not in (1, 2):
        raise ShapeError(
            f"mm: products of sparse tensors take matrices and vectors, got {a.meta}, {b.meta}"
        )
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"mm: a {a.meta} has {a.shape[1]} columns, but b {b.meta} needs as many")
    if a.dtype != b.dtype:
        raise DTypeError(f"mm: a {a.meta} and b {b.meta} differ in dtype; convert one with .to()")


def _both_sparse(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """The sparse product of sparse matrices: each value of a meets its row of b."""
    right = b.to_sparse().coalesce()
    counts = bincount(right._places[0], minlength=right.shape[0])
    begins = counts.cumsum(0) - counts
    inner = a._places[1]
    met, left = _ranges(begins[inner], counts[inner])
    places = stack([a._places[0][left], right._places[1][met]])
    elements = a._elements[left] * right._elements[met]
    shape = (int(a.shape[0]), int(b.shape[1]))
    made = assemble(places, elements, shape, sparse_coo, False).coalesce()
    return made.to_sparse(layout=a._kind) if a._kind in COMPRESSED else made


def reduced_product(a: SparseTensor, b: Tensor, reduce: str) -> Tensor:
    """Return the sum, mean, amax or amin of the terms of each element of a @ b."""
    if reduce == "sum":
        return _product(a, b)
    _check(a, b)
    terms = b[a._places[1]] * a._elements.unsqueeze(-1)
    empty = zeros((int(a.shape[0]), int(b.shape[1])), dtype=b.dtype, **layout_of(b))
    index = expand(a._places[0].unsqueeze(-1), terms.shape)
    how = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    return scatter_reduce(empty, 0, index, terms, how, include_self=False)


def _plus(a: Tensor, b: Tensor, *, alpha: Number = 1) -> Tensor:
    """a + alpha b: sparse if both are."""
    if not isinstance(a, SparseTensor):
        if not isinstance(b, SparseTensor) or not isinstance(a, Tensor):
            raise OneFlowError("add: a number and a sparse tensor make a dense one: to_dense()")
        return a + b.to_dense() * alpha
    if not isinstance(b, SparseTensor):
        if not isinstance(b, Tensor):
            raise OneFlowError("add: a sparse tensor and a number make a dense one: to_dense()")
        return a.to_dense() + b * alpha
    if a.shape != b.shape:
        raise ShapeError(f"add: sparse tensors of one shape are needed, got {a.meta}, {b.meta}")
    left, right = a.to_sparse(), b.to_sparse()
    joined = [cat([left._places, right._places], 1), cat([left._elements, right._elements * alpha])]
    made = assemble(joined[0], joined[1], a.shape, sparse_coo, False)
    return made.coalesce().to_sparse(layout=a._kind)


def _minus(a: Tensor, b: Tensor, *, alpha: Number = 1) -> Tensor:
    return _plus(a, b, alpha=-alpha)


def _times(a: Tensor | Number, b: Tensor | Number) -> SparseTensor:
    """The product element by element, with the positions of the sparse one, or of both."""
    if isinstance(a, SparseTensor):
        return _stretched(a, b)
    if isinstance(b, SparseTensor):
        return _stretched(b, a)
    raise OneFlowError("mul: neither operand is sparse")


def _stretched(a: SparseTensor, b: Tensor | Number) -> SparseTensor:
    if not isinstance(b, SparseTensor):
        if not isinstance(b, Tensor) or b.ndim == 0:
            return a._with(a._elements * b)
        wide = expand(b, tuple(a.shape))
        return a._with(a._elements * wide[tuple(a._places[i] for i in range(a.sparse_dim()))])
    left, right = a.to_sparse().coalesce(), b.to_sparse().coalesce()
    keys, others = left._keys(), right._keys()
    if not len(others):
        return right
    at = searchsorted(others, keys).clamp(max=len(others) - 1)
    both = others[at] == keys
    places, found = left._places[:, both], left._elements[both] * right._elements[at[both]]
    return assemble(places, found, a.shape, sparse_coo, True).to_sparse(layout=a._kind)


def _over(a: Tensor, b: Tensor | Number) -> Tensor:
    if not isinstance(a, SparseTensor) or (isinstance(b, Tensor) and b.ndim):
        raise OneFlowError("div: a sparse tensor is divided by numbers; use to_dense()")
    return a._with(a._elements / b)


def addmm(
    mat: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * mat + alpha * (mat1 @ mat2), of which any may be sparse."""
    if not any(isinstance(x, SparseTensor) for x in (mat, mat1, mat2)):
        return mat * beta + matmul(mat1, mat2) * alpha
    is_sparse = isinstance(mat1, SparseTensor) or isinstance(mat2, SparseTensor)
    product = _product(mat1, mat2) if is_sparse else matmul(mat1, mat2)
    left, right = _scaled(mat, beta), _scaled(product, alpha)
    both_dense = not isinstance(left, SparseTensor) and not isinstance(right, SparseTensor)
    return left + right if both_dense else _plus(left, right)


def _scaled(x: Tensor, factor: Number) -> Tensor:
    if factor == 1:
        return x
    return _times(x, factor) if isinstance(x, SparseTensor) else x * factor


def _elementwise(name: str, *, linear: bool) -> Handler:
    """A function that leaves zeros alone, for the values; coalesced first unless it is linear."""

    def apply(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
        whole = x if linear else x.coalesce()
        function: Callable[..., Tensor] = getattr(Tensor, name)
        return whole._with(function(whole._elements, *args, **kwargs))

    return apply


def masked(input: Tensor, mask: SparseTensor) -> SparseTensor:
    """Return the elements of a dense tensor at the positions of a sparse one."""
    picked = input[tuple(mask._places[i] for i in range(mask.sparse_dim()))]
    return mask._with(picked)


def _copied_from(x: SparseTensor, other: SparseTensor, non_blocking: bool = False) -> SparseTensor:
    """Take the values and positions of another sparse tensor of the same shape and layout."""
    if not isinstance(other, SparseTensor) or x.shape != other.shape:
        raise ShapeError(f"copy_: a sparse tensor {x.shape} takes one like it, got {other.shape}")
    x._replace(other.to_sparse(layout=x._kind).to(x.device, x.dtype))
    return x


def _item(x: SparseTensor, index: int) -> SparseTensor | Tensor:
    """The slice at a position of the first dim. Raises OneFlowError for any other index."""
    if isinstance(index, bool) or not isinstance(index, int):
        raise OneFlowError("sparse tensors take one integer as an index; use to_dense()")
    if not -len(x) <= index < len(x):
        raise PositionError(f"index {index} is out of range for the size {tuple(x.shape)}")
    row = selected(x, 0, arange(index % len(x), index % len(x) + 1, device=x.device))
    return summed(row, 0) if x._kind is sparse_coo else summed(row.to_sparse(), 0)


def _sizes(x: SparseTensor, dim: int | None = None) -> Size | int:
    return x.shape if dim is None else int(x.shape[dim])


LINEAR = "bfloat16 bool contiguous cpu cuda detach double float half int long neg type"
ZERO_KEEPING = (
    "abs asin asinh atan ceil clone erf expm1 floor log1p nan_to_num relu round sgn sign sin sinh "
    "sqrt square tan tanh trunc pow isnan isinf"
)
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "mv", "dsmm", "smm", "spmm", "hspmm"), _product),
    "rmatmul": lambda a, b: _product(b, a),
    "addmm": addmm,
    **dict.fromkeys(("add", "radd"), _plus),
    "sub": _minus,
    "rsub": lambda a, b: _minus(b, a),
    **dict.fromkeys(("mul", "rmul", "multiply"), _times),
    **dict.fromkeys(("div", "truediv", "true_divide"), _over),
    **{name: _elementwise(name, linear=True) for name in LINEAR.split()},
    **{name: _elementwise(name, linear=False) for name in ZERO_KEEPING.split()},
    "size": _sizes,
    **dict.fromkeys(("dim", "ndimension"), lambda x: x.ndim),
    "numel": lambda x: math.prod(x.shape),
    "is_floating_point": lambda x: x.dtype.is_floating_point,
    "is_complex": lambda x: x.dtype.is_complex,
    "element_size": lambda x: x._elements.element_size(),
    "is_pinned": lambda x: False,
    "sparse_mask": masked,
    "type_as": lambda x, other: x.to(other.dtype),
    "sum": summed,
    "transpose": transposed,
    "copy_": _copied_from,
    "getitem": _item,
    "zeros_like": lambda x: x._with(x._elements * 0),
    "index_select": selected,
    "is_same_size": lambda x, other: x.shape == other.shape,
}
"""Name of a function or operator -> its form where an argument is a sparse tensor."""


def _answer(name: str) -> Handler:
    """The method of a handler."""

    def call(self: SparseTensor, *args: object, **kwargs: object) -> Any:
        with without_subclasses():
            return HANDLERS[name](self, *args, **kwargs)

    call.__name__ = name
    return call


for _name in HANDLERS:
    setattr(SparseTensor, _name, _answer(_name))
    if _name in OPERATORS:
        setattr(SparseTensor, f"__{_name}__", _answer(_name))


# ---- makers --------------------------------------------------------------------------------------


def _given(
    values: object, dtype: DTypeLike | None, device: DeviceLike | None, requires_grad: bool
) -> Tensor:
    """Values as a tensor: a leaf if it is to require gradients."""
    kind: DType | None = None if dtype is None else dtype_of(dtype)
    make: Callable[..., Tensor] = surfaces.find("flow", "as_tensor")
    made = make(values, dtype=kind, device=device)
    return made.detach().requires_grad_() if requires_grad else made


def sparse_coo_tensor(
    indices: object,
    values: object = None,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool = False,
) -> SparseTensor:
    """Return the sparse tensor of values at positions, which are added where one occurs twice.

        flow.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)).to_dense()

    Args:
        indices: (sparse dims, n).
        values: (n, *dense dims). Without them `indices` is the size of a tensor of zeros.
        size: Shape of the whole; by default the smallest that holds all.
        dtype: Of the values.
        device: Of the parts.
        pin_memory: Accepted; it changes nothing.
        requires_grad: Whether it is a leaf whose values require gradients.
        check_invariants: Whether positions are checked; True by default.
        is_coalesced: Whether the positions are known to be sorted and to differ.

    Raises:
        ShapeError: For positions outside of the size, or parts that do not fit.
    """
    if values is None:
        given: Any = indices if size is None else size
        size = Size(given)
        indices, values = zeros((len(size), 0), dtype=int64), zeros((0,), dtype=_default(dtype))
    elements = _given(values, dtype, device, requires_grad)
    places = _given(indices, int64, elements.device, False)
    if elements.ndim == 0 or places.ndim != 2 or places.shape[1] != elements.shape[0]:
        raise ShapeError(
            f"sparse_coo_tensor: indices {places.meta} must be (sparse dims, n), values "
            f"{elements.meta} (n, *dense dims)"
        )
    count, dense = int(places.shape[0]), tuple(elements.shape[1:])
    if size is None:
        if not places.shape[1]:
            raise ShapeError("sparse_coo_tensor: without values a size is needed")
        size = (*(int(n) + 1 for n in places.amax(1).tolist()), *dense)
    if len(size) != count + len(dense) or tuple(size[count:]) != dense:
        raise ShapeError(
            f"sparse_coo_tensor: size {tuple(size)} does not fit indices {places.meta} and values "
            f"{elements.meta}"
        )
    if check_invariants is not False:
        check_places(places, size, "sparse_coo_tensor")
    return assemble(places, elements, size, sparse_coo, is_coalesced)


def _default(dtype: DTypeLike | None) -> DType:
    found: DType = surfaces.find("flow", "get_default_dtype")()
    return found if dtype is None else dtype_of(dtype)


def check_places(places: Tensor, size: Sequence[int], who: str) -> None:
    """Raise ShapeError for a position that is not within the size."""
    if not places.shape[1]:
        return
    lowest, highest = int(places.amin()), [int(n) for n in places.amax(1).tolist()]
    if lowest < 0 or any(n >= s for n, s in zip(highest, size, strict=False)):
        raise ShapeError(f"{who}: an index is outside of the size {tuple(size)}: {highest}")


def compressed(
    begins: object,
    plain: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    layout: Layout = sparse_csr,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Return the matrix of compressed rows (layout sparse_csr) or columns (sparse_csc).

    Args:
        begins: Where each row (or column) begins among the values, and the end.
        plain: The column (or row) of each value.
        values: The values (n).
        size: (rows, columns); by default the smallest that holds all.
        dtype: Of the values.
        layout: sparse_csr or sparse_csc.
        device: Of the parts.
        pin_memory: Accepted; it changes nothing.
        requires_grad: Whether it is a leaf whose values require gradients.
        check_invariants: Whether positions are checked; True by default.

    Raises:
        ShapeError: For parts that do not fit, or more than one matrix.
    """
    if layout not in COMPRESSED:
        raise OneFlowError(f"sparse tensors of layout {layout} are not there: use sparse_csr")
    elements = _given(values, dtype, device, requires_grad)
    starts, inner = (_given(x, int64, elements.device, False) for x in (begins, plain))
    if starts.ndim != 1 or inner.ndim != 1 or inner.shape != elements.shape:
        raise ShapeError(
            f"{layout} takes one matrix: begins {starts.meta}, indices {inner.meta}, values "
            f"{elements.meta}"
        )
    counts = starts[1:] - starts[:-1]
    if int(starts[-1]) != elements.shape[0] or bool((counts < 0).any()):
        raise ShapeError(f"{layout}: the begins must rise from 0 to {elements.shape[0]} values")
    outer = repeat_interleave(arange(len(counts), dtype=int64, device=starts.device), counts)
    places = stack([outer, inner] if layout is sparse_csr else [inner, outer])
    if size is None:
        most = int(inner.amax()) + 1 if len(inner) else 0
        size = (len(counts), most) if layout is sparse_csr else (most, len(counts))
    if size[0 if layout is sparse_csr else 1] != len(counts):
        raise ShapeError(f"{layout}: {len(counts)} begins do not fit the size {tuple(size)}")
    if check_invariants is not False:
        check_places(places, size, str(layout))
    return assemble(places, elements, size, layout, True)
