"""Random tensors. Element i depends on (seed, i) alone, so that shards equal slices of the whole:
see core/rng.py."""

from __future__ import annotations

from oneflow.core.dtype import DType
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare, elementwise_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import FLOAT, require
from oneflow.ops.creation import source_signatures, source_type
from oneflow.ops.unary import full_like

Shape = tuple[int, ...]


def _float_source(name: str, shape: Shape, dtype: DType) -> TensorType:
    out = source_type(name, shape, dtype)
    require(name, out, FLOAT)
    return out


class Uniform(Op):
    """Uniform over [low, high)."""

    name = "uniform"
    is_random = True

    @staticmethod
    def infer(*, shape: Shape, dtype: DType, low: float, high: float, seed: int) -> TensorType:
        return _float_source("uniform", shape, dtype)

    @staticmethod
    def sbp(*, shape: Shape, **_: object) -> list[SbpSignature]:
        return source_signatures(len(shape))


uniform = declare(Uniform)


class Normal(Op):
    """Normally distributed with `mean` and standard deviation `std`."""

    name = "normal"
    is_random = True

    @staticmethod
    def infer(*, shape: Shape, dtype: DType, mean: float, std: float, seed: int) -> TensorType:
        if std < 0:
            raise ShapeError(f"normal expects std >= 0.0, but found std {std}")
        return _float_source("normal", shape, dtype)

    @staticmethod
    def sbp(*, shape: Shape, **_: object) -> list[SbpSignature]:
        return source_signatures(len(shape))


normal = declare(Normal)


class Randint(Op):
    """Integers, uniform over low .. high - 1."""

    name = "randint"
    is_random = True

    @staticmethod
    def infer(*, shape: Shape, dtype: DType, low: int, high: int, seed: int) -> TensorType:
        if low >= high:
            raise ShapeError(f"randint needs low < high, got low {low} and high {high}")
        return source_type("randint", shape, dtype)

    @staticmethod
    def sbp(*, shape: Shape, **_: object) -> list[SbpSignature]:
        return source_signatures(len(shape))


randint = declare(Randint)


class _Drawn(Op):
    """One number for each element of p, of the type of p. The draw has no derivative."""

    is_random = True

    @classmethod
    def infer(cls, p: Operand, *, seed: int) -> TensorType:
        require(cls.name, p, FLOAT)
        return p.meta

    @staticmethod
    def sbp(p: TensorType, **_: object) -> list[SbpSignature]:
        return elementwise_signatures(p)

    @staticmethod
    def grad(d: Tensor, p: Tensor, out: Tensor, **_: object) -> Gradients:
        return (full_like(p, value=0),)


class Bernoulli(_Drawn):
    """1 with probability p[...], else 0, element by element; of the type of p."""

    name = "bernoulli"
    precision = "follow"


bernoulli = declare(Bernoulli)


class StandardGamma(_Drawn):
    """A number of the gamma distribution with shape p[...] and rate 1; of the type of p."""

    name = "standard_gamma"
    precision = "follow"


standard_gamma = declare(StandardGamma)


class StandardGammaGrad(Op):
    """Derivative of `standard_gamma` by its shape a[...], at the draw x[...]: how fast the place
    moves below which the distribution has the same share.
    """

    name = "standard_gamma_grad"

    @staticmethod
    def infer(a: Operand, x: Operand) -> TensorType:
        require("standard_gamma_grad", a, FLOAT)
        if a.meta != x.meta:
            raise ShapeError(f"standard_gamma_grad: {x} are no draws of {a}")
        return a.meta

    @staticmethod
    def sbp(a: TensorType, x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(a, x)


standard_gamma_grad = declare(StandardGammaGrad)


class Poisson(_Drawn):
    """A whole number of the Poisson distribution with mean p[...]; of the type of p."""

    name = "poisson"
    precision = "follow"


poisson = declare(Poisson)


class Randperm(Op):
    """A random order of 0 .. n - 1."""

    name = "randperm"
    is_random = True

    @staticmethod
    def infer(*, n: int, dtype: DType, seed: int) -> TensorType:
        out = source_type("randperm", (n,), dtype)
        if not dtype.is_integer and not dtype.is_floating_point:
            raise DTypeError(f"randperm cannot count in {dtype.name}")
        return out


randperm = declare(Randperm)
