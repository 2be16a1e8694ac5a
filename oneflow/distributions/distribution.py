"""The base of all distributions: shapes, drawing, and what subclasses define."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from oneflow.core.size import Size
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class Distribution:
    """A distribution. batch_shape: of independent ones; event_shape: of a single draw.

    validate_args: whether values given to it are checked; None for the default of the class.
    """

    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False
    _checks: ClassVar[bool] = True

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        self._validate_args = self._checks if validate_args is None else validate_args

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Choose whether values are checked where a distribution does not say so itself."""
        Distribution._checks = bool(value)

    @property
    def batch_shape(self) -> Size:
        """Shape of the independent distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """Shape of one draw of one distribution."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise self._missing("mean")

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise self._missing("mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise self._missing("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int]) -> Distribution:
        """Return the same distributions under a larger batch shape."""
        raise self._missing("expand")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        raise self._missing("rsample")

    def sample_n(self, n: int) -> Tensor:
        """`sample((n,))`."""
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability (density) of a value."""
        raise self._missing("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        raise self._missing("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value up to which this much probability lies."""
        raise self._missing("icdf")

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability."""
        raise self._missing("entropy")

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return self.entropy().exp()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values along a new first dim."""
        raise self._missing("enumerate_support")

    def _missing(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} defines no {name}")

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self._batch_shape})"
