"""Samples of distributions: all that they compute without drawing, and the shapes of draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Sample = Callable[[Any], Any]

RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((4, 3))
PLACE, WIDTH = RNG.standard_normal(3), RNG.uniform(0.4, 2.0, 3)
POSITIVE, CHANCES = RNG.uniform(0.2, 3.0, (4, 3)), RNG.uniform(0.1, 0.9, 3)
SHARES = RNG.dirichlet(np.ones(3), 2)
COUNTS = np.array([[0.0, 3.0, 5.0], [1.0, 2.0, 4.0]])
MATRIX = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.4], [0.1, -0.4, 1.0]])
WARM = np.array(0.7)

FAMILIES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "Bernoulli": ((CHANCES,), np.array([[0.0, 1.0, 1.0]])),
    "Beta": ((WIDTH, WIDTH[::-1].copy()), RNG.uniform(0.1, 0.9, (4, 3))),
    "Binomial": ((np.array(5.0), CHANCES), COUNTS),
    "Categorical": ((SHARES,), np.array([0, 2])),
    "Cauchy": ((PLACE, WIDTH), REAL),
    "ContinuousBernoulli": ((np.array([0.2, 0.4999, 0.8]),), RNG.uniform(0.1, 0.9, (4, 3))),
    "FisherSnedecor": ((WIDTH + 3, WIDTH + 4), POSITIVE),
    "GeneralizedPareto": (
        (PLACE.astype("f"), WIDTH.astype("f"), np.array([0.1, -0.2, 0.6], "f")),
        (PLACE + POSITIVE / 4).astype("f"),
    ),
    "InverseGamma": ((WIDTH + 2, WIDTH), POSITIVE),
    "Kumaraswamy": ((WIDTH + 1, WIDTH[::-1] + 1), RNG.uniform(0.1, 0.9, (4, 3))),
    "LowRankMultivariateNormal": ((REAL[:2], REAL[2:].T.copy(), WIDTH), REAL[2:]),
    "VonMises": ((PLACE, WIDTH), REAL),
    "Wishart": ((np.array(4.5), MATRIX), MATRIX @ np.stack([MATRIX, np.eye(3)])),
    "Chi2": ((WIDTH,), POSITIVE),
    "Dirichlet": ((POSITIVE[:2],), SHARES),
    "Exponential": ((WIDTH,), POSITIVE),
    "Gamma": ((WIDTH, WIDTH * 2), POSITIVE),
    "Geometric": ((CHANCES,), COUNTS),
    "Gumbel": ((PLACE, WIDTH), REAL),
    "HalfCauchy": ((WIDTH,), POSITIVE),
    "HalfNormal": ((WIDTH,), POSITIVE),
    "Laplace": ((PLACE, WIDTH), REAL),
    "LogNormal": ((PLACE, WIDTH), POSITIVE),
    "MultivariateNormal": ((REAL[:2], MATRIX), REAL[2:]),
    "NegativeBinomial": ((np.array([5.0, 2.0, 3.0]), CHANCES), COUNTS),
    "Normal": ((PLACE, WIDTH), REAL),
    "OneHotCategorical": ((SHARES,), np.eye(3)[[0, 2]]),
    "OneHotCategoricalStraightThrough": ((SHARES,), np.eye(3)[[0, 2]]),
    "Pareto": ((WIDTH, WIDTH + 2), POSITIVE + 2),
    "Poisson": ((WIDTH * 4,), COUNTS),
    "RelaxedBernoulli": ((WARM, CHANCES), RNG.uniform(0.1, 0.9, (4, 3))),
    "RelaxedOneHotCategorical": ((WARM, SHARES), SHARES[::-1].copy()),
    "StudentT": ((WIDTH * 3, PLACE, WIDTH), REAL),
    "Uniform": ((PLACE - 3, PLACE + 3), PLACE + REAL / 2),
    "Weibull": ((WIDTH, WIDTH + 1), POSITIVE),
}
"""Name -> parameters, and values of its support."""

WRONG_MODE = ("Kumaraswamy",)
"""PyTorch's is NaN: a logarithm of a negative number."""


def _tensors(m: Any, arrays: Any) -> list[Any]:
    return [m.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]


def _answer(get: Callable[[], Any]) -> Any:
    try:
        return get().detach()
    except NotImplementedError:
        return None


