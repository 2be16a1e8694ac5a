"""Invertible functions of tensors, by which one distribution becomes another."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from oneflow.distributions import constraints
from oneflow.distributions.constraints import Constraint, Rule, dependent_property
from oneflow.functional.concat_split import cat
from oneflow.functional.shaping import broadcast_shapes, reshape, tril
from oneflow.nn import functional as F
from oneflow.ops.unary import atanh, full_like, log, log1p
from oneflow.surfaces import accept_paths
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class Transform:
    """y = f(x). `sign`: of the derivative, where it is the same everywhere.

    Subclasses define `_call`, `_inverse` and `log_abs_det_jacobian`.  cache_size: 1 keeps the last
    x and y, so that the inverse of a value just computed costs nothing, or exists at all.
    """

    bijective: bool = False
    domain: Rule = constraints.real
    codomain: Rule = constraints.real
    _made_of: tuple[str, ...] = ()
    """The attributes that the constructor takes, which decide whether two are equal."""

    _equals_its_kind = False
    """Whether two transforms of the class that are made of equal values are equal."""

    _inv: Any
    _cached_x_y: tuple[Tensor | None, Tensor | None]

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._inv = None
        self._cached_x_y = None, None
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inv": None}  # a weak reference cannot be copied

    @property
    def event_dim(self) -> int:
        """Number of last dims that make one value, where it is the same for x and y."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")
        return self.domain.event_dim

    @property
    def sign(self) -> int | Tensor:
        """1 if it grows, -1 if it falls."""
        raise NotImplementedError(f"{type(self).__name__} defines no sign")

    @property
    def inv(self) -> Transform:
        """The inverse transform: the same one as long as somebody holds it."""
        made = None if self._inv is None else self._inv()
        if made is None:
            made = self._inverted()
            self._inv = weakref.ref(made)
        found: Transform = made
        return found

    def _inverted(self) -> Transform:
        return _Inverse(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The transform itself, or the same one that keeps 1 or 0 pairs of x and y."""
        if self._cache_size == cache_size:
            return self
        if not self._made_of and type(self).__init__ is not Transform.__init__:
            raise NotImplementedError(f"{type(self).__name__} defines no with_cache")
        make: Callable[..., Transform] = type(self)
        return make(*(getattr(self, n) for n in self._made_of), cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        if self is other or not self._equals_its_kind:
            return self is other
        mine = (getattr(self, name) for name in self._made_of)
        return isinstance(other, type(self)) and all(
            _are_equal(x, getattr(other, name)) for name, x in zip(self._made_of, mine, strict=True)
        )

    def __call__(self, x: Tensor) -> Tensor:
        known_x, known_y = self._cached_x_y
        if x is known_x and known_y is not None:
            return known_y
        y = self._call(x)
        if self._cache_size:
            self._cached_x_y = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        known_x, known_y = self._cached_x_y
        if y is known_y and known_x is not None:
            return known_x
        x = self._inverse(y)
        if self._cache_size:
            self._cached_x_y = x, y
        return x

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


def _are_equal(a: object, b: object) -> bool:
    """Whether two parts of transforms are equal: numbers, shapes, tensors, or transforms."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        found: Any = a == b
        return bool(found.all())
    return a == b


class _Inverse(Transform):
    """The inverse of a transform, which it holds as `_inv`."""

    _made_of = ("_inv",)
    _equals_its_kind = True

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._inv = transform

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @dependent_property
    def domain(self) -> Rule:
        return self._forward.codomain

    @dependent_property
    def codomain(self) -> Rule:
        return self._forward.domain

    bijective = cast("bool", property(lambda self: self._forward.bijective))

    @property
    def _forward(self) -> Transform:
        found: Transform = self._inv
        return found

    @property
    def sign(self) -> int | Tensor:
        return self._forward.sign

    @property
    def inv(self) -> Transform:
        return self._forward

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._forward.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._forward(y)

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

    _made_of = ("parts",)
    _equals_its_kind = True

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [p.with_cache(cache_size) for p in parts] if cache_size else list(parts)

    bijective = cast("bool", property(lambda self: all(p.bijective for p in self.parts)))

    @dependent_property
    def domain(self) -> Rule:
        """That of the first part, with as many dims as any part needs."""
        taken = 0
        for part in reversed(self.parts):
            taken = part.domain.event_dim + max(taken - part.codomain.event_dim, 0)
        return _deepened(self.parts[0].domain, taken) if self.parts else constraints.real

    @dependent_property
    def codomain(self) -> Rule:
        """That of the last part, with as many dims as any part gives."""
        given = 0
        for part in self.parts:
            given = part.codomain.event_dim + max(given - part.domain.event_dim, 0)
        return _deepened(self.parts[-1].codomain, given) if self.parts else constraints.real

    @property
    def sign(self) -> int | Tensor:
        """The product of all signs."""
        return _product(self.parts)

    def _inverted(self) -> Transform:
        made = ComposeTransform([p.inv for p in reversed(self.parts)])
        made._inv = weakref.ref(self)
        return made

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
            reached = y if part is self.parts[-1] else part(x)
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


def _deepened(rule: Rule, dims: int) -> Rule:
    more = dims - rule.event_dim
    return constraints.independent(rule, more) if more > 0 else rule


class IndependentTransform(Transform):
    """A transform of which further last dims make one value."""

    _made_of = ("base_transform", "reinterpreted_batch_ndims")
    _equals_its_kind = True

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    bijective = cast("bool", property(lambda self: self.base_transform.bijective))

    @dependent_property
    def domain(self) -> Constraint:
        """That of the transform, of more dims."""
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @dependent_property
    def codomain(self) -> Constraint:
        """That of the transform, of more dims."""
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

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

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of x, given that of y."""
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """The last dims in another shape."""

    bijective = True
    _made_of = ("in_shape", "out_shape")
    _equals_its_kind = True

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


class _Broadcasting(Transform):
    """A transform whose parameters broadcast against x."""

    _equals_its_kind = True

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of y, given that of x."""
        parts = (getattr(self, name) for name in self._made_of)
        return tuple(broadcast_shapes(shape, *(p.shape for p in parts if isinstance(p, Tensor))))

    inverse_shape = forward_shape


class AffineTransform(_Broadcasting):
    """loc + scale x.  event_dim: last dims that make one value."""

    bijective = True
    _made_of = ("loc", "scale", "event_dim")

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        event_dim: int = 0,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    @property
    def event_dim(self) -> int:
        """Number of last dims that make one value."""
        return self._event_dim

    @dependent_property(is_discrete=False)
    def domain(self) -> Constraint:
        """All numbers."""
        return _deepened_real(self.event_dim)

    @dependent_property(is_discrete=False)
    def codomain(self) -> Constraint:
        """All numbers."""
        return _deepened_real(self.event_dim)

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


def _deepened_real(dims: int) -> Constraint:
    return constraints.independent(constraints.real, dims) if dims else constraints.real


class ExpTransform(Transform):
    """exp(x)."""

    _equals_its_kind = True
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


class PowerTransform(_Broadcasting):
    """x ** exponent of positive numbers."""

    bijective = True
    _made_of = ("exponent",)
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

    _equals_its_kind = True
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

    _equals_its_kind = True
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

    _equals_its_kind = True
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

    _equals_its_kind = True
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(Transform):
    """Shares in proportion to exp(x) over the last dim; the inverse gives the logarithms."""

    _equals_its_kind = True
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return F.softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)


