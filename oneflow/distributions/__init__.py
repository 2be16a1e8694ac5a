"""`flow.distributions`: probability distributions to draw from and to differentiate."""

from oneflow.distributions.categorical import Categorical
from oneflow.distributions.distribution import Distribution

__all__ = ["Categorical", "Distribution"]
