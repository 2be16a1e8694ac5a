"""Families of `torch.distributions` beside those of `flow.distributions`: numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oneflow import surfaces
from oneflow.distributions import constraints
from oneflow.distributions.composed import TransformedDistribution
from oneflow.distributions.counts import _OfChances
from oneflow.distributions.distribution import Parametric, alike
from oneflow.distributions.gamma import Gamma
from oneflow.distributions.location_scale import EULER, Uniform
from oneflow.distributions.transforms import AffineTransform, PowerTransform
from oneflow.functional.creation import rand
from oneflow.functional.elementwise import pick
from oneflow.functional.shaping import expand
from oneflow.ops.special import digamma, lgamma
from oneflow.ops.unary import full_like, log, log1p
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class ContinuousBernoulli(_OfChances):
    """Numbers of [0, 1] whose density is a power of `probs` times one of 1 - `probs`.

    Loaiza-Ganem and Cunningham, NeurIPS 2019. Within `lims` of one half, where the formulas lose
    their digits, their series in probs - 1/2 are taken.
    """

    has_rsample = True
    support = constraints.unit_interval

    def __init__(
        self,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._lims = lims
        self._keep_chances(probs, logits, validate_args)

    def _fixed(self) -> dict[str, Any]:
        return {"lims": self._lims}

    def _apart(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masks of the formulas' chances, those with others in place of those near a half, and
        their distances from it.
        """
        low, high = self._lims
        eps = finfo(self.probs.dtype).eps
        chances = self.probs.clamp(eps, 1 - eps)
        is_far = (chances <= low) | (chances > high)
        return is_far, pick(is_far, chances, low), chances - 0.5

    def _log_scale(self) -> Tensor:
        """Logarithm of the factor that makes the density integrate to 1."""
        is_far, p, gap = self._apart()
        odds = log1p(-p) - log(p)
        exact = log(odds.abs()) - log((1 - 2 * p).abs())
        series = math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * gap**2) * gap**2
        return pick(is_far, exact, series)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        is_far, p, gap = self._apart()
        exact = p / (2 * p - 1) + 1 / (log1p(-p) - log(p))
        return pick(is_far, exact, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * gap**2) * gap)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        is_far, p, gap = self._apart()
        exact = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / (log1p(-p) - log(p)) ** 2
        square = gap**2
        return pick(is_far, exact, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * square) * square)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws whose gradient reaches the parameters."""
        return self.icdf(rand(tuple(self._extended_shape(sample_shape)), **self._kind()))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws of shape sample_shape + batch_shape."""
        with no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        eps = finfo(self.probs.dtype).eps
        p = self.probs.clamp(eps, 1 - eps)
        return value * log(p) + (1 - value) * log1p(-p) + self._log_scale()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of a value at most this large."""
        self._check_value(value)
        is_far, p, _ = self._apart()
        exact = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        inside = pick(is_far.expand_as(exact), exact, value + exact * 0)
        return inside.clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value up to which this much probability lies."""
        is_far, p, _ = self._apart()
        exact = (log1p(-p + value * (2 * p - 1)) - log1p(-p)) / (log(p) - log1p(-p))
        return pick(is_far.expand_as(exact), exact, value + exact * 0)

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        eps = finfo(self.probs.dtype).eps
        p = self.probs.clamp(eps, 1 - eps)
        return self.mean * (log1p(-p) - log(p)) - self._log_scale() - log1p(-p)


