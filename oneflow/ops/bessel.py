"""Functions that no formula of elementary ones gives: Bessel's and Airy's, the incomplete gamma
function, and orthogonal polynomials by degree. Kernels compute them in float64.
"""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.errors import AutogradError, DTypeError
from oneflow.core.op import Op, declare, elementwise_signatures, row
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, reduce, scalar, unary
from oneflow.ops.checks import broadcast, require_float
from oneflow.ops.where import masked_fill

Rule = Callable[[Tensor, Tensor, Tensor], Gradients]


def _function(name: str, doc: str, grad: Rule | None = None) -> Callable[[Operand], Tensor]:
    def infer(x: Operand) -> TensorType:
        require_float(name, x)
        return x.meta

    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x)

    if grad is None:
        return row(name, infer, doc=doc, sbp=sbp, precision="follow")
    return row(name, infer, doc=doc, sbp=sbp, grad=grad, precision="follow")


def _over(x: Tensor, value: Tensor, at_zero: float) -> Tensor:
    """value / x, and `at_zero` where x is 0."""
    is_zero = compare.scalar_compare(x, value=0, kind="eq")
    safe = masked_fill(x, is_zero, value=1)
    return masked_fill(binary.div(value, safe), is_zero, value=at_zero)


def _i0_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    return (lambda: binary.mul(d, i1(x)),)


def _i0e_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    return (lambda: binary.mul(d, binary.sub(i1e(x), binary.mul(unary.sign(x), out))),)


def _i1_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    return (lambda: binary.mul(d, binary.sub(i0(x), _over(x, out, 0.5))),)


def _i1e_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    def d_x() -> Tensor:
        rest = binary.add(_over(x, out, 0.5), binary.mul(unary.sign(x), out))
        return binary.mul(d, binary.sub(i0e(x), rest))

    return (d_x,)


i0 = _function("i0", "The modified Bessel function of the first kind, of order 0.", _i0_grad)
i0e = _function("i0e", "exp(-|x|) i0(x).", _i0e_grad)
i1 = _function("i1", "The modified Bessel function of the first kind, of order 1.", _i1_grad)
i1e = _function("i1e", "exp(-|x|) i1(x).", _i1e_grad)
bessel_j0 = _function("bessel_j0", "The Bessel function of the first kind, of order 0.")
bessel_j1 = _function("bessel_j1", "The Bessel function of the first kind, of order 1.")
bessel_y0 = _function("bessel_y0", "The Bessel function of the second kind, of order 0.")
bessel_y1 = _function("bessel_y1", "The Bessel function of the second kind, of order 1.")
modified_bessel_k0 = _function(
    "modified_bessel_k0", "The modified Bessel function of the second kind, of order 0."
)
modified_bessel_k1 = _function(
    "modified_bessel_k1", "The modified Bessel function of the second kind, of order 1."
)
scaled_modified_bessel_k0 = _function("scaled_modified_bessel_k0", "exp(x) modified_bessel_k0(x).")
scaled_modified_bessel_k1 = _function("scaled_modified_bessel_k1", "exp(x) modified_bessel_k1(x).")
spherical_bessel_j0 = _function("spherical_bessel_j0", "sin(x) / x, and 1 at 0.")
airy_ai = _function("airy_ai", "The Airy function Ai.")


class Gammainc(Op):
    """The integral of t^(a-1) exp(-t) from 0 to x, or from x on if is_upper, over that from 0 on.

    log_gamma: the logarithm of the gamma function of a.  A gradient for a raises AutogradError.
    """

    name = "gammainc"
    precision = "follow"

    @staticmethod
    def infer(a: Operand, x: Operand, log_gamma: Operand, *, is_upper: bool = False) -> TensorType:
        require_float("gammainc", a, x)
        return TensorType(broadcast("gammainc", a, x, log_gamma), x.dtype)

    @staticmethod
    def sbp(
        a: TensorType, x: TensorType, log_gamma: TensorType, *, is_upper: bool
    ) -> list[SbpSignature]:
        return elementwise_signatures(a, x, log_gamma)

    @staticmethod
    def grad(
        d: Tensor, a: Tensor, x: Tensor, log_gamma: Tensor, out: Tensor, *, is_upper: bool
    ) -> Gradients:
        def d_x() -> Tensor:
            logs = binary.mul(scalar.scalar_add(a, value=-1), unary.log(x))
            slope = unary.exp(binary.sub(binary.sub(logs, x), log_gamma))
            return reduce.sum_to_shape(
                binary.mul(d, unary.neg(slope) if is_upper else slope), x.meta.shape
            )

        def d_a() -> Tensor:
            raise AutogradError(
                f"the derivative of {'igammac' if is_upper else 'igamma'} for its first argument, "
                f"{a.meta}, is not implemented; detach() that argument"
            )

        return d_a, d_x, None


gammainc = declare(Gammainc)

KINDS = ("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he",
         "laguerre_l", "legendre_p")  # fmt: skip


class Polynomial(Op):
    """The polynomial of degree n, one of `KINDS`, at x; 0 for negative n."""

    name = "polynomial"
    precision = "follow"

    @staticmethod
    def infer(x: Operand, n: Operand, *, kind: str) -> TensorType:
        require_float("polynomial", x, n)
        if kind not in KINDS:
            raise DTypeError(f"polynomial knows {', '.join(KINDS)}, got {kind!r}")
        return TensorType(broadcast("polynomial", x, n), x.dtype)

    @staticmethod
    def sbp(x: TensorType, n: TensorType, *, kind: str) -> list[SbpSignature]:
        return elementwise_signatures(x, n)


polynomial = declare(Polynomial)
