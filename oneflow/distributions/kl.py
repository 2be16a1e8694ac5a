"""The Kullback-Leibler divergence of pairs of distributions: a table of formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from oneflow.distributions.categorical import Categorical
from oneflow.distributions.composed import (
    Independent,
    LogNormal,
    Pareto,
    TransformedDistribution,
    _summed,
)
from oneflow.distributions.counts import Bernoulli, Binomial, Geometric, Poisson
from oneflow.distributions.distribution import Distribution
from oneflow.distributions.exponential import Exponential
from oneflow.distributions.gamma import Beta, Dirichlet, Gamma
from oneflow.distributions.half import HalfNormal
from oneflow.distributions.location_scale import EULER, Gumbel, Laplace, Normal, Uniform
from oneflow.distributions.multivariate_normal import MultivariateNormal, _squared_distance
from oneflow.distributions.one_hot import OneHotCategorical
from oneflow.functional.linalg.matrices import solve_triangular
from oneflow.functional.special import xlogy
from oneflow.nn import functional as F
from oneflow.ops.special import digamma, lgamma
from oneflow.ops.unary import exp, log, log1p
from oneflow.tensor.tensor import Tensor

Formula: TypeAlias = Callable[[Any, Any], Tensor]

FORMULAS: dict[tuple[type[Distribution], type[Distribution]], Formula] = {}


def register_kl(
    type_p: type[Distribution], type_q: type[Distribution]
) -> Callable[[Formula], Formula]:
    """A decorator: the function gives the divergence of such a pair."""

    def keep(formula: Formula) -> Formula:
        FORMULAS[type_p, type_q] = formula
        return formula

    return keep


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The expectation under p of log p - log q, of the batch shape.

    Raises NotImplementedError for a pair without a formula.
    """
    fits = [(a, b) for a, b in FORMULAS if isinstance(p, a) and isinstance(q, b)]
    if not fits:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
            f"{type(q).__name__}; register_kl adds one"
        )
    return FORMULAS[min(fits, key=lambda f: _steps(p, f[0]) + _steps(q, f[1]))](p, q)


def _steps(found: Distribution, family: type[Distribution]) -> int:
    """Number of classes between that of a distribution and a family; most for a virtual one."""
    line = type(found).__mro__
    return line.index(family) if family in line else len(line)


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Tensor:
    ratio, gap = (p.scale / q.scale) ** 2, ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + gap - 1 - log(ratio))


@register_kl(MultivariateNormal, MultivariateNormal)
def _vectors(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two vectors of different sizes")
    shape = (p.scale_tril + q.scale_tril).shape
    turned = solve_triangular(q.scale_tril.expand(shape), p.scale_tril.expand(shape), upper=False)
    spread, gap = (turned**2).sum((-2, -1)), _squared_distance(q.scale_tril, q.loc - p.loc)
    return q._log_scale() - p._log_scale() + 0.5 * (spread + gap - p.event_shape[0])


@register_kl(Bernoulli, Bernoulli)
def _coins(p: Bernoulli | Binomial, q: Bernoulli | Binomial) -> Tensor:
    yes = p.probs * (F.logsigmoid(p.logits) - F.logsigmoid(q.logits))
    no = (1 - p.probs) * (F.logsigmoid(-p.logits) - F.logsigmoid(-q.logits))
    return yes + no


@register_kl(Binomial, Binomial)
def _trials(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count != q.total_count).any()):
        raise NotImplementedError("KL between Binomials of different numbers of trials")
    return p.total_count * _coins(p, q)


@register_kl(Categorical, Categorical)
def _categories(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = terms.masked_fill((q.probs == 0).expand_as(terms), math.inf)
    return terms.masked_fill((p.probs == 0).expand_as(terms), 0.0).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categories(p._categorical, q._categorical)


@register_kl(Gamma, Gamma)
def _gammas(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    value = b * log(p.rate / q.rate) + lgamma(b) - lgamma(a)
    return value + (a - b) * digamma(a) + (q.rate - p.rate) * (a / p.rate)


@register_kl(Dirichlet, Dirichlet)
def _dirichlets(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1, keepdim=True)
    value = (lgamma(total) - lgamma(a).sum(-1, keepdim=True)).squeeze(-1)
    value = value - lgamma(b.sum(-1)) + lgamma(b).sum(-1)
    return value + ((a - b) * (digamma(a) - digamma(total))).sum(-1)


@register_kl(Beta, Beta)
def _betas(p: Beta, q: Beta) -> Tensor:
    return _dirichlets(p._shares, q._shares)


@register_kl(Exponential, Exponential)
def _exponentials(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


@register_kl(Geometric, Geometric)
def _geometrics(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - log1p(-q.probs) / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poissons(p: Poisson, q: Poisson) -> Tensor:
    return xlogy(p.rate, p.rate) - p.rate * log(q.rate) - (p.rate - q.rate)


@register_kl(Laplace, Laplace)
def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    gap = (p.loc - q.loc).abs()
    near = p.scale * exp(-gap / p.scale)
    return log(q.scale) - log(p.scale) + (near + gap) / q.scale - 1


@register_kl(Uniform, Uniform)
def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    value = log((q.high - q.low) / (p.high - p.low))
    return value.masked_fill((q.low > p.low) | (q.high < p.high), math.inf)


@register_kl(Gumbel, Gumbel)
def _gumbels(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    mine, other = p.loc / q.scale, q.loc / q.scale
    far = exp(other + lgamma(1 + ratio) - mine)
    return mine - other - log(ratio) + EULER * (ratio - 1) + far - 1


@register_kl(HalfNormal, HalfNormal)
def _half_normals(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normals(p.base_dist, q.base_dist)


@register_kl(Pareto, Pareto)
def _paretos(p: Pareto, q: Pareto) -> Tensor:
    scale, alpha = p.scale / q.scale, q.alpha / p.alpha
    value = q.alpha * log(scale) - log(alpha) + alpha - 1
    is_out = (p.scale < q.scale).expand_as(value)
    return value.masked_fill(is_out, math.inf)


@register_kl(LogNormal, LogNormal)
def _log_normals(p: LogNormal, q: LogNormal) -> Tensor:
    return _normals(p.base_dist, q.base_dist)


@register_kl(Uniform, Normal)
def _uniform_to_normal(p: Uniform, q: Normal) -> Tensor:
    width = p.high - p.low
    value = log(math.sqrt(2 * math.pi) * q.scale / width)
    centre = (p.high + p.low - 2 * q.loc) / 2
    return value + 0.5 * (width**2 / 12 + centre**2) / q.scale**2


@register_kl(Normal, Laplace)
def _normal_to_laplace(p: Normal, q: Laplace) -> Tensor:
    gap = p.loc - q.loc
    z = gap / (p.scale * math.sqrt(2))
    spread = math.sqrt(2 / math.pi) * p.scale * exp(-(z**2)) + gap * z.erf()
    return -log(p.scale / q.scale) + spread / q.scale - 0.5 * math.log(math.pi / 2) - 0.5


@register_kl(Independent, Independent)
def _independents(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("KL between Independents of different numbers of dims")
    return _summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("KL between distributions of different transforms")
    more = len(p.event_shape) - len(p.base_dist.event_shape)
    return _summed(kl_divergence(p.base_dist, q.base_dist), more)
