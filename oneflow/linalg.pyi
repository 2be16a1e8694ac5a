"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.core.dtype import DTypeLike
from oneflow.core.operand import DimLike
from oneflow.functional.linalg.matrices import cholesky as cholesky
from oneflow.functional.linalg.matrices import cholesky_ex as cholesky_ex
from oneflow.functional.linalg.matrices import det as det
from oneflow.functional.linalg.matrices import diagonal as diagonal
from oneflow.functional.linalg.matrices import eig as eig
from oneflow.functional.linalg.matrices import eigh as eigh
from oneflow.functional.linalg.matrices import eigvals as eigvals
from oneflow.functional.linalg.matrices import eigvalsh as eigvalsh
from oneflow.functional.linalg.matrices import inv as inv
from oneflow.functional.linalg.matrices import inv_ex as inv_ex
from oneflow.functional.linalg.matrices import lstsq as lstsq
from oneflow.functional.linalg.matrices import matrix_power as matrix_power
from oneflow.functional.linalg.matrices import matrix_rank as matrix_rank
from oneflow.functional.linalg.matrices import pinv as pinv
from oneflow.functional.linalg.matrices import qr as qr
from oneflow.functional.linalg.matrices import slogdet as slogdet
from oneflow.functional.linalg.matrices import solve as solve
from oneflow.functional.linalg.matrices import solve_ex as solve_ex
from oneflow.functional.linalg.matrices import solve_triangular as solve_triangular
from oneflow.functional.linalg.matrices import svd as svd
from oneflow.functional.linalg.matrices import svdvals as svdvals
from oneflow.functional.linalg.norms import cond as cond
from oneflow.functional.linalg.packed_factors import householder_product as householder_product
from oneflow.functional.linalg.packed_factors import ldl_factor as ldl_factor
from oneflow.functional.linalg.packed_factors import ldl_factor_ex as ldl_factor_ex
from oneflow.functional.linalg.packed_factors import ldl_solve as ldl_solve
from oneflow.functional.linalg.packed_factors import lu as lu
from oneflow.functional.linalg.packed_factors import lu_factor as lu_factor
from oneflow.functional.linalg.packed_factors import lu_factor_ex as lu_factor_ex
from oneflow.functional.linalg.packed_factors import lu_solve as lu_solve
from oneflow.functional.linalg.packed_factors import matrix_exp as matrix_exp
from oneflow.functional.linalg.packed_factors import tensorinv as tensorinv
from oneflow.functional.linalg.packed_factors import tensorsolve as tensorsolve
from oneflow.functional.linalg.products import matmul as matmul
from oneflow.functional.linalg.products import outer as _products_outer
from oneflow.functional.rearrange import multi_dot as multi_dot
from oneflow.functional.rearrange import vandermonde as _rearrange_vandermonde
from oneflow.tensor.tensor import Tensor

def cross(input: Tensor, other: Tensor, *, dim: int = ..., axis: int = ...) -> Tensor: ...
def matrix_norm(input: Tensor, ord: float | str = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
def norm(input: Tensor, ord: float | str | None = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
vander = _rearrange_vandermonde
def vecdot(x: Tensor, y: Tensor, *, dim: int = ..., axis: int = ...) -> Tensor: ...
def vector_norm(x: Tensor, ord: float | str = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
vector_outer = _products_outer
