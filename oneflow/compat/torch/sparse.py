"""`torch.sparse`, `torch.nested` and `torch.export`: every tensor is strided here. Products of
dense operands are plain ones; making other tensors is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from oneflow import surfaces
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import OneFlowError
from oneflow.tensor.tensor import Tensor


def _refusing(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OneFlowError(f"{name}: {instead}")

    refuse.__name__ = name
    refuse.__doc__ = "Refuse: every tensor is strided."
    return refuse


DENSE = "every tensor is dense here; use flow.gather and index_add, or a dense matrix"
sparse_coo_tensor = _refusing("sparse_coo_tensor", DENSE)
sparse_csr_tensor = _refusing("sparse_csr_tensor", DENSE)
sparse_csc_tensor = _refusing("sparse_csc_tensor", DENSE)
sparse_compressed_tensor = _refusing("sparse_compressed_tensor", DENSE)
spdiags = _refusing("sparse.spdiags", DENSE)

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


def mm(mat1: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two dense matrices."""
    made: Tensor = surfaces.find("flow", "mm")(mat1, mat2)
    return made


def addmm(mat: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * mat + alpha * (mat1 @ mat2) of dense matrices."""
    return mat * beta + mm(mat1, mat2) * alpha


def sum(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return the sum of a dense tensor."""
    found: Tensor = input.sum() if dim is None else input.sum(dim)
    made: Tensor = found if dtype is None else surfaces.find("tensor", "to")(found, dtype)
    return made


def softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return the softmax of a dense tensor, in which zeros are numbers as others."""
    made: Tensor = surfaces.find("F", "softmax")(input, dim, dtype=dtype)
    return made


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
