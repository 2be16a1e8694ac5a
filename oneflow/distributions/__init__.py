"""`flow.distributions`: probability distributions to draw from and to differentiate."""

from oneflow.distributions import constraints, kl, transforms
from oneflow.distributions.categorical import Categorical
from oneflow.distributions.composed import (
    Independent,
    LogNormal,
    MixtureSameFamily,
    Pareto,
    TransformedDistribution,
    Weibull,
)
from oneflow.distributions.counts import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson
from oneflow.distributions.distribution import Distribution
from oneflow.distributions.exponential import Exponential
from oneflow.distributions.gamma import Beta, Chi2, Dirichlet, Gamma
from oneflow.distributions.half import HalfCauchy, HalfNormal
from oneflow.distributions.kl import kl_divergence, register_kl
from oneflow.distributions.location_scale import (
    Cauchy,
    Gumbel,
    Laplace,
    Normal,
    StudentT,
    Uniform,
)
from oneflow.distributions.multivariate_normal import MultivariateNormal
from oneflow.distributions.one_hot import (
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from oneflow.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    CatTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from oneflow.surfaces import accept_paths

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "Laplace",
    "LogNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "Weibull",
    "constraints",
    "identity_transform",
    "kl",
    "kl_divergence",
    "register_kl",
    "transforms",
]


accept_paths(__name__)
