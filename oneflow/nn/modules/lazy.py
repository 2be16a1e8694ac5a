"""Layers whose number of input features follows from the first tensor that they are called with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from oneflow.core.errors import ShapeError
from oneflow.nn.module import Module
from oneflow.nn.modules import conv, linear, normalization
from oneflow.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy, materialize
from oneflow.tensor.creation_like import Kind
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LazyModuleMixin(Module):
    """The common part of lazy layers: `class LazyX(LazyModuleMixin, X)`.

    The first call, or loading a state dict, gives uninitialized parameters their shapes;
    afterwards the layer is a `cls_to_become`. Inside `nn.Graph` no hook runs: call it once before.
    """

    cls_to_become: ClassVar[type[Module] | None] = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._load_hook = self._register_load_state_dict_pre_hook(self._lazy_load_hook)
        self._initialize_hook = self.register_forward_pre_hook(_infer_parameters, with_kwargs=True)

    def initialize_parameters(self, *args: Tensor, **kwargs: Tensor) -> None:
        """Gives the parameters shapes by the arguments of a call; subclasses define it."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}"
        )

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer has no shape yet."""
        return any(map(is_lazy, [*self._parameters.values(), *self._buffers.values()]))

    def _lazy_load_hook(self, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
        """Takes shapes from the values that are to be loaded."""
        for name, own in [*self._parameters.items(), *self._buffers.items()]:
            value = state_dict.get(prefix + name)
            if value is not None and not is_lazy(value):
                materialize(own, tuple(value.shape))


def _infer_parameters(
    module: LazyModuleMixin, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> None:
    """The hook before a lazy layer's first call."""
    module.initialize_parameters(*args, **kwargs)
    if module.has_uninitialized_params():
        raise RuntimeError(
            f"module {module._get_name()} has not been fully initialized by its first call"
        )
    module._initialize_hook.remove()
    module._load_hook.remove()
    del module._initialize_hook, module._load_hook
    changed: Any = module
    if module.cls_to_become is not None:
        changed.__class__ = module.cls_to_become


class LazyLinear(LazyModuleMixin, linear.Linear):
    """A Linear whose in_features is the last dim of the first input."""

    cls_to_become = linear.Linear

    def __init__(self, out_features: int, bias: bool = True, **kind: Unpack[Kind]) -> None:
        super().__init__(1, 1, False, **kind)
        self.in_features, self.out_features = 0, out_features
        self.register_parameter("weight", UninitializedParameter(**kind))
        if bias:
            self.register_parameter("bias", UninitializedParameter(**kind))

    def reset_parameters(self) -> None:
        """Draws new first values, once there are shapes."""
        if not self.has_uninitialized_params() and self.in_features:
            super().reset_parameters()

    def initialize_parameters(self, *args: Tensor, **_: Tensor) -> None:
        if not self.has_uninitialized_params():
            self.in_features = self.weight.shape[-1]
            return
        self.in_features = args[0].shape[-1]
        materialize(self.weight, (self.out_features, self.in_features))
        materialize(self.bias, (self.out_features,))
        self.reset_parameters()


