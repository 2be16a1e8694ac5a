"""`torch.distributed.fsdp` and what goes with it: parameters are sharded by their layout here, so
nothing of these classes is ever made and `isinstance` is False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NoReturn

from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module

INSTEAD = (
    "parameters are sharded by their layout here: module.to_global(placement, "
    "sbp=flow.sbp.split(0)), or enable_zero() of a graph"
)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OneFlowError(f"{name}: {INSTEAD}")

    refuse.__name__ = name
    refuse.__doc__ = "Refuse: parameters are sharded by their layout."
    return refuse


class FullyShardedDataParallel(Module):
    """PyTorch's wrapper of a module with sharded parameters: none is ever made."""

    def __init__(self, *_: object, **__: object) -> None:
        fully_shard()


class FSDPModule:
    """A module that PyTorch's `fully_shard` has changed: none is ever made."""


UnshardHandle = FSDPModule
fully_shard = _refusing("fully_shard")
register_fsdp_forward_method = _refusing("register_fsdp_forward_method")
load_sharded_optimizer_state_dict = _refusing("load_sharded_optimizer_state_dict")


class ShardingStrategy(Enum):
    """Ways in which PyTorch shards."""

    FULL_SHARD = 1
    SHARD_GRAD_OP = 2
    NO_SHARD = 3
    HYBRID_SHARD = 4
    _HYBRID_SHARD_ZERO2 = 5


class BackwardPrefetch(Enum):
    """Orders in which PyTorch gathers parameters."""

    BACKWARD_PRE = 1
    BACKWARD_POST = 2


class StateDictType(Enum):
    """Forms of PyTorch's sharded state dicts."""

    FULL_STATE_DICT = 1
    LOCAL_STATE_DICT = 2
    SHARDED_STATE_DICT = 3


class _Options:
    """Options of a wrapper that is never made."""

    def __init__(self, *args: object, **options: object) -> None:
        vars(self).update(options)


class MixedPrecision(_Options):
    """Options of a wrapper that is never made."""


class CPUOffload(_Options):
    """Options of a wrapper that is never made."""


class StateDictConfig(_Options):
    """Options of a wrapper that is never made."""


class OptimStateDictConfig(_Options):
    """Options of a wrapper that is never made."""


FullStateDictConfig = ShardedStateDictConfig = LocalStateDictConfig = StateDictConfig
FullOptimStateDictConfig = ShardedOptimStateDictConfig = OptimStateDictConfig
MixedPrecisionPolicy = MixedPrecision
CPUOffloadPolicy = OffloadPolicy = CPUOffload
ModuleWrapPolicy = CustomPolicy = _Options


def transformer_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Iterable[type] = ()
) -> bool:
    """Return whether a part is to be wrapped by itself: one of the given classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = 100_000_000,
    **_: object,
) -> bool:
    """Return whether a part is to be wrapped by itself: one with so many parameters."""
    return nonwrapped_numel >= min_num_params


def lambda_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[Module], bool]
) -> bool:
    """Return whether a part is to be wrapped by itself: where a function says so."""
    return recurse or lambda_fn(module)


def _or_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, policies: Iterable[Callable[..., bool]]
) -> bool:
    """Return whether any policy wraps a part."""
    return any(policy(module, recurse, nonwrapped_numel) for policy in policies)


enable_wrap = _refusing("enable_wrap")


class ShardedGradScaler:
    """PyTorch's scaler for sharded gradients: none is ever made; `flow.amp.GradScaler` scales."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError("ShardedGradScaler: use flow.amp.GradScaler")


class DTensor:
    """PyTorch's tensor of several ranks: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        distribute_tensor()

    @staticmethod
    def from_local(*_: object, **__: object) -> NoReturn:
        """Refuse: `flow.Tensor.to_global` makes a global tensor of local parts."""
        distribute_tensor()


class DeviceMesh:
    """PyTorch's grid of ranks: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        init_device_mesh()


def distribute_tensor(*_: object, **__: object) -> NoReturn:
    """Refuse: `flow.Tensor.to_global` lays a tensor out."""
    raise OneFlowError("DTensor: a tensor of several ranks is tensor.to_global(placement, sbp)")


distribute_module = parallelize_module = distribute_tensor


def init_device_mesh(*_: object, **__: object) -> NoReturn:
    """Refuse: `flow.placement` is a grid of ranks."""
    raise OneFlowError("DeviceMesh: a grid of ranks is flow.placement(type, ranks)")


class _Layout:
    """A layout of PyTorch's: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError("Shard, Replicate, Partial: use flow.sbp.split, broadcast, partial_sum")


class Placement(_Layout):
    """A layout of PyTorch's: none is ever made, so `isinstance` is False."""


class Shard(Placement):
    """`flow.sbp.split` of PyTorch: none is ever made, so `isinstance` is False."""


class Replicate(Placement):
    """`flow.sbp.broadcast` of PyTorch: none is ever made, so `isinstance` is False."""


class Partial(Placement):
    """`flow.sbp.partial_sum` of PyTorch: none is ever made, so `isinstance` is False."""


class ColwiseParallel(_Layout):
    """A way to split a layer in PyTorch: none is ever made."""


class RowwiseParallel(_Layout):
    """A way to split a layer in PyTorch: none is ever made."""


class SequenceParallel(_Layout):
    """A way to split a layer in PyTorch: none is ever made."""


class ZeroRedundancyOptimizer:
    """PyTorch's optimizer with sharded states: none is ever made."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError(
            "ZeroRedundancyOptimizer: states follow the layout of global parameters; "
            "graph.config.enable_zero() shards those of a graph"
        )


DistributedOptimizer = PostLocalSGDOptimizer = ZeroRedundancyOptimizer


class Join:
    """PyTorch's block for ranks with unequal numbers of batches."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError(
            "Join: ranks take equal numbers of steps; give each as many batches, as "
            "DistributedSampler does"
        )


Joinable = JoinHook = Join
