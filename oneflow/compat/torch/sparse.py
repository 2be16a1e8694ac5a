"""`torch.sparse`: functions of sparse tensors. `torch.nested` and `torch.export`: refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from oneflow import surfaces
from oneflow.compat.torch.layouts import sparse_coo, sparse_csc, sparse_csr
from oneflow.compat.torch.sparse_tensor import (
    SparseTensor,
    addmm,
    assemble,
    compressed,
    from_dense,
    masked,
    reduced_product,
    sparse_coo_tensor,
)
from oneflow.compat.torch.subclasses import without_subclasses
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, dtype_of, int64
from oneflow.core.errors import OneFlowError
from oneflow.core.operand import Number
from oneflow.functional.concat_split import stack
from oneflow.functional.creation import arange
from oneflow.functional.gather_scatter import index_add
from oneflow.functional.index_update import scatter_reduce
from oneflow.tensor.formats import layout as Layout
from oneflow.tensor.tensor import Tensor

__all__ = [
    "addmm",
    "check_sparse_tensor_invariants",
    "log_softmax",
    "mm",
    "sampled_addmm",
    "softmax",
    "sparse_coo_tensor",
    "spdiags",
    "spsolve",
    "sum",
    "to_sparse_semi_structured",
]

sparse_compressed_tensor = compressed


def _refusing(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OneFlowError(f"{name}: {instead}")

    refuse.__name__ = name
    refuse.__doc__ = "Refuse, and say what is there instead."
    return refuse


CSR = "matrices by coordinates, compressed rows and columns are there; use sparse_csr_tensor"
sparse_bsr_tensor = sparse_bsc_tensor = _refusing("sparse_bsr_tensor", CSR)
spsolve = _refusing(
    "sparse.spsolve", "there is no sparse solver; use linalg.solve(A.to_dense(), b)"
)
to_sparse_semi_structured = _refusing("sparse.to_sparse_semi_structured", CSR)


def sparse_csr_tensor(
    crow_indices: object,
    col_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Return a matrix by compressed rows; see sparse_compressed_tensor."""
    made = compressed(crow_indices, col_indices, values, size, dtype=dtype, device=device)
    return made.requires_grad_() if requires_grad else made