class FisherSnedecor(Parametric):
    """The ratio of two gamma numbers with `df1` and `df2` degrees of freedom."""

    has_rsample = True
    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    df1: Tensor
    df2: Tensor

    def __init__(
        self, df1: float | Tensor, df2: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self._keep(validate_args, df1=df1, df2=df2)

    @property
    def mean(self) -> Tensor:
        """The expected value; NaN up to two degrees of freedom below."""
        return (self.df2 / (self.df2 - 2)).masked_fill(self.df2 <= 2, math.nan)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN up to two degrees of freedom above."""
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return found.masked_fill(self.df1 <= 2, math.nan)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean; NaN up to four degrees below."""
        a, b = self.df1, self.df2
        found = 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4))
        return found.masked_fill(b <= 4, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws whose gradient reaches the parameters."""
        above = Gamma(self.df1 / 2, self.df1 / 2, False).rsample(sample_shape)
        below = Gamma(self.df2 / 2, self.df2 / 2, False).rsample(sample_shape)
        tiny = finfo(self.df1.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        a, b = self.df1 / 2, self.df2 / 2
        ratio = self.df1 / self.df2
        scale = lgamma(a + b) - lgamma(a) - lgamma(b)
        return scale + a * log(ratio) + (a - 1) * log(value) - (a + b) * log1p(ratio * value)


class GeneralizedPareto(Parametric):
    """Excesses over `loc`, with a tail of power 1 / `concentration`, of `scale`."""

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    loc: Tensor
    scale: Tensor
    concentration: Tensor

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        concentration: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self._keep(validate_args, loc=loc, scale=scale, concentration=concentration)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Numbers from `loc` on, up to an end where all tails are bounded."""
        end = self.loc - self.scale / self._tail()[1]
        end = pick(self.concentration < 0, end, full_like(end.detach(), value=math.inf))
        return constraints.interval(self.loc, end)

    def _tail(self) -> tuple[Tensor, Tensor]:
        """Masks of exponential tails, and the powers with 1 in place of those 0."""
        is_zero = self.concentration.abs() <= 1e-8
        return is_zero, pick(is_zero, 1.0, self.concentration)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws whose gradient reaches the parameters."""
        return self.icdf(rand(tuple(self._extended_shape(sample_shape)), **self._kind()))

    def log_survival_function(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of a larger value."""
        self._check_value(value)
        z = (value - self.loc) / self.scale
        is_zero, power = self._tail()
        heavy = -log1p(power * z) / power
        return pick(is_zero.expand_as(heavy), -z, heavy)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        return (1 + self.concentration) * self.log_survival_function(value) - log(self.scale)

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of a value at most this large."""
        return log1p(-self.log_survival_function(value).exp())

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of a value at most this large."""
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value up to which this much probability lies."""
        is_zero, power = self._tail()
        left = log1p(-value)
        heavy = (-power * left).expm1() / power
        return self.loc + self.scale * pick(is_zero.expand_as(heavy), -left, heavy)

    @property
    def mean(self) -> Tensor:
        """The expected value; NaN from a concentration of 1 on."""
        found = self.loc + self.scale / (1 - self.concentration)
        return found.masked_fill(self.concentration >= 1, math.nan)

    @property
    def mode(self) -> Tensor:
        """The beginning."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean; NaN from a concentration of 1/2 on."""
        power = self.concentration
        found = self.scale**2 / ((1 - power) ** 2 * (1 - 2 * power))
        return found.masked_fill(power >= 0.5, math.nan)

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        return log(self.scale) + self.concentration + 1


class InverseGamma(TransformedDistribution):
    """Numbers whose inverses are gamma numbers."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    base_dist: Gamma

    def __init__(
        self,
        concentration: float | Tensor,
        rate: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        base = Gamma(concentration, rate, validate_args)
        super().__init__(base, PowerTransform(-1 + 0 * base.rate.detach()), validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> InverseGamma:
        """Return the same distributions under a larger batch shape."""
        wide = self.base_dist.expand(batch_shape)
        return self._grown(InverseGamma, _instance, wide.concentration, wide.rate)

    @property
    def concentration(self) -> Tensor:
        """Shape of the gamma numbers."""
        return self.base_dist.concentration

    @property
    def rate(self) -> Tensor:
        """Rate of the gamma numbers."""
        return self.base_dist.rate

    @property
    def mean(self) -> Tensor:
        """The expected value; infinite up to a concentration of 1."""
        found = self.rate / (self.concentration - 1)
        return found.masked_fill(self.concentration <= 1, math.inf)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean; infinite up to a concentration of 2."""
        shape = self.concentration
        found = self.rate**2 / ((shape - 1) ** 2 * (shape - 2))
        return found.masked_fill(shape <= 2, math.inf)

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        shape = self.concentration
        return shape + log(self.rate) + lgamma(shape) - (1 + shape) * digamma(shape)


class Kumaraswamy(TransformedDistribution):
    """Numbers of (0, 1): 1 - (1 - x ** concentration1) ** concentration0 is uniform."""

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(
        self,
        concentration1: float | Tensor,
        concentration0: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        a, b = alike(concentration1=concentration1, concentration0=concentration0)
        self.concentration1, self.concentration0 = a, b
        unit = full_like(a.detach(), value=1.0)
        base = Uniform(0 * unit, unit, validate_args=False)
        flip = AffineTransform(1.0, -1.0)
        chain = [PowerTransform(1 / b), flip, PowerTransform(1 / a)]
        super().__init__(base, chain, validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Kumaraswamy:
        """Return the same distributions under a larger batch shape."""
        a, b = (expand(p, tuple(batch_shape)) for p in (self.concentration1, self.concentration0))
        return self._grown(Kumaraswamy, _instance, a, b)

    def _moment(self, order: int) -> Tensor:
        """The expected value of a power."""
        a, b = self.concentration1, self.concentration0
        power = 1 + order / a
        return (log(b) + lgamma(power) + lgamma(b) - lgamma(power + b)).exp()

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN where it is at both ends."""
        a, b = self.concentration1, self.concentration0
        found = ((a - 1) / (a * b - 1)) ** (1 / a)
        return found.masked_fill((a < 1) | (b < 1), math.nan)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self._moment(2) - self.mean**2

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        a, b = self.concentration1, self.concentration0
        return (1 - 1 / b) + (1 - 1 / a) * (digamma(b + 1) + EULER) - log(a) - log(b)


def _bessel(name: str, x: Tensor) -> Tensor:
    """Return a modified Bessel function of the first kind, scaled by exp(-|x|)."""
    found: Tensor = surfaces.find("special", name)(x)
    return found


class VonMises(Parametric):
    """Angles of [-pi, pi] around `loc`, closer to it the larger the `concentration`."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = False
    loc: Tensor
    concentration: Tensor

    def __init__(
        self, loc: float | Tensor, concentration: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self._keep(validate_args, loc=loc, concentration=concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        c = self.concentration
        near = c * ((value - self.loc).cos() - 1)
        return near - math.log(2 * math.pi) - log(_bessel("i0e", c))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws of shape sample_shape + batch_shape.

        Rejection from a wrapped Cauchy distribution: Best and Fisher, Applied Statistics 28(2),
        1979. Two thirds of the proposals or more are taken; the loop draws for the rest.
        """
        with no_grad():
            shape = tuple(self._extended_shape(sample_shape))
            c, loc = (expand(p.detach().double(), shape) for p in (self.concentration, self.loc))
            tau = 1 + (1 + 4 * c**2).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * c)
            # For small concentrations the difference above loses its digits: a series instead.
            r = pick(c < 1e-5, 1 / c + c, (1 + rho**2) / (2 * rho))
            found, is_done = 0 * c, c < 0
            while not bool(is_done.all()):
                u1, u2, u3 = rand((3, *shape), dtype=c.dtype, device=c.device).unbind()
                z = (math.pi * u1).cos()
                f = (1 + r * z) / (r + z)
                gain = c * (r - f)
                is_taken = (gain * (2 - gain) - u2 > 0) | (log(gain / u2) + 1 - gain >= 0)
                angle = (u3 - 0.5).sign() * f.clamp(-1, 1).acos()
                found = pick(is_taken & ~is_done, angle, found)
                is_done = is_done | is_taken
            turned = (found + loc + math.pi) % (2 * math.pi) - math.pi
            return turned.type_as(self.loc)

    @property
    def mean(self) -> Tensor:
        """The mean angle."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable angle."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """One minus the length of the mean of the points of the circle."""
        return 1 - _bessel("i1e", self.concentration) / _bessel("i0e", self.concentration)
