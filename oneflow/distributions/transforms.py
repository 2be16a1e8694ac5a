"""Invertible functions of tensors, by which one distribution becomes another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from oneflow.distributions import constraints
from oneflow.distributions.constraints import Constraint
from oneflow.functional.joining import cat
from oneflow.functional.shaping import reshape, tril
from oneflow.nn import functional as F
from oneflow.ops.unary import atanh, full_like, log, log1p
from oneflow.surfaces import accept_paths
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class Transform:
    """y = f(x). `sign`: of the derivative, where it is the same everywhere.

    Subclasses define `_call`, `_inverse` and `log_abs_det_jacobian`.  cache_size: accepted, nothing
    is kept: the inverse is always computed.
    """

    bijective = False
    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size

    @property
    def sign(self) -> int | Tensor:
        """1 if it grows, -1 if it falls."""
        raise NotImplementedError(f"{type(self).__name__} defines no sign")

    @property
    def inv(self) -> Transform:
        """The inverse transform."""
        return _Inverse(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The transform itself."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _call")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det dy/dx|, without the dims of one value."""
        raise NotImplementedError(f"{type(self).__name__} defines no log_abs_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of x, given that of y."""
        return tuple(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._forward = transform
        self.bijective = transform.bijective
        self.domain, self.codomain = transform.codomain, transform.domain

    @property
    def sign(self) -> int | Tensor:
        return self._forward.sign

    @property
    def inv(self) -> Transform:
        return self._forward

    def _call(self, x: Tensor) -> Tensor:
        return self._forward._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._forward._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._forward.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{self._forward!r}.inv"


def _summed(x: Tensor, count: int) -> Tensor:
    """The sum over the last `count` dims."""
    return x.sum(tuple(range(-count, 0))) if count else x


class ComposeTransform(Transform):
    """Several transforms, one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(p.bijective for p in parts)
        if parts:  # a value has as many dims as any part needs, or gives
            taken = given = 0
            for part in reversed(parts):
                taken = part.domain.event_dim + max(taken - part.codomain.event_dim, 0)
            for part in parts:
                given = part.codomain.event_dim + max(given - part.domain.event_dim, 0)
            self.domain = _deepened(parts[0].domain, taken)
            self.codomain = _deepened(parts[-1].codomain, given)

    @property
    def sign(self) -> int | Tensor:
        """The product of all signs."""
        return _product(self.parts)

    @property
    def inv(self) -> Transform:
        """The inverses in the opposite order."""
        return ComposeTransform([p.inv for p in reversed(self.parts)])

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        return self.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of all parts'."""
        dims = self.domain.event_dim
        total: Tensor = full_like(_summed(x.detach(), dims), value=0.0)
        for part in self.parts:
            reached = part(x)
            found = part.log_abs_det_jacobian(x, reached)
            total = total + _summed(found, dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
            x = reached
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of x, given that of y."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


def _product(parts: Sequence[Transform]) -> int | Tensor:
    """The product of their signs."""
    sign: int | Tensor = 1
    for part in parts:
        sign = sign * part.sign
    return sign


def _deepened(rule: Constraint, dims: int) -> Constraint:
    more = dims - rule.event_dim
    return constraints.independent(rule, more) if more > 0 else rule


class IndependentTransform(Transform):
    """A transform of which further last dims make one value."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective = base_transform.bijective
        self.domain = constraints.independent(base_transform.domain, reinterpreted_batch_ndims)
        self.codomain = constraints.independent(base_transform.codomain, reinterpreted_batch_ndims)

    @property
    def sign(self) -> int | Tensor:
        """That of the transform."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over the further dims."""
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return _summed(found, self.reinterpreted_batch_ndims)


class ReshapeTransform(Transform):
    """The last dims in another shape."""

    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0):
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError(
                f"in_shape {self.in_shape} and out_shape {self.out_shape} have different numbers "
                "of elements"
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _outer(self, shape: Sequence[int], inner: tuple[int, ...]) -> tuple[int, ...]:
        cut = len(shape) - len(inner)
        if cut < 0 or tuple(shape[cut:]) != inner:
            raise ValueError(f"the last dims of {tuple(shape)} must be {inner}")
        return tuple(shape[:cut])

    def _call(self, x: Tensor) -> Tensor:
        return reshape(x, (*self._outer(x.shape, self.in_shape), *self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return reshape(y, (*self._outer(y.shape, self.out_shape), *self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Zero."""
        return full_like(_summed(x.detach(), len(self.in_shape)), value=0.0)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        return (*self._outer(shape, self.in_shape), *self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of x, given that of y."""
        return (*self._outer(shape, self.out_shape), *self.in_shape)


class AffineTransform(Transform):
    """loc + scale x.  event_dim: last dims that make one value."""

    bijective = True

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        event_dim: int = 0,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        if event_dim:
            self.domain = self.codomain = constraints.independent(constraints.real, event_dim)

    @property
    def sign(self) -> int | Tensor:
        """That of the scale."""
        if isinstance(self.scale, Tensor):
            signs: Tensor = self.scale.sign()
            return signs
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithm of the scale's absolute value."""
        if isinstance(self.scale, Tensor):
            found = log(self.scale.abs()) + full_like(x.detach(), value=0.0)
        else:
            found = full_like(x.detach(), value=math.log(abs(self.scale)))
        return _summed(found, self.event_dim)


class ExpTransform(Transform):
    """exp(x)."""

    bijective = True
    codomain = constraints.positive
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """x."""
        return x


class PowerTransform(Transform):
    """x ** exponent of positive numbers."""

    bijective = True
    domain = codomain = constraints.positive

    def __init__(self, exponent: float | Tensor, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> int | Tensor:
        """That of the exponent."""
        power = self.exponent
        return power.sign() if isinstance(power, Tensor) else (power > 0) - (power < 0)

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |exponent y / x|."""
        return log((self.exponent * y / x).abs())


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    bijective = True
    codomain = constraints.unit_interval
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        info = finfo(x.dtype)
        return x.sigmoid().clamp(info.tiny, 1.0 - info.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        info = finfo(y.dtype)
        y = y.clamp(info.tiny, 1.0 - info.eps)
        return log(y) - log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log y (1 - y)."""
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    bijective = True
    codomain = constraints.positive
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(-(-y).expm1()) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """-log(1 + exp(-x))."""
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x)."""

    bijective = True
    codomain = constraints.interval(-1.0, 1.0)
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log(1 - y^2), in a form that keeps its digits for large x."""
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(Transform):
    """|x|, whose inverse gives the positive number."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(Transform):
    """Shares in proportion to exp(x) over the last dim; the inverse gives the logarithms."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return F.softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)


class StickBreakingTransform(Transform):
    """n numbers -> n + 1 shares: each takes a part of the rest of a stick."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _left(self, x: Tensor) -> Tensor:
        """Numbers of pieces that are still to come after each."""
        ones = full_like(x.detach(), value=1.0)
        return x.shape[-1] + 1 - ones.cumsum(-1)

    def _call(self, x: Tensor) -> Tensor:
        share = _clamped_sigmoid(x - log(self._left(x)))
        rest = (1 - share).cumprod(-1)
        return F.pad(share, [0, 1], value=1.0) * F.pad(rest, [1, 0], value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        body = y[..., :-1]
        rest = (1 - body.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return log(body) - log(rest) + log(self._left(body))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the logarithms of the rests and shares."""
        gap = x - log(self._left(x))
        return (-gap + F.logsigmoid(gap) + log(y[..., :-1])).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of x, given that of y."""
        return (*shape[:-1], shape[-1] - 1)


def _clamped_sigmoid(x: Tensor) -> Tensor:
    info = finfo(x.dtype)
    return x.sigmoid().clamp(info.tiny, 1.0 - info.eps)


class LowerCholeskyTransform(Transform):
    """Square matrices -> lower triangles with a positive diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return tril(x, -1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return tril(y, -1) + log(y.diagonal(0, -2, -1)).diag_embed()


class CatTransform(Transform):
    """Transforms of the parts of one dim, of `lengths`, side by side."""

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        self.bijective = all(t.bijective for t in self.transforms)

    def _each(self, x: Tensor, run: Callable[[Transform, Tensor], Tensor]) -> Tensor:
        begins = [sum(self.lengths[:k]) for k in range(len(self.lengths))]
        cuts = zip(self.transforms, begins, self.lengths, strict=True)
        return cat([run(t, x.narrow(self.dim, at, n)) for t, at, n in cuts], self.dim)

    def _call(self, x: Tensor) -> Tensor:
        return self._each(x, lambda t, part: t(part))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._each(y, lambda t, part: t.inv(part))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the parts side by side."""
        return self._each(x, lambda t, part: t.log_abs_det_jacobian(part, t(part)))


identity_transform = ComposeTransform([])


accept_paths(__name__)