def sparse_csc_tensor(
    ccol_indices: object,
    row_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Return a matrix by compressed columns; see sparse_compressed_tensor."""
    made = compressed(
        ccol_indices, row_indices, values, size, dtype=dtype, layout=sparse_csc, device=device
    )
    return made.requires_grad_() if requires_grad else made


def spdiags(
    diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Layout | None = None
) -> SparseTensor:
    """Return the matrix with rows of `diagonals` (n, length) as diagonals, at `offsets` (n).

    Element j of a row stands in column j of the matrix.
    """
    rows, lines = diagonals.reshape((-1, diagonals.shape[-1])), offsets.reshape((-1,))
    columns = arange(rows.shape[1], dtype=int64).expand(rows.shape)
    down = columns - lines.unsqueeze(-1)
    inside = (down >= 0) & (down < shape[0]) & (columns < shape[1])
    made = assemble(stack([down[inside], columns[inside]]), rows[inside], shape, sparse_coo, False)
    return made.to_sparse(layout=layout or sparse_coo)


PADDED = "every tensor has one shape here; pad, and mask what is padding"
nested_tensor = as_nested_tensor = _refusing("nested.nested_tensor", PADDED)
nested_tensor_from_jagged = narrow = _refusing("nested.nested_tensor_from_jagged", PADDED)
_nested_view_from_buffer = _refusing("_nested_view_from_buffer", PADDED)

JOB = "graph.export(file) of an nn.Graph writes a job file"
export = export_for_training = _refusing("export.export", JOB)


class ExportedProgram:
    """A program that PyTorch wrote: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        export()


class NestedTensor:
    """A tensor of several shapes: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        nested_tensor()


class SparseSemiStructuredTensor(NestedTensor):
    """A tensor with zeros in a pattern: none is ever made, so `isinstance` is False."""


def mm(mat1: Tensor, mat2: Tensor, reduce: str = "sum") -> Tensor:
    """Return the product of two matrices, of which any may be sparse; gradients reach both.

        A = flow.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
        flow.sparse.mm(A, flow.ones(2, 3))

    reduce: "mean", "amax" or "amin" reduce the terms of each element otherwise, for a sparse mat1.
    """
    if reduce != "sum":
        if not isinstance(mat1, SparseTensor):
            raise OneFlowError(f"sparse.mm: reduce={reduce!r} needs a sparse first matrix")
        with without_subclasses():
            return reduced_product(mat1, mat2, reduce)
    made: Tensor = surfaces.find("flow", "mm")(mat1, mat2)
    return made


dsmm = smm = spmm = hspmm = mm


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> SparseTensor:
    """Return beta * input + alpha * (mat1 @ mat2) at the positions of a sparse `input` alone."""
    with without_subclasses():
        rows, columns = input._places[0], input._places[1]
        found = (mat1[rows] * mat2.t()[columns]).sum(-1)
        return input._with(input._elements * beta + found * alpha)


def sum(
    input: Tensor, dim: int | Sequence[int] | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """Return the sum, of a sparse tensor over some dims a sparse one."""
    find = surfaces.find
    wide = input if dtype is None else find("tensor", "to")(input, dtype_of(dtype))
    if dtype is not None and isinstance(input, SparseTensor):
        wide = input.to(dtype_of(dtype))
    made: Tensor = find("flow", "sum")(wide) if dim is None else find("flow", "sum")(wide, dim)
    return made


def _over_places(input: Tensor, dim: int, dtype: DTypeLike | None, name: str) -> Tensor:
    """Softmax or its logarithm over the stored values of each slice; others count as -inf."""
    if not isinstance(input, SparseTensor):
        dense: Tensor = surfaces.find("F", name)(input, dim, dtype=dtype)
        return dense
    with without_subclasses():
        x = input.to_sparse().coalesce()
        x = x if dtype is None else x.to(dtype_of(dtype))
        at, count = dim % x.ndim, x.sparse_dim()
        if at >= count:
            return input._with(surfaces.find("F", name)(x._elements, at - count + 1))
        key, slices = 0 * x._places[0], 1
        for d in range(count):
            if d != at:
                key, slices = key * int(x.shape[d]) + x._places[d], slices * int(x.shape[d])
        wide = key.reshape((-1, *(1 for _ in x._elements.shape[1:]))).expand(x._elements.shape)
        empty = x._elements.detach().new_zeros((slices, *x._elements.shape[1:]))
        top = scatter_reduce(empty, 0, wide, x._elements.detach(), "amax", include_self=False)
        lifted = x._elements - top[key]
        total = index_add(empty, 0, key, lifted.exp())[key]
        found = lifted - total.log() if name == "log_softmax" else lifted.exp() / total
        return assemble(x._places, found, x.shape, sparse_coo, True)


def softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return the softmax over the stored values of each slice along `dim`."""
    return _over_places(input, dim, dtype, "softmax")


def log_softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return the logarithms of the softmax over the stored values of each slice along `dim`."""
    return _over_places(input, dim, dtype, "log_softmax")


class check_sparse_tensor_invariants:
    """A switch of checks of positions, which are always made here: blocks and calls do nothing."""

    def __init__(self, enable: bool = True) -> None:
        self.enabled = enable

    @staticmethod
    def is_enabled() -> bool:
        """Return True."""
        return True

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


# ---- methods of dense tensors --------------------------------------------------------------------


def to_sparse(
    self: Tensor, sparse_dim: int | None = None, *, layout: Layout | None = None
) -> SparseTensor:
    """Return the elements that are not zero, by coordinates unless `layout` says otherwise.

    sparse_dim: number of first dims whose positions are stored; a value has the others.
    """
    return from_dense(self, sparse_dim).to_sparse(layout=layout)


def to_sparse_coo(self: Tensor) -> SparseTensor:
    """Return the elements that are not zero by coordinates."""
    return from_dense(self)


def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> SparseTensor:
    """Return the elements of a matrix that are not zero by compressed rows."""
    return from_dense(self).to_sparse(layout=sparse_csr)


def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> SparseTensor:
    """Return the elements of a matrix that are not zero by compressed columns."""
    return from_dense(self).to_sparse(layout=sparse_csc)


def sparse_mask(self: Tensor, mask: SparseTensor) -> SparseTensor:
    """Return the elements at the positions of a sparse tensor."""
    return masked(self, mask)


def _of_sparse(name: str) -> Callable[[Tensor], NoReturn]:
    """A method that sparse tensors alone have."""

    def refuse(self: Tensor) -> NoReturn:
        raise OneFlowError(f"{name} expected a sparse tensor, got a dense one: {self.meta}")

    refuse.__name__, refuse.__doc__ = name, "Refuse a dense tensor."
    return refuse


coalesce, indices, values, is_coalesced, crow_indices, col_indices, ccol_indices, row_indices = (
    *(_of_sparse(name) for name in ("coalesce", "indices", "values", "is_coalesced")),
    *(_of_sparse(name) for name in ("crow_indices", "col_indices", "ccol_indices", "row_indices")),
)


def is_batchedtensor(tensor: Tensor) -> bool:
    """Return False: no tensor stands for a batch of them."""
    return False


is_functorch_wrapped_tensor = is_gradtrackingtensor = is_batchedtensor


def get_unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor: none wraps another."""
    return tensor


def maybe_current_level() -> None:
    """Return None: no transform is in force."""


def _scaled_mm(*_: object, **__: object) -> NoReturn:
    """Refuse: there are no kernels for scaled float8."""
    raise OneFlowError("_scaled_mm: cast the operands with x.to(flow.float32), and multiply")