class _LazyConv(LazyModuleMixin):
    """A convolution whose in_channels is dim 1 of the first input (dim 0 without a batch)."""

    dims: ClassVar[int]
    is_transposed: ClassVar[bool] = False

    def __init__(
        self,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        *options: object,
        bias: object = True,
        **more: object,
    ) -> None:
        # bias stands after groups: (stride, padding, dilation, groups, bias, ...), or for a
        # transposed one (stride, padding, output_padding, groups, bias, ...)
        given = list(options)
        if len(given) > 4:
            bias, given[4] = given[4], False
        else:
            more["bias"] = False
        groups = given[3] if len(given) > 3 else more.get("groups", 1)
        if not isinstance(groups, int) or out_channels % groups:
            raise ValueError(
                f"out_channels must be divisible by groups, got {out_channels} and {groups}"
            )
        super().__init__(groups, groups, kernel_size, *given, **more)
        self.in_channels, self.out_channels = 0, out_channels
        like = self.weight
        for name in ("weight", "bias") if bias else ("weight",):
            blank = UninitializedParameter(device=like.device, dtype=like.dtype)
            self.register_parameter(name, blank)

    def reset_parameters(self) -> None:
        """Draws new first values, once there are shapes."""
        if not self.has_uninitialized_params() and self.in_channels:
            linear.reset_weight_and_bias(self.weight, self.bias)

    def initialize_parameters(self, *args: Tensor, **_: Tensor) -> None:
        if not self.has_uninitialized_params():
            shape = self.weight.shape
            self.in_channels = shape[0] if self.is_transposed else shape[1] * self.groups
            return
        x = args[0]
        if x.ndim not in (self.dims + 1, self.dims + 2):
            raise ShapeError(
                f"{self._get_name()}: expected {self.dims + 1}D (no batch) or {self.dims + 2}D "
                f"input, got {x.meta}"
            )
        self.in_channels = x.shape[x.ndim - self.dims - 1]
        if self.in_channels % self.groups:
            raise ValueError(
                f"in_channels must be divisible by groups, got {self.in_channels} and {self.groups}"
            )
        outer, inner = self.out_channels, self.in_channels
        if self.is_transposed:
            outer, inner = inner, outer
        materialize(self.weight, (outer, inner // self.groups, *self.kernel_size))
        materialize(self.bias, (self.out_channels,))
        self.reset_parameters()


class LazyConv1d(_LazyConv, conv.Conv1d):
    __doc__ = _LazyConv.__doc__
    cls_to_become = conv.Conv1d


class LazyConv2d(_LazyConv, conv.Conv2d):
    __doc__ = _LazyConv.__doc__
    cls_to_become = conv.Conv2d


class LazyConv3d(_LazyConv, conv.Conv3d):
    __doc__ = _LazyConv.__doc__
    cls_to_become = conv.Conv3d


class LazyConvTranspose1d(_LazyConv, conv.ConvTranspose1d):
    __doc__ = _LazyConv.__doc__
    is_transposed = True
    cls_to_become = conv.ConvTranspose1d


class LazyConvTranspose2d(_LazyConv, conv.ConvTranspose2d):
    __doc__ = _LazyConv.__doc__
    is_transposed = True
    cls_to_become = conv.ConvTranspose2d


class LazyConvTranspose3d(_LazyConv, conv.ConvTranspose3d):
    __doc__ = _LazyConv.__doc__
    is_transposed = True
    cls_to_become = conv.ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    """A norm of channels whose num_features is dim 1 of the first input."""

    def __init__(
        self,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        **kind: Unpack[Kind],
    ) -> None:
        super().__init__(1, eps, momentum, False, False, **kind)
        self.num_features, self.affine = 0, affine
        self.track_running_stats = track_running_stats
        if affine:
            self.register_parameter("weight", UninitializedParameter(**kind))
            if bias:
                self.register_parameter("bias", UninitializedParameter(**kind))
        if track_running_stats:
            self.register_buffer("running_mean", UninitializedBuffer(**kind))
            self.register_buffer("running_var", UninitializedBuffer(**kind))
            normalization.register_count(self, kind.get("device"))

    def reset_parameters(self) -> None:
        """weight 1, bias 0 and no statistics, once there are shapes."""
        if not self.has_uninitialized_params() and self.num_features:
            normalization._reset_statistics(self)
            normalization._reset_affine(self)

    def initialize_parameters(self, *args: Tensor, **_: Tensor) -> None:
        if not self.has_uninitialized_params():
            held = [t for t in (self.weight, self.running_mean) if t is not None]
            self.num_features = held[0].shape[0] if held else args[0].shape[1]
            return
        self.num_features = args[0].shape[1]
        for x in (self.weight, self.bias, self.running_mean, self.running_var):
            materialize(x, (self.num_features,))
        self.reset_parameters()


class LazyBatchNorm1d(_LazyNorm, normalization.BatchNorm1d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, normalization.BatchNorm2d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, normalization.BatchNorm3d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, normalization.InstanceNorm1d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, normalization.InstanceNorm2d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, normalization.InstanceNorm3d):
    __doc__ = _LazyNorm.__doc__
    cls_to_become = normalization.InstanceNorm3d