def family(name: str) -> Sample:
    """Densities with their gradients, moments, entropy, and shapes also of expanded ones."""

    def sample(m: Any) -> Any:
        params, value = _tensors(m, FAMILIES[name][0]), m.tensor(FAMILIES[name][1])
        d = getattr(m.distributions, name)(*params)
        score = d.log_prob(value)
        score.sum().backward()
        wanted = ("mean", "variance", *(("mode",) if name not in WRONG_MODE else ()))
        moments = [_answer(partial(getattr, d, k)) for k in wanted]
        wide = d.expand((2, *d.batch_shape))
        shapes = [d.batch_shape, d.event_shape, wide.batch_shape, d.sample((5, 2)).shape]
        grads = [p.grad for p in params]
        return score.detach(), grads, moments, _answer(d.entropy), [tuple(s) for s in shapes]

    return sample


def bounded(name: str) -> Sample:
    """Shares below values, and back."""

    def sample(m: Any) -> Any:
        params, value = _tensors(m, FAMILIES[name][0]), m.tensor(FAMILIES[name][1])
        d = getattr(m.distributions, name)(*params)
        shares = m.tensor([0.1, 0.5, 0.8]).to(value.dtype)
        return d.cdf(value).detach(), d.icdf(shares).detach()

    return sample


def divergence(name: str) -> Sample:
    """kl_divergence of a family with itself, under other parameters."""

    def sample(m: Any) -> Any:
        arrays = FAMILIES[name][0]
        params = _tensors(m, arrays)
        others = [m.tensor(a * 1.5 if name in LARGER else a * 0.7 + 0.1) for a in arrays]
        kind = getattr(m.distributions, name)
        found = m.distributions.kl_divergence(kind(*params), kind(*others))
        found.sum().backward()
        return found.detach(), [p.grad for p in params]

    return sample


BOUNDED = (
    "Cauchy ContinuousBernoulli Exponential GeneralizedPareto Gumbel HalfCauchy HalfNormal "
    "Kumaraswamy Laplace LogNormal Normal Uniform Weibull"
)
LARGER = ("MultivariateNormal", "Uniform")
KL = (
    "Bernoulli Beta Categorical Chi2 Dirichlet Exponential Gamma Geometric Gumbel HalfNormal "
    "Laplace LogNormal LowRankMultivariateNormal MultivariateNormal Normal OneHotCategorical "
    "Pareto Poisson Uniform"
)

TRANSFORMS: dict[str, tuple[Any, ...]] = {
    "AffineTransform": (1.5, -2.0),
    "ExpTransform": (),
    "PowerTransform": (2.5,),
    "ReshapeTransform": ((3,), (3, 1)),
    "SigmoidTransform": (),
    "SoftplusTransform": (),
    "StickBreakingTransform": (),
    "TanhTransform": (),
}


def transform(name: str) -> Sample:
    """There and back, and logarithms of determinants, also by way of a distribution."""

    def sample(m: Any) -> Any:
        f = getattr(m.distributions, name)(*TRANSFORMS[name])
        x = m.tensor(POSITIVE / 3, requires_grad=True)
        y = f(x)
        logs = f.log_abs_det_jacobian(x, y), f.inv.log_abs_det_jacobian(y, x)
        (y.sum() + logs[0].sum()).backward()
        base = m.distributions.Exponential(m.ones(3).double())
        d = m.distributions.TransformedDistribution(base, [f])
        shapes = [d.batch_shape, d.event_shape, d.sample((2,)).shape, f.forward_shape((4, 3))]
        values = [y, f.inv(y), *logs, d.log_prob(y)]
        return [v.detach() for v in values], x.grad, [tuple(s) for s in shapes]

    return sample


def one_way(m: Any) -> Any:
    """Transforms that have no inverse of every value, and those made of others."""
    d, x = m.distributions, m.tensor(REAL)
    square, power = m.tensor(MATRIX), d.ExpTransform()
    parts = d.CatTransform([power, d.SigmoidTransform()], dim=-1, lengths=[1, 2])
    chain = d.ComposeTransform([d.AffineTransform(0.5, 2.0), power])
    inner = d.IndependentTransform(power, 1)
    lower = d.LowerCholeskyTransform()
    return [
        d.AbsTransform()(x),
        d.SoftmaxTransform()(x),
        d.SoftmaxTransform().inv(d.SoftmaxTransform()(x)),
        lower(square),
        lower.inv(lower(square)),
        parts(x),
        parts.inv(parts(x)),
        chain(x),
        chain.inv(chain(x)),
        chain.log_abs_det_jacobian(x, chain(x)),
        inner.log_abs_det_jacobian(x, inner(x)),
        d.identity_transform(x),
        isinstance(chain, d.Transform),
    ]


