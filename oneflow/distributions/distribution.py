"""The base of all distributions: shapes, drawing, and the methods that subclasses define."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast

from oneflow.core.size import Size
from oneflow.distributions.constraints import Constraint, Rule, is_dependent
from oneflow.functional.from_data import tensor
from oneflow.functional.shaping import broadcast_shapes, expand
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

P = TypeVar("P", bound="Parametric")
D = TypeVar("D", bound="Distribution")


def holds(rule: Constraint, value: Tensor) -> bool:
    """Whether all values are in the set; taken for granted in a graph that is being traced."""
    is_in = rule.check(value).all()
    return is_in.value is not None or bool(is_in)


class Distribution:
    """A distribution. batch_shape: of independent ones; event_shape: of a single draw.

    validate_args: whether values given to it are checked; None for the default of the class.
    """

    has_rsample: bool = False
    has_enumerate_support: ClassVar[bool] = False
    arg_constraints: Mapping[str, Constraint] = {}
    """Parameter -> the set that its values are of."""

    support: Rule | None = None
    """The set of the values that it gives; None: not known."""

    _validate_args: bool = True

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = bool(validate_args)
        if self._validate_args:
            self._check_parameters()
        super().__init__()

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Choose whether values are checked where a distribution does not say so itself."""
        Distribution._validate_args = bool(value)

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

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Distribution:
        """Return the same distributions under a larger batch shape.

        _instance: an object of a subclass that has not called `__init__`, to be written into.
        """
        raise self._missing("expand")

    def _grown(self, family: type[D], instance: object, *args: Any, **kwargs: Any) -> D:
        """Return a distribution of the family with these parameters: a new one, or `instance`."""
        made = cast("D", self._get_checked_instance(family, cast("Any", instance)))
        begin: Callable[..., None] = family.__init__
        begin(made, *args, **{**kwargs, "validate_args": False})
        made._validate_args = self._validate_args
        return made

    def _get_checked_instance(self: D, cls: type, _instance: D | None = None) -> D:
        """Return `_instance`, or an object that has not called `__init__`, for `expand` of a
        subclass.  cls: the class whose `expand` asks.

        Raises NotImplementedError if a further subclass has an `__init__` of its own.
        """
        own = type(self)
        if _instance is None and own.__init__ is not getattr(cls, "__init__"):  # noqa: B009
            raise NotImplementedError(
                f"Subclass {own.__name__} of {cls.__name__} that also defines a custom __init__ "
                "method must also define a custom .expand() method."
            )
        return own.__new__(own) if _instance is None else _instance

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

    def _check_value(self, value: Tensor) -> None:
        """Raise ValueError for a value outside of `support`, where values are checked."""
        if self._validate_args:
            self._validate_sample(value)

    def _validate_sample(self, value: Tensor) -> None:
        """Raise ValueError for a value of another shape than draws, or outside of `support`."""
        if not isinstance(value, Tensor):
            raise ValueError(f"{type(self).__name__}: a value must be a tensor, got {value!r:.80}")
        event = tuple(self._event_shape)
        if tuple(value.shape)[max(value.ndim - len(event), 0) :] != event:
            raise ValueError(
                f"{type(self).__name__}: a value's last dims must be {event}, got {value.meta}"
            )
        broadcast_shapes(value.shape, self._extended_shape())
        support = cast("Constraint | None", self.support)
        if support is not None and not holds(support, value):
            raise ValueError(
                f"Expected value argument to be within the support ({support!r}) of the "
                f"distribution {self!r}, but found invalid values: {value}"
            )

    def _check_parameters(self) -> None:
        """Raise ValueError for a parameter outside of its set; properties that are computed when
        they are first asked for are left alone.
        """
        for name, rule in self.arg_constraints.items():
            computed = getattr(type(self), name, None)
            if is_dependent(rule) or (
                name not in self.__dict__ and isinstance(computed, cached_property)
            ):
                continue
            value = getattr(self, name)
            if not holds(rule, value):
                raise ValueError(
                    f"Expected parameter {name} of distribution {self!r} to satisfy the constraint "
                    f"{rule!r}, but found invalid values: {value}"
                )

    def _missing(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} defines no {name}")

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self._batch_shape})"


class Parametric(Distribution):
    """A distribution of a family that tensors choose: `arg_constraints` names them."""

    _param_dims: Mapping[str, int] = {}
    """Parameter -> number of last dims that belong to one distribution."""

    def _keep(
        self,
        validate_args: bool | None,
        event_dims: Mapping[str, int] | None = None,
        **given: float | Tensor,
    ) -> None:
        """Sets the parameters, numbers or tensors, as tensors of one batch shape, and checks them.

        event_dims: last dims of a parameter that belong to one distribution, 0 where not named.
        """
        dims = {name: (event_dims or {}).get(name, 0) for name in given}
        values = beside_each_other(given)
        batch = broadcast_shapes(*(_outer(v, dims[name]) for name, v in values.items()))
        for name, value in values.items():
            whole = (*batch, *value.shape[value.ndim - dims[name] :])
            setattr(self, name, value if tuple(value.shape) == whole else expand(value, whole))
        self._param_dims = dims
        super().__init__(batch, self._event_of(), validate_args)

    def _event_of(self) -> tuple[int, ...]:
        """Shape of one draw."""
        return ()

    @property
    def _params(self) -> dict[str, Tensor]:
        """The parameters by name: as attributes, so that others may move or replace them."""
        return {name: getattr(self, name) for name in self._param_dims}

    @property
    def _any(self) -> Tensor:
        """A parameter, whose dtype and place draws have."""
        found: Tensor = getattr(self, next(iter(self._param_dims)))
        return found

    def _kind(self) -> dict[str, Any]:
        """The keywords of a draw: dtype and place."""
        return {"dtype": self._any.dtype, **layout_of(self._any)}

    def expand(self: P, batch_shape: Sequence[int], _instance: object = None) -> P:
        """The same distributions under a larger batch shape."""
        wide = {
            name: expand(p, (*batch_shape, *p.shape[p.ndim - self._param_dims[name] :]))
            for name, p in self._params.items()
        }
        own = (c for c in type(self).__mro__ if c.__module__.startswith("oneflow."))
        return self._grown(cast("type[P]", next(own)), _instance, **wide, **self._fixed())

    def _fixed(self) -> Mapping[str, Tensor]:
        """Further arguments, which are no tensors of the batch."""
        return {}

    def __repr__(self) -> str:
        parts = (
            f"{name}: {p.item() if p.numel() == 1 else tuple(p.shape)}"
            for name, p in self._params.items()
        )
        return f"{type(self).__name__}({', '.join(parts)})"


def alike(**given: float | Tensor) -> list[Tensor]:
    """Numbers and tensors as tensors of one shape."""
    values = beside_each_other(given).values()
    shape = broadcast_shapes(*(v.shape for v in values))
    return [v if tuple(v.shape) == tuple(shape) else expand(v, shape) for v in values]


def _outer(x: Tensor, event_dims: int) -> tuple[int, ...]:
    return tuple(x.shape)[: x.ndim - event_dims]


def beside_each_other(given: Mapping[str, float | Tensor]) -> dict[str, Tensor]:
    """Numbers made tensors, of the dtype and place of the first tensor among them."""
    first = next((v for v in given.values() if isinstance(v, Tensor)), None)
    kind: dict[str, Any] = {} if first is None else {"dtype": first.dtype, **layout_of(first)}
    return {
        name: v if isinstance(v, Tensor) else tensor(_number(v), **kind)
        for name, v in given.items()
    }


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"a parameter must be a number or a tensor, got {value!r}")
    return float(value)
