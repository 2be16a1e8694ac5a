"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.core.dtype import DTypeLike
from oneflow.core.operand import DimLike
from oneflow.functional.elementwise import erfc as erfc
from oneflow.functional.elementwise import round as round
from oneflow.functional.special import digamma as digamma
from oneflow.functional.special import digamma as psi
from oneflow.functional.special import entr as entr
from oneflow.functional.special import erfcx as erfcx
from oneflow.functional.special import expit as expit
from oneflow.functional.special import gammaln as gammaln
from oneflow.functional.special import log_ndtr as log_ndtr
from oneflow.functional.special import multigammaln as multigammaln
from oneflow.functional.special import ndtr as ndtr
from oneflow.functional.special import ndtri as ndtri
from oneflow.functional.special import polygamma as polygamma
from oneflow.functional.special import sinc as sinc
from oneflow.functional.special import xlog1py as xlog1py
from oneflow.functional.special import xlogy as xlogy
from oneflow.functional.special import zeta as zeta
from oneflow.tensor.tensor import Tensor

def erf(input: Tensor) -> Tensor: ...
def erfinv(input: Tensor) -> Tensor: ...
def exp2(input: Tensor) -> Tensor: ...
def expm1(input: Tensor) -> Tensor: ...
def log1p(input: Tensor) -> Tensor: ...
def log_softmax(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
def logit(input: Tensor, eps: float | None = None) -> Tensor: ...
def logsumexp(input: Tensor, dim: DimLike, keepdim: bool = ..., *, axis: DimLike = ..., keepdims: bool = ...) -> Tensor: ...
def softmax(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