def joined(m: Any) -> Any:
    """Distributions of several numbers made of those of one, as in actors of continuous actions."""
    d, place, width = m.distributions, m.tensor(PLACE), m.tensor(WIDTH)
    base = d.Independent(d.Normal(place, width), 1)
    squashed = d.TransformedDistribution(base, [d.TanhTransform(cache_size=1)])
    mix = d.MixtureSameFamily(d.Categorical(m.tensor([0.2, 0.3, 0.5]).double()), base.base_dist)
    value = m.tensor(REAL)
    return [
        base.log_prob(value),
        base.entropy(),
        squashed.log_prob(value.tanh()),
        tuple(squashed.event_shape),
        mix.log_prob(value[:, 0]),
        mix.mean,
        mix.variance,
        mix.cdf(value[:, 0]),
        tuple(mix.sample((6,)).shape),
        d.kl_divergence(base, d.Independent(d.Normal(place * 2, width), 1)),
        d.kl_divergence(d.Uniform(place - 1, place + 1), d.Normal(place, width)),
        d.kl_divergence(d.Normal(place, width), d.Laplace(place * 2, width)),
    ]


def counted(m: Any) -> Any:
    """Numbers of draws of each category."""
    d = m.distributions.Multinomial(4, m.tensor(SHARES))
    value = m.tensor([[1.0, 3.0, 0.0], [2.0, 1.0, 1.0]]).double()
    found = d.log_prob(value), d.mean, d.variance, d.entropy(), d.sample((3,)).sum(-1)
    return found, tuple(d.sample((3, 5)).shape)


def by_matrix(m: Any) -> Any:
    """The three ways to give a covariance."""
    place, matrix = m.tensor(PLACE), m.tensor(MATRIX, requires_grad=True)
    kind = m.distributions.MultivariateNormal
    ways = [
        kind(place, matrix),
        kind(place, precision_matrix=matrix),
        kind(place, scale_tril=m.linalg.cholesky(matrix)),
    ]
    scores = [d.log_prob(m.tensor(REAL)) for d in ways]
    sum(s.sum() for s in scores).backward()
    matrices = [(d.covariance_matrix, d.precision_matrix, d.scale_tril) for d in ways]
    return [s.detach() for s in scores], matrix.grad, [x.detach() for row in matrices for x in row]


def correlated(m: Any) -> Any:
    """Cholesky factors of correlations: densities, and the transform that leads to them."""
    d = m.distributions
    family = d.LKJCholesky(3, m.tensor([0.7, 2.0]).double())
    f, x = d.CorrCholeskyTransform(), m.tensor(REAL, requires_grad=True)
    y = f(x)
    logs = f.log_abs_det_jacobian(x, y)
    (logs.sum() + y.sum()).backward()
    drawn = family.sample((4,))
    shapes = [tuple(drawn.shape), tuple(f.forward_shape((4, 3))), tuple(f.inverse_shape((4, 3, 3)))]
    rule = d.constraints.corr_cholesky
    checks = [rule.check(drawn), rule.check(y.detach()), rule.check(2 * y.detach())]
    scores = family.log_prob(y.detach().unsqueeze(1)), family.expand((5, 2)).batch_shape
    return [y.detach(), f.inv(y).detach(), logs.detach(), x.grad], shapes, checks, scores


def of_sets(m: Any) -> Any:
    """The transforms of real numbers into each set, there and back."""
    d, found = m.distributions, []
    c, square = d.constraints, m.tensor(np.stack([MATRIX, MATRIX / 2]))
    rules = [c.real, c.positive, c.nonnegative, c.greater_than(2.0), c.greater_than_eq(-1.0)]
    rules += [c.less_than(3.0), c.interval(-1.0, 2.0), c.half_open_interval(0.0, 4.0)]
    rules += [c.unit_interval, c.simplex, c.real_vector, c.independent(c.positive, 1)]
    rules += [c.corr_cholesky, c.cat([c.positive, c.unit_interval], -1, [1, 2])]
    rules += [c.stack([c.real, c.positive], 0)]
    for rule in rules:
        x = m.tensor(REAL[:2] if isinstance(rule, type(c.stack([c.real]))) else REAL)
        for table in (d.biject_to, d.transform_to):
            y = table(rule)(x)
            found += [y, table(rule).inv(y), rule.check(y)]
    for rule in (c.lower_cholesky, c.positive_definite, c.positive_semidefinite):
        y = d.transform_to(rule)(square)
        found += [y, d.transform_to(rule).inv(y), rule.check(y), rule.check(-y)]
    return found