class StickBreakingTransform(Transform):
    """n numbers -> n + 1 shares: each takes a part of the rest of a stick."""

    _equals_its_kind = True
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

    _equals_its_kind = True
    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return tril(x, -1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return tril(y, -1) + log(y.diagonal(0, -2, -1)).diag_embed()


class CatTransform(Transform):
    """Transforms of the parts of one dim, of `lengths`, side by side."""

    _made_of = ("transforms", "dim", "lengths")

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    @property
    def event_dim(self) -> int:
        """The largest number of last dims that make one value of a part."""
        return max(t.event_dim for t in self.transforms)

    @property
    def length(self) -> int:
        """Size of the dim."""
        return sum(self.lengths)

    bijective = cast("bool", property(lambda self: all(t.bijective for t in self.transforms)))

    @dependent_property
    def domain(self) -> Constraint:
        """Those of the parts side by side."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @dependent_property
    def codomain(self) -> Constraint:
        """Those of the parts side by side."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _parts(self, x: Tensor) -> list[Tensor]:
        begins = [sum(self.lengths[:k]) for k in range(len(self.lengths))]
        return [x.narrow(self.dim, at, n) for at, n in zip(begins, self.lengths, strict=True)]

    def _each(self, x: Tensor, run: Callable[[Transform, Tensor], Tensor]) -> Tensor:
        pairs = zip(self.transforms, self._parts(x), strict=True)
        return cat([run(t, part) for t, part in pairs], self.dim)

    def _call(self, x: Tensor) -> Tensor:
        return self._each(x, lambda t, part: t(part))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._each(y, lambda t, part: t._inv_call(part))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the parts side by side, or their sum where the dim is one of a value's."""
        found = []
        for t, a, b in zip(self.transforms, self._parts(x), self._parts(y), strict=True):
            more = self.event_dim - t.domain.event_dim
            found.append(_summed(t.log_abs_det_jacobian(a, b), more))
        at = self.dim - x.ndim if self.dim >= 0 else self.dim
        if at + self.event_dim < 0:
            return cat(found, at + self.event_dim)
        total = found[0]
        for part in found[1:]:
            total = total + part
        return total


identity_transform = ComposeTransform([])

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


accept_paths(__name__)
