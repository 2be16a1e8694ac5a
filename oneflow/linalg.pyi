"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.core.dtype import DTypeLike
from oneflow.core.operand import DimLike
from oneflow.functional.arranging import multi_dot as multi_dot
from oneflow.functional.arranging import vandermonde as _arranging_vandermonde
from oneflow.functional.factoring import householder_product as householder_product
from oneflow.functional.factoring import ldl_factor as ldl_factor
from oneflow.functional.factoring import ldl_factor_ex as ldl_factor_ex
from oneflow.functional.factoring import ldl_solve as ldl_solve
from oneflow.functional.factoring import lu as lu
from oneflow.functional.factoring import lu_factor as lu_factor
from oneflow.functional.factoring import lu_factor_ex as lu_factor_ex
from oneflow.functional.factoring import lu_solve as lu_solve
from oneflow.functional.factoring import matrix_exp as matrix_exp
from oneflow.functional.factoring import tensorinv as tensorinv
from oneflow.functional.factoring import tensorsolve as tensorsolve
from oneflow.functional.linalg import cond as cond
from oneflow.functional.linear_algebra import matmul as matmul
from oneflow.functional.linear_algebra import outer as _linear_algebra_outer
from oneflow.functional.matrices import cholesky as cholesky
from oneflow.functional.matrices import cholesky_ex as cholesky_ex
from oneflow.functional.matrices import det as det
from oneflow.functional.matrices import diagonal as diagonal
from oneflow.functional.matrices import eig as eig
from oneflow.functional.matrices import eigh as eigh
from oneflow.functional.matrices import eigvals as eigvals
from oneflow.functional.matrices import eigvalsh as eigvalsh
from oneflow.functional.matrices import inv as inv
from oneflow.functional.matrices import inv_ex as inv_ex
from oneflow.functional.matrices import lstsq as lstsq
from oneflow.functional.matrices import matrix_power as matrix_power
from oneflow.functional.matrices import matrix_rank as matrix_rank
from oneflow.functional.matrices import pinv as pinv
from oneflow.functional.matrices import qr as qr
from oneflow.functional.matrices import slogdet as slogdet
from oneflow.functional.matrices import solve as solve
from oneflow.functional.matrices import solve_ex as solve_ex
from oneflow.functional.matrices import solve_triangular as solve_triangular
from oneflow.functional.matrices import svd as svd
from oneflow.functional.matrices import svdvals as svdvals
from oneflow.tensor.tensor import Tensor

def cross(input: Tensor, other: Tensor, *, dim: int = ..., axis: int = ...) -> Tensor: ...
def matrix_norm(input: Tensor, ord: float | str = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
def norm(input: Tensor, ord: float | str | None = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
vander = _arranging_vandermonde
def vecdot(x: Tensor, y: Tensor, *, dim: int = ..., axis: int = ...) -> Tensor: ...
def vector_norm(x: Tensor, ord: float | str = ..., dim: DimLike = ..., keepdim: bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
vector_outer = _linear_algebra_outer