def of_parts(m: Any) -> Any:
    """Slices that are transformed each its own way, and the shares of a distribution."""
    d, x = m.distributions, m.tensor(REAL[:3])
    parts = d.StackTransform([d.ExpTransform(), d.TanhTransform(), d.SigmoidTransform()], dim=1)
    share = d.CumulativeDistributionTransform(d.Normal(m.zeros(3).double(), m.tensor(WIDTH)))
    found = []
    for f in (parts, share):
        y = f(x)
        found += [y, f.inv(y), f.log_abs_det_jacobian(x, y), f.codomain.check(y)]
    matrix = d.PositiveDefiniteTransform()
    found += [matrix(m.tensor(MATRIX)), matrix.inv(matrix(m.tensor(MATRIX)))]
    mixed = d.constraints.MixtureSameFamilyConstraint(d.constraints.positive)
    return [*found, mixed.check(m.ones(2, 3)), mixed.event_dim, parts.bijective]


def exponential(m: Any) -> Any:
    """The entropy of a script's own exponential family, and which families count as one."""
    d = m.distributions

    class Mine(d.ExponentialFamily):  # type: ignore[name-defined,misc]
        """The exponential distribution."""

        _mean_carrier_measure = 0

        def __init__(self, rate: Any) -> None:
            self.rate = rate
            super().__init__(rate.shape, validate_args=False)

        @property
        def _natural_params(self) -> tuple[Any]:
            return (-self.rate,)

        def _log_normalizer(self, x: Any) -> Any:
            return -(-x).log()

    kinds = [d.Normal(0.0, 1.0), d.Gamma(1.0, 1.0), d.Cauchy(0.0, 1.0), d.Chi2(2.0)]
    own = Mine(m.tensor(WIDTH)).entropy().detach()
    return own, [isinstance(k, d.ExponentialFamily) for k in kinds]


def registered(m: Any) -> Any:
    """A divergence of a script's own pair."""
    d = m.distributions

    class Mine(d.Normal):  # type: ignore[name-defined,misc]
        pass

    @d.register_kl(Mine, Mine)  # type: ignore[untyped-decorator]
    def _(p: Any, q: Any) -> Any:
        return p.loc * 0 + 42

    one = Mine(m.zeros(2), m.ones(2))
    return d.kl_divergence(one, one), d.kl_divergence(one, d.Normal(m.zeros(2), m.ones(2)))


ONE_WAY = (
    "AbsTransform CatTransform ComposeTransform IndependentTransform LowerCholeskyTransform "
    "SoftmaxTransform Transform identity_transform"
)

PARTS = (
    "CumulativeDistributionTransform MixtureSameFamilyConstraint PositiveDefiniteTransform "
    "StackTransform"
)

SAMPLES: dict[str, list[Sample]] = {
    **{name: [family(name)] for name in FAMILIES},
    **{name: [transform(name)] for name in TRANSFORMS},
    **{name: [one_way] for name in ONE_WAY.split()},
    **{name: [joined] for name in ("Independent", "MixtureSameFamily", "TransformedDistribution")},
    "Multinomial": [counted],
    **{name: [correlated] for name in ("LKJCholesky", "CorrCholeskyTransform", "corr_cholesky")},
    **{name: [of_sets] for name in ("biject_to", "transform_to", "positive_semidefinite")},
    **{name: [of_parts] for name in PARTS.split()},
    "ExponentialFamily": [exponential],
    "kl_divergence": [divergence(name) for name in KL.split()],
    "register_kl": [registered],
}
for _name in BOUNDED.split():
    SAMPLES[_name] = [*SAMPLES[_name], bounded(_name)]
SAMPLES["MultivariateNormal"] = [*SAMPLES["MultivariateNormal"], by_matrix]
